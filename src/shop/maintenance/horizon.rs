//! How old a row must be before nobody can need it.
//!
//! Enters: how long messages and dead letters live. Leaves: whether an age is safe. Pure.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::shop::ShopError;

/// Clocks differ, and cleaners are late: on top of every horizon.
const MARGIN: Duration = Duration::from_hours(24);
/// A record lives until the youngest one of its segment is old enough: segment.ms, by default.
const SEGMENT: Duration = Duration::from_hours(7 * 24);
/// What the guard remembers an answer for: clients have stopped asking by then.
const KEYS: Duration = Duration::from_hours(24);
/// The relay reads the log, not the table; but who has lost a slot sends again from the table.
const OUTBOX: Duration = Duration::from_hours(24);

/// A table that grows for ever unless it is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Table {
    /// Messages that consumers have done.
    #[value(name = "processed_messages")]
    ProcessedMessages,
    /// Requests that have had their effect.
    #[value(name = "idempotency_keys")]
    IdempotencyKeys,
    /// Events that were written.
    #[value(name = "outbox")]
    Outbox,
}

impl Table {
    /// All of them.
    pub(super) const ALL: [Self; 3] =
        [Self::ProcessedMessages, Self::IdempotencyKeys, Self::Outbox];

    /// As the migrations call it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_messages",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::Outbox => "outbox",
        }
    }

    /// The column that says how old a row is.
    pub(super) const fn age(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_at",
            Self::IdempotencyKeys | Self::Outbox => "created_at",
        }
    }
}

/// How long a message can come again.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Horizons {
    /// How long the topics keep messages: retention.ms
    #[arg(long, default_value = "7d", value_name = "TIME",
        value_parser = crate::shop::cli::parse_duration)]
    topic_retention: Duration,
    /// How long after that a dead letter may still be sent again
    #[arg(long, default_value = "7d", value_name = "TIME",
        value_parser = crate::shop::cli::parse_duration)]
    redrive_horizon: Duration,
}

impl Horizons {
    /// Refuses an age at which a row of this table may still be needed.
    pub(super) fn check(&self, table: Table, older_than: Duration) -> Result<(), ShopError> {
        let safe = self.safe(table);
        if older_than >= safe {
            return Ok(());
        }
        Err(ShopError::TooYoung(format!(
            "rows of `{}` may be needed for {} hours; --older-than is {}",
            table.name(),
            safe.as_secs() / 3600,
            older_than.as_secs() / 3600,
        )))
    }

    fn safe(&self, table: Table) -> Duration {
        MARGIN
            + match table {
                // A topic may hold a message that long, then a dead letter, then, sent again, the
                // topic once more, for all who read it.
                Table::ProcessedMessages => {
                    2 * (self.topic_retention + SEGMENT) + self.redrive_horizon
                }
                Table::IdempotencyKeys => KEYS,
                Table::Outbox => OUTBOX,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn a_marker_outlives_everything_that_can_bring_its_message_back() {
        let horizons = Horizons { topic_retention: 7 * DAY, redrive_horizon: 3 * DAY };
        let check = |table, days| horizons.check(table, days * DAY);
        assert!(check(Table::ProcessedMessages, 32).is_ok());
        let error = check(Table::ProcessedMessages, 31).unwrap_err();
        assert!(error.to_string().contains("768 hours"), "{error}");
        assert!(check(Table::IdempotencyKeys, 2).is_ok());
        assert!(check(Table::IdempotencyKeys, 1).is_err());
        assert!(check(Table::Outbox, 1).is_err());
    }
}
