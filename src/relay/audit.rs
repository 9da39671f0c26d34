//! The log lines that a row which was not delivered leaves behind.
//!
//! Enters: what was rejected. Leaves: one WARN each, which the log's damper collapses when they come
//! in a flood; the counters in `/metrics` stay exact. No payload, key or id is written.

use crate::pipeline::{Refused, Skipped};
use crate::route::RejectionCode;

/// A dead letter was handed to the producer.
pub(super) fn dead_letter(code: RejectionCode) {
    tracing::warn!(code = code.as_str(), "a row became a dead letter");
}

/// A row was left out by the policy `skip`.
pub(super) fn skipped_row(skipped: &Skipped<'_>) {
    tracing::warn!(
        code = skipped.rejection.code.as_str(),
        table = %skipped.table,
        commit_lsn = %skipped.position.commit_lsn,
        index = skipped.position.index,
        reason = skipped.rejection.reason,
        "a row was left out, as route.rejected = \"skip\" asks"
    );
}

/// A record that the brokers refused was left out by the policy `skip`.
pub(super) fn skipped_record(refused: &Refused) {
    tracing::warn!(
        code = refused.rejection.code.as_str(),
        topic = refused.record.topic,
        reason = refused.rejection.reason,
        "a record was left out, as route.rejected = \"skip\" asks"
    );
}
