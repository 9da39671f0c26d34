//! How a session failed and what it left.
//!
//! The caller keeps the errors' texts.

use std::time::Duration;

use crate::lsn::Lsn;
use crate::pipeline::{Blame, RefusalAnalysis};
use crate::session::Owed;

/// Why a session ended, or could not start.
#[derive(Debug, Clone, Copy)]
pub enum SessionFailure<'a> {
    /// A temporary failure.
    Transient,
    /// The slot is held.
    Held,
    /// The server was silent for too long.
    Silent,
    /// The message at this position is unreadable.
    Unreadable(Lsn),
    /// The producer failed.
    Sink(SinkFault),
    /// The brokers refused a batch.
    Refused(RefusedBatch<'a>),
    /// A peer refused the login.
    Barred {
        /// The peer.
        by: Peer,
        /// Whether the next attempt reads the secret again.
        secret_can_change: bool,
    },
    /// Only a human can help, or time is up.
    Final,
}

/// A server that the relay connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// PostgreSQL.
    Source,
    /// Kafka.
    Sink,
}

/// How a producer's failure affects the next session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFault {
    /// The brokers are unreachable, or temporarily refuse the relay.
    Outage,
    /// The relay may not write to a topic, and the next session does not wait for it.
    Forbidden,
    /// Records may fail again in the next session.
    Fatal,
    /// Records were late, and may be again.
    Late,
    /// The brokers refused a batch.
    Refused,
}

impl SinkFault {
    /// True if the same records may fail again.
    pub(super) const fn may_repeat(self) -> bool {
        matches!(self, Self::Fatal | Self::Late | Self::Refused)
    }

    /// True if the next session acts differently.
    pub(super) const fn is_met_otherwise(self) -> bool {
        matches!(self, Self::Forbidden | Self::Refused)
    }
}

/// Refused batches.
#[derive(Debug, Clone, Copy)]
pub struct RefusedBatch<'a> {
    /// The session's analysis.
    pub analysis: &'a RefusalAnalysis,
    /// Possible causes.
    pub records: &'a [Blame],
    /// New batch limit in bytes, because no record stood out.
    pub batch_bytes: Option<u32>,
}

/// Effect of a refused batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalConsequence {
    /// New batch limit for all topics, in bytes.
    pub smaller_batches: Option<u32>,
    /// Whether the next session fails differently.
    pub is_news: bool,
    /// Topics whose settings to query before the next session.
    pub unexplained: Vec<String>,
}

/// What a session leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Records that the next start would repeat.
    pub owed: Owed,
    /// Position up to which everything is confirmed.
    pub settled: Lsn,
    /// Position up to which everything was received.
    pub received: Lsn,
    /// Useful streaming time.
    pub useful: Duration,
    /// Whether any session has streamed.
    pub has_streamed: bool,
    /// Whether the sink has accepted any login.
    pub sink_let_in: bool,
}
