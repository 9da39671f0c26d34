//! Defines the types that tell the supervisor how a session failed and what it left.
//!
//! [`SessionFailure`] and [`SinkFault`] classify errors by what the supervisor does next; the caller maps
//! the errors of its libraries to them and keeps their texts. [`RefusedBatch`] holds what the brokers
//! refused, [`RefusalConsequence`] what follows for the next session, and [`Left`] what a session leaves: unconfirmed
//! records, positions, and whether it did useful work.

use std::time::Duration;

use crate::lsn::Lsn;
use crate::pipeline::{Blame, RefusalAnalysis};
use crate::session::Owed;

/// What ended a session, or kept it from beginning.
#[derive(Debug, Clone, Copy)]
pub enum SessionFailure<'a> {
    /// It passes by itself, and says nothing of the next session.
    Transient,
    /// Another process has the slot.
    Held,
    /// The server was silent for too long.
    Silent,
    /// A message of the log could not be read. It is there.
    Unreadable(Lsn),
    /// The producer ended.
    Sink(SinkFault),
    /// The brokers refused records, and with them a batch.
    Refused(RefusedBatch<'a>),
    /// A peer did not let the relay in. That says nothing of the source and of what is stored.
    Barred {
        /// Who.
        by: Peer,
        /// Whether the next attempt reads the secret again, and so may present another one.
        secret_can_change: bool,
    },
    /// Only a human can help, or no time is left.
    Final,
}

/// Whom a relay connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Where rows come from.
    Source,
    /// Where records go.
    Sink,
}

/// What the end of a producer means for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFault {
    /// The brokers are away, or do not let us now.
    Outage,
    /// A topic is forbidden, and the next session does not wait for it.
    Forbidden,
    /// A session that sends the same may end in the same way.
    Fatal,
    /// Likewise: records did not reach the brokers in time.
    Late,
    /// Likewise: a batch was refused.
    Refused,
}

impl SinkFault {
    /// Whether a session that sends the same may end in the same way, and no outage need be the reason.
    pub(super) const fn may_repeat(self) -> bool {
        matches!(self, Self::Fatal | Self::Late | Self::Refused)
    }

    /// Whether the next session does otherwise, so that it need not wait.
    pub(super) const fn is_met_otherwise(self) -> bool {
        matches!(self, Self::Forbidden | Self::Refused)
    }
}

/// A refused batch, or several.
#[derive(Debug, Clone, Copy)]
pub struct RefusedBatch<'a> {
    /// What the session made of it.
    pub analysis: &'a RefusalAnalysis,
    /// The records that may be at fault.
    pub records: &'a [Blame],
    /// Batches must not be larger than so many bytes: no record stood out.
    pub batch_bytes: Option<u32>,
}

/// What came of a refused batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalConsequence {
    /// From now on no batch of any topic is larger than this.
    pub smaller_batches: Option<u32>,
    /// The next session will not end the same way.
    pub is_news: bool,
    /// Topics whose settings may say why, and are to be asked for before it.
    pub unexplained: Vec<String>,
}

/// What a session leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// What it and those before it have sent and the next start would repeat.
    pub owed: Owed,
    /// Everything up to here is confirmed, by the last session that streamed.
    pub settled: Lsn,
    /// And this much was received.
    pub received: Lsn,
    /// How long it streamed to some purpose.
    pub useful: Duration,
    /// Whether it, or one before it, streamed.
    pub has_streamed: bool,
    /// Whether the sink let it in, or one before it.
    pub sink_let_in: bool,
}
