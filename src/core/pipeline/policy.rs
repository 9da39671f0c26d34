//! The operator's settings for undeliverable rows and updates.

use crate::route::keyword_enum;

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// For rows that cannot be delivered.
    pub rejected: RejectPolicy,
    /// For UPDATEs of outbox rows.
    pub on_update: UpdatePolicy,
}

/// `[route] rejected`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectPolicy {
    /// Send it to a topic, with the reason.
    DeadLetter {
        /// Legal name.
        topic: String,
    },
    /// Stop the relay; the row stays in Postgres.
    Stop,
    /// Skip it, with an audit record.
    Skip,
}

keyword_enum!(
    /// `[outbox] on_update`: an UPDATE never publishes anything.
    UpdatePolicy {
        /// Count it.
        Ignore = "ignore",
        /// Count it; the relay warns.
        Warn = "warn",
        /// Count it; the relay reports an error.
        Error = "error",
        /// Stop the relay.
        Stop = "stop",
    }
);
