//! The current status of a consumer: its partitions, its lag, and what it waits for.
//!
//! Input: updates of the group and of transactions. Output: a `ConsumerStatus`, read through
//! [`ConsumerCounters`](super::ConsumerCounters), and the reason why the consumer is not ready, for health
//! checks. Invariant: no key and no payload is in it.

use serde::Serialize;

/// The most characters of an event type that are shown: it comes from a header.
const TYPE_CHARS_MAX: usize = 100;

/// The status of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerStatus {
    /// Assigned partitions.
    pub partitions: u64,
    /// Whether the group has ever assigned it partitions; with more members than partitions some have none.
    pub has_joined: bool,
    /// Messages in the assigned partitions that are not handled; updated every 5 s, and `None` while the
    /// brokers do not answer. The end of a Kafka transaction counts as a message.
    pub lag_messages: Option<u64>,
    /// When a message was last handled, in milliseconds since the Unix epoch; `None`: not yet.
    pub progress_ms: Option<i64>,
    /// The last transaction found the database unavailable, or no message has had its effects since one
    /// failed in a way that may be the database's: a missing table, a refused privilege, a full disk. A
    /// consumer without messages to process asks the database every 5 s.
    pub is_database_unavailable: bool,
    /// The brokers did not answer the last request. There is one every 5 s.
    pub are_brokers_unavailable: bool,
    /// Messages that wait for another attempt, those of the same keys behind them, and those that wait for earlier
    /// ones of their aggregates.
    pub waiting_messages: u64,
    /// Of those that failed, the one that has done so for the longest time.
    pub failing: Option<FailingMessage>,
}

/// A message that has failed and waits for another attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailingMessage {
    /// The first 100 characters of it.
    pub event_type: String,
    /// Why it failed last; of an error of Postgres the SQLSTATE and names.
    pub reason: String,
    /// When it failed first, in milliseconds since the Unix epoch.
    pub first_failed_ms: i64,
}

impl FailingMessage {
    pub(super) fn new(event_type: &str, reason: &str, first_failed_ms: i64) -> Self {
        let event_type = event_type.chars().take(TYPE_CHARS_MAX).collect();
        Self { event_type, reason: reason.to_owned(), first_failed_ms }
    }
}

impl ConsumerStatus {
    /// Why it cannot process messages, if it cannot. One that processes others while some fail can:
    /// see [`failing`](Self::failing).
    pub fn not_ready_reason(&self) -> Option<String> {
        match &self.failing {
            Some(FailingMessage { event_type, reason, .. }) if self.is_database_unavailable => {
                Some(format!(
                    "the consumer is waiting for its database: no message has succeeded since one of type \
                     `{event_type}` failed ({reason})"
                ))
            }
            _ if self.is_database_unavailable => {
                Some("the consumer is waiting for its database".to_owned())
            }
            _ if !self.has_joined => Some("the consumer has not joined its group yet".to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_without_its_database_or_its_group_cannot_work() {
        let fresh = ConsumerStatus::default();
        assert!(fresh.not_ready_reason().unwrap().contains("group"));
        // Others may have taken them all over again.
        let idle = ConsumerStatus { has_joined: true, ..fresh };
        assert_eq!(idle.not_ready_reason(), None);
        let away = ConsumerStatus { is_database_unavailable: true, ..idle.clone() };
        assert!(away.not_ready_reason().unwrap().ends_with("database"));
        let failing = Some(FailingMessage::new(&"Paid".repeat(100), "SQLSTATE 42P01", 1));
        let one_fails = ConsumerStatus { failing, ..idle };
        assert_eq!(one_fails.not_ready_reason(), None);
        let all_fail = ConsumerStatus { is_database_unavailable: true, ..one_fails };
        let why = all_fail.not_ready_reason().unwrap();
        assert!(why.contains("`PaidPaid") && why.contains("42P01") && why.len() < 250, "{why}");
    }
}
