//! Logs rows that were not delivered: skipped rows and dead letters.
//!
//! Input: what was rejected. Output: one WARN each. Invariant: a skipped row has a line of its own with its
//! id, which the log never collapses, since no other trace is left; lines about dead letters are collapsed
//! when there are many. Ids are logged, payloads and keys are not.

use postrider_core::pipeline::{DeadLetter, Refused, Skipped};
use postrider_core::route::{ERROR_HEADER, EXPLANATION_HEADERS, LSN_HEADER, TABLE_HEADER};

/// A dead letter was handed to the producer; or would have been, where nothing is acknowledged.
pub(super) fn dead_letter(letter: &DeadLetter, acknowledged: bool) {
    let headers = &letter.record.headers;
    let text = |value: &Option<Vec<u8>>| {
        value.as_deref().map(|it| String::from_utf8_lossy(it).into_owned())
    };
    let header =
        |name: &str| headers.iter().find(|(known, _)| known == name).and_then(|(_, it)| text(it));
    let own = headers.iter().find(|(name, _)| !EXPLANATION_HEADERS.contains(&name.as_str()));
    let id = own.and_then(|(_, value)| text(value));
    let (code, id, reason) = (letter.code.as_str(), id.as_deref(), header(ERROR_HEADER));
    if !acknowledged {
        tracing::info!(code, id, reason, "a row would become a dead letter");
        return;
    }
    tracing::warn!(
        code,
        table = header(TABLE_HEADER),
        position = header(LSN_HEADER),
        id,
        reason,
        "a row became a dead letter"
    );
}

/// A row was left out by the policy `skip`; or would have been, where nothing is acknowledged.
pub(super) fn skipped_row(skipped: &Skipped, acknowledged: bool) {
    if !acknowledged {
        let (code, reason) = (skipped.rejection.code.as_str(), &skipped.rejection.reason);
        tracing::info!(code, id = skipped.id.as_deref(), reason, "a row would be skipped");
        return;
    }
    tracing::warn!(
        target: "postrider::audit",
        code = skipped.rejection.code.as_str(),
        table = %skipped.table,
        id = skipped.id.as_deref(),
        commit_lsn = %skipped.position.commit_lsn,
        index = skipped.position.index,
        reason = skipped.rejection.reason,
        "a row was skipped, as route.rejected = \"skip\" asks"
    );
}

/// A record that the brokers refused was left out by the policy `skip`.
pub(super) fn skipped_record(refused: &Refused) {
    let text = |value: &Option<Vec<u8>>| {
        value.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let position = refused.record.headers.iter().find(|(name, _)| name == LSN_HEADER);
    // A record's first header is the row's id.
    let id = refused.record.headers.first().and_then(|(_, value)| text(value));
    tracing::warn!(
        target: "postrider::audit",
        code = refused.rejection.code.as_str(),
        topic = refused.record.topic,
        id,
        position = position.and_then(|(_, value)| text(value)),
        reason = refused.rejection.reason,
        "a record was skipped, as route.rejected = \"skip\" asks"
    );
}
