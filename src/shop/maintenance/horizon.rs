//! How old a row must be before nobody can need it.
//!
//! Enters: how long messages and dead letters live. Leaves: whether an age is safe. Pure.

use std::time::Duration;

use clap::Args;

use super::table::Table;
use crate::ShopError;
use postrider_service::units::parse_duration;

/// Clocks differ, and cleaners are late: on top of every horizon.
const MARGIN: Duration = Duration::from_hours(24);
/// A record lives until the youngest one of its segment is old enough: segment.ms, by default.
const SEGMENT: Duration = Duration::from_hours(7 * 24);
/// What the guard remembers an answer for: clients have stopped asking by then.
const KEYS: Duration = Duration::from_hours(24);
/// The relay reads the log, not the table; but who has lost a slot sends again from the table.
const OUTBOX: Duration = Duration::from_hours(24);

/// How long a message can come again.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Horizons {
    /// How long the topics keep messages: retention.ms
    #[arg(long, default_value = "7d", value_name = "TIME",
        value_parser = parse_duration)]
    topic_retention: Duration,
    /// How long after that a dead letter may still be sent again
    #[arg(long, default_value = "7d", value_name = "TIME",
        value_parser = parse_duration)]
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
                // What a message of an order meets stands as long as the markers, for those that
                // come late, to find that there is nothing left to do.
                Table::ProcessedMessages | Table::Sagas | Table::Payments | Table::Reservations => {
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
        for table in [Table::Sagas, Table::Payments, Table::Reservations] {
            assert!(check(table, 32).is_ok() && check(table, 31).is_err(), "{table:?}");
        }
        assert!(check(Table::IdempotencyKeys, 2).is_ok());
        assert!(check(Table::IdempotencyKeys, 1).is_err());
        assert!(check(Table::Outbox, 1).is_err());
    }
}
