//! Logs rows that were not delivered, or that a failover took back.
//!
//! Invariant: each skipped row has its own line with its id, and each failover one with its
//! positions. The log never collapses these lines, because no other trace remains. Payloads and
//! keys are not logged.

use crate::telemetry::unix_us;
use postrider_core::gate::Warning;
use postrider_core::pipeline::{Refused, SentDeadLetter, Skipped};
use postrider_core::route::{ERROR_HEADER, EXPLANATION_HEADERS, LSN_HEADER, TABLE_HEADER};
use postrider_kafka::DeliveredTap;

const AUDIT: &str = "postrider::audit";

const TEXT_BYTES_MAX: usize = 1024;

/// A dry run (`acknowledged` is false) did not send the letter.
pub(super) fn dead_letter(letter: &SentDeadLetter, acknowledged: bool, tap: &DeliveredTap) {
    let headers = &letter.record.headers;
    let header = |name: &str| {
        headers.iter().find(|(known, _)| known == name).and_then(|(_, it)| text(it.as_deref()))
    };
    let own = headers.iter().find(|(name, _)| !EXPLANATION_HEADERS.contains(&name.as_str()));
    let id = own.and_then(|(_, value)| text(value.as_deref()));
    let (code, id, reason) = (letter.code.as_str(), id.as_deref(), header(ERROR_HEADER));
    if !acknowledged {
        tracing::info!(code, id, reason, "a row would become a dead letter");
        return;
    }
    tap.dead_letter(letter, unix_us());
    tracing::warn!(
        code,
        table = header(TABLE_HEADER),
        position = header(LSN_HEADER),
        id,
        reason,
        "a row became a dead letter"
    );
}

pub(super) fn tail_lost(warning: &Warning) {
    tracing::warn!(target: AUDIT, help = warning.hint(), "{warning}");
}

/// A dry run (`acknowledged` is false) would have left out the row.
pub(super) fn skipped_row(skipped: &Skipped, acknowledged: bool) {
    if !acknowledged {
        let (code, reason) = (skipped.rejection.code.as_str(), &skipped.rejection.reason);
        tracing::info!(code, id = skipped.id.as_deref(), reason, "a row would be skipped");
        return;
    }
    tracing::warn!(
        target: AUDIT,
        code = skipped.rejection.code.as_str(),
        table = %skipped.table,
        id = skipped.id.as_deref(),
        commit_lsn = %skipped.position.commit_lsn,
        index = skipped.position.index,
        reason = skipped.rejection.reason,
        "a row was skipped, as route.rejected = \"skip\" asks"
    );
}

pub(super) fn skipped_record(refused: &Refused) {
    let position = refused.record.headers.iter().find(|(name, _)| name == LSN_HEADER);
    // The first header of a record is the row's id.
    let id = refused.record.headers.first().and_then(|(_, value)| text(value.as_deref()));
    tracing::warn!(
        target: AUDIT,
        code = refused.rejection.code.as_str(),
        topic = refused.record.topic,
        id,
        position = position.and_then(|(_, value)| text(value.as_deref())),
        reason = refused.rejection.reason,
        "a record was skipped, as route.rejected = \"skip\" asks"
    );
}

/// Truncates the value, so that a huge id does not flood the log.
fn text(value: Option<&[u8]>) -> Option<String> {
    let cut = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes)).into_owned()
    };
    value.map(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_megabyte_is_cut() {
        assert_eq!(text(Some(b"42")).as_deref(), Some("42"));
        assert_eq!(text(Some(&vec![b'x'; 1 << 20])).map(|text| text.len()), Some(TEXT_BYTES_MAX));
        assert_eq!(text(None), None);
    }
}
