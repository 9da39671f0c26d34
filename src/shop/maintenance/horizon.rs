//! Minimum age at which `shop maintain` may delete a row, so that a redelivered message is still
//! recognised as processed.

use std::time::Duration;

use clap::Args;

use super::table::CleanupTable;
use crate::ShopError;
use postrider_patterns::inbox::TopicRetention;
use postrider_service::units::parse_duration;

/// Clock skew and late retention, in every horizon.
const MARGIN: Duration = Duration::from_hours(24);
/// Default of segment.ms. A record is kept until the newest one of its segment expires.
const SEGMENT_MS: Duration = Duration::from_hours(7 * 24);
/// Time for which the guard caches a response. Clients do not retry later.
const IDEMPOTENCY_KEY_TTL: Duration = Duration::from_hours(24);
/// After a lost slot, rows are resent from the table.
const OUTBOX: Duration = Duration::from_hours(24);

/// How long a message can be redelivered.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Horizons {
    /// How long the topics keep messages: retention.ms; refused where Kafka says that they keep them longer
    #[arg(long, default_value = "7d", value_name = "TIME",
        value_parser = parse_duration)]
    topic_retention: Duration,
    /// How long after that a dead letter may still be sent again
    #[arg(long, default_value = "7d", value_name = "TIME",
        value_parser = parse_duration)]
    redrive_horizon: Duration,
}

impl Horizons {
    pub(super) fn check(&self, table: CleanupTable, older_than: Duration) -> Result<(), ShopError> {
        let safe = self.safe(table);
        if older_than >= safe {
            return Ok(());
        }
        Err(ShopError::TooRecent(format!(
            "rows of `{}` must be kept for {} hours; --older-than is {}",
            table.name(),
            safe.as_secs() / 3600,
            older_than.as_secs() / 3600,
        )))
    }

    pub(super) fn check_topics(&self, topics: &[TopicRetention]) -> Result<(), ShopError> {
        let assumed = self.topic_retention + SEGMENT_MS;
        let hours = |time: Duration| time.as_millis().div_ceil(3_600_000);
        for TopicRetention { topic, longest, .. } in topics {
            let kept = match longest {
                Some(longest) if *longest <= assumed => continue,
                Some(longest) => format!("for up to {} hours", hours(*longest)),
                None => "for ever".to_owned(),
            };
            return Err(ShopError::TopicOutlives(format!(
                "the topic `{topic}` keeps records {kept}, and the ages here are safe for {} hours",
                hours(assumed)
            )));
        }
        Ok(())
    }

    fn safe(&self, table: CleanupTable) -> Duration {
        MARGIN
            + match table {
                // A message may stay in its topic and then in the dead-letter topic, and a redrive
                // puts it into its topic again. Sagas, payments, reservations and notifications
                // also recognise late messages.
                CleanupTable::ProcessedMessages
                | CleanupTable::Sagas
                | CleanupTable::Payments
                | CleanupTable::Reservations
                | CleanupTable::Notifications => {
                    2 * (self.topic_retention + SEGMENT_MS) + self.redrive_horizon
                }
                CleanupTable::IdempotencyKeys => IDEMPOTENCY_KEY_TTL,
                CleanupTable::Outbox => OUTBOX,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn a_marker_outlives_every_redelivery_of_its_message() {
        let horizons = Horizons { topic_retention: 7 * DAY, redrive_horizon: 3 * DAY };
        let check = |table, days| horizons.check(table, days * DAY);
        assert!(check(CleanupTable::ProcessedMessages, 32).is_ok());
        let error = check(CleanupTable::ProcessedMessages, 31).unwrap_err();
        assert!(error.to_string().contains("768 hours"), "{error}");
        for table in [CleanupTable::Sagas, CleanupTable::Payments, CleanupTable::Reservations] {
            assert!(check(table, 32).is_ok() && check(table, 31).is_err(), "{table:?}");
        }
        assert!(check(CleanupTable::IdempotencyKeys, 2).is_ok());
        assert!(check(CleanupTable::IdempotencyKeys, 1).is_err());
        assert!(check(CleanupTable::Outbox, 1).is_err());
    }

    #[test]
    fn a_topic_that_keeps_messages_longer_than_assumed_is_refused_by_name() {
        let horizons = Horizons { topic_retention: 7 * DAY, redrive_horizon: 7 * DAY };
        let of = |longest| {
            let topic = |name: &str, longest| TopicRetention::new(name, longest);
            horizons.check_topics(&[topic("short", Some(DAY)), topic("orders", longest)])
        };
        assert!(of(Some(14 * DAY)).is_ok());
        let error = of(Some(14 * DAY + Duration::from_millis(1))).unwrap_err();
        assert!(
            error.to_string().contains("`orders` keeps records for up to 337 hours"),
            "{error}"
        );
        let error = of(None).unwrap_err();
        assert!(error.to_string().contains("`orders` keeps records for ever"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
