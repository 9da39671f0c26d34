//! Defines the operator's settings for rows that cannot be delivered and for updates of outbox rows.
//!
//! [`RejectPolicy`]: send a dead letter, stop, or skip. [`UpdatePolicy`]: ignore, warn, report an error, or
//! stop.

use crate::route::keyword_enum;

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Treatment of a row that cannot be delivered.
    pub rejected: RejectPolicy,
    /// Treatment of an UPDATE of an outbox row.
    pub on_update: UpdatePolicy,
}

/// `[route] rejected`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectPolicy {
    /// Send it to this topic, with the reason in its headers.
    DeadLetter {
        /// A legal topic name.
        topic: String,
    },
    /// Stop the relay; the row stays in Postgres.
    Stop,
    /// Skip it, with an audit record.
    Skip,
}

keyword_enum!(
    /// `[outbox] on_update`. An outbox is append-only: an UPDATE never publishes anything.
    UpdatePolicy {
        /// Count it.
        Ignore = "ignore",
        /// Count it; the relay warns when [`super::Counters::updates`] grows.
        Warn = "warn",
        /// Count it; the relay reports an error when [`super::Counters::updates`] grows.
        Error = "error",
        /// Stop the relay.
        Stop = "stop",
    }
);
