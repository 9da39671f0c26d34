//! Types with which a Kafka client reports the result of a record.

use crate::ledger::Ticket;
use crate::route::{OwnedRecord, Rejection};

/// Answer to an accepted ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// The record's ticket.
    pub ticket: Ticket,
    /// Result.
    pub outcome: Outcome,
}

/// Result of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Stored with `acks=all`.
    Stored,
    /// Refused for good.
    Refused(Box<Refused>),
}

/// A record that the broker will never accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The record.
    pub record: OwnedRecord,
    /// Reason.
    pub rejection: Rejection,
}

/// A record that may be why the brokers refused a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// The record's ticket.
    pub ticket: Ticket,
    /// Its topic.
    pub topic: String,
    /// See [`content_of`](crate::route::content_of).
    pub content: u64,
    /// Whether nothing else was in flight.
    pub alone: bool,
    /// Objection.
    pub cause: RefusalCause,
    /// Local time of the refusal, in Unix milliseconds.
    pub at_ms: i64,
    /// The brokers' message.
    pub reason: String,
    /// Verdict on this record, if the brokers name it.
    pub rejection: Option<Rejection>,
}

/// Property to which the brokers object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// Size.
    Size,
    /// Missing key.
    Key,
    /// Timestamp.
    Time,
    /// Size, key or timestamp: several records were refused, and the report covers only one.
    OfSeveral,
    /// Not stated.
    Unknown,
    /// Perhaps the brokers' own fault.
    Brokers,
}

impl RefusalCause {
    /// True if the record may be accepted without its timestamp.
    pub(super) const fn may_be_the_time(self) -> bool {
        matches!(self, Self::Time | Self::OfSeveral)
    }
}
