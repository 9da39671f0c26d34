//! Defines the types with which a Kafka client reports the result of a record.
//!
//! [`Confirmation`] says for a ticket whether the record was stored or refused. A [`Refused`]
//! record returns with its bytes, for a dead letter. [`Blame`] names a record that may be why a
//! batch was refused, and the brokers' objection. The types are defined here so that the core
//! depends on no client.

use crate::ledger::Ticket;
use crate::route::{OwnedRecord, Rejection};

/// The answer to one accepted ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// Ticket of the record.
    pub ticket: Ticket,
    /// Result of the record.
    pub outcome: Outcome,
}

/// Result of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Stored by the broker, with the durability of `acks=all`.
    Stored,
    /// Refused by the broker because of its content; sending it again cannot help.
    Refused(Box<Refused>),
}

/// A record that the broker will never accept, with the bytes that a dead letter needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The sent record.
    pub record: OwnedRecord,
    /// The broker's reason.
    pub rejection: Rejection,
}

/// A record that may be why the brokers refused a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Ticket of the record.
    pub ticket: Ticket,
    /// Its topic.
    pub topic: String,
    /// See [`content_of`](crate::route::content_of).
    pub content: u64,
    /// True if nothing else was in flight.
    pub alone: bool,
    /// The brokers' objection.
    pub cause: RefusalCause,
    /// Local time when they refused it, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The brokers' message about the record or its batch.
    pub reason: String,
    /// The brokers' verdict on this record; `None` if they blame the batch, or do not blame the
    /// record.
    pub rejection: Option<Rejection>,
}

/// Property of a record to which the brokers object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// Its size.
    Size,
    /// Its missing key.
    Key,
    /// Its timestamp.
    Time,
    /// One of these. Several records of the batch were refused, and the report covers only one.
    OfSeveral,
    /// Not stated.
    Unknown,
    /// Perhaps none: the fault may be the brokers' own.
    Brokers,
}

impl RefusalCause {
    /// True if the brokers may accept the record without its timestamp.
    pub(super) const fn may_be_the_time(self) -> bool {
        matches!(self, Self::Time | Self::OfSeveral)
    }
}
