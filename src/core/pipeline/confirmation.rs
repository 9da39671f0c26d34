//! Defines the types with which a Kafka client reports what became of a record.
//!
//! [`Confirmation`] says for a ticket whether the record was stored or refused; a [`Refused`] record comes
//! back with its bytes, of which a dead letter is made. [`Blame`] names a record that may be the reason why
//! a batch was refused, and what the brokers object to. Defined here so that the core depends on no client.

use crate::ledger::Ticket;
use crate::route::{OwnedRecord, Rejection};

/// The answer to one accepted ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// Which record.
    pub ticket: Ticket,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Stored by the broker, as durably as `acks=all` promises.
    Stored,
    /// Refused by the broker for what it is; sending it again cannot help.
    Refused(Box<Refused>),
}

/// A record the broker will never take, with the bytes it takes to make a dead letter of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The record as it was sent.
    pub record: OwnedRecord,
    /// The broker's reason.
    pub rejection: Rejection,
}

/// A record that may be the reason why the brokers refused a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Which record.
    pub ticket: Ticket,
    /// Where it was to go.
    pub topic: String,
    /// See [`content_of`](crate::route::content_of).
    pub content: u64,
    /// It was sent alone: nothing else was under way.
    pub alone: bool,
    /// What of it the brokers object to.
    pub cause: RefusalCause,
    /// What our clock showed when they had refused it, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// What they said, of it or of its batch.
    pub reason: String,
    /// The brokers' verdict on this very record; `None` where they blame the batch, or do not say that
    /// the record is at fault.
    pub rejection: Option<Rejection>,
}

/// What of a record the brokers may object to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// How large it is.
    Size,
    /// That it has no key.
    Key,
    /// Its timestamp.
    Time,
    /// Anything of these: several records of its batch were refused, and for what is told only of one.
    OfSeveral,
    /// They do not say.
    Unknown,
    /// Perhaps nothing: the fault may be their own.
    Brokers,
}

impl RefusalCause {
    /// Whether the brokers may take a record without a time, where they refused the same with one.
    pub(super) const fn may_be_the_time(self) -> bool {
        matches!(self, Self::Time | Self::OfSeveral)
    }
}
