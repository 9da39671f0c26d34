//! Defines the types that tell the supervisor how a session failed and what it left.
//!
//! [`SessionFailure`] and [`SinkFault`] classify errors by the supervisor's next action. The caller
//! maps the errors of its libraries to them and keeps their texts. [`RefusedBatch`] holds what the
//! brokers refused, [`RefusalConsequence`] the effect on the next session, and [`Left`] what a
//! session leaves: unconfirmed records, positions, and whether it did useful work.

use std::time::Duration;

use crate::lsn::Lsn;
use crate::pipeline::{Blame, RefusalAnalysis};
use crate::session::Owed;

/// The reason why a session ended, or could not start.
#[derive(Debug, Clone, Copy)]
pub enum SessionFailure<'a> {
    /// A temporary failure, which does not predict the next session.
    Transient,
    /// Another process holds the slot.
    Held,
    /// The server was silent for too long.
    Silent,
    /// The message at this position of the log is unreadable.
    Unreadable(Lsn),
    /// The producer failed.
    Sink(SinkFault),
    /// The brokers refused a batch because of some of its records.
    Refused(RefusedBatch<'a>),
    /// A peer refused the login. The source's state and the stored data remain unknown.
    Barred {
        /// The peer that refused.
        by: Peer,
        /// True if the next attempt reads the secret again, and so may present another one.
        secret_can_change: bool,
    },
    /// Only a human can help, or no time is left.
    Final,
}

/// A server that the relay connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// PostgreSQL, the source of rows.
    Source,
    /// Kafka, the destination of records.
    Sink,
}

/// How a producer's failure affects the next session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFault {
    /// The brokers are unreachable, or temporarily refuse the relay.
    Outage,
    /// The relay may not write to a topic. The next session does not wait for it.
    Forbidden,
    /// The failure may repeat if a session sends the same records.
    Fatal,
    /// Records did not reach the brokers in time. The failure may repeat.
    Late,
    /// The brokers refused a batch. The failure may repeat.
    Refused,
}

impl SinkFault {
    /// True if the failure may repeat with the same records, without any outage.
    pub(super) const fn may_repeat(self) -> bool {
        matches!(self, Self::Fatal | Self::Late | Self::Refused)
    }

    /// True if the next session acts differently, so that it need not wait.
    pub(super) const fn is_met_otherwise(self) -> bool {
        matches!(self, Self::Forbidden | Self::Refused)
    }
}

/// One or several refused batches.
#[derive(Debug, Clone, Copy)]
pub struct RefusedBatch<'a> {
    /// The session's analysis.
    pub analysis: &'a RefusalAnalysis,
    /// Records that may be the cause.
    pub records: &'a [Blame],
    /// New limit for the batch size in bytes, because no record stood out.
    pub batch_bytes: Option<u32>,
}

/// The effect of a refused batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalConsequence {
    /// New limit for the batches of all topics, in bytes.
    pub smaller_batches: Option<u32>,
    /// True if the next session will not fail in the same way.
    pub is_news: bool,
    /// Topics whose settings may explain the refusal. Query them before the next session.
    pub unexplained: Vec<String>,
}

/// The state that a session leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Records of all sessions so far that the next start would repeat.
    pub owed: Owed,
    /// Everything up to this position is confirmed, according to the last session that streamed.
    pub settled: Lsn,
    /// Everything up to this position was received.
    pub received: Lsn,
    /// Duration of useful streaming.
    pub useful: Duration,
    /// True if this session or an earlier one streamed.
    pub has_streamed: bool,
    /// True if the sink accepted the login of this session or an earlier one.
    pub sink_let_in: bool,
}
