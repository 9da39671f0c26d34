//! The current status of a consumer: its partitions, its lag, and what it waits for.
//!
//! Input: updates of the group and of transactions. Output: a `ConsumerStatus`, read through
//! [`ConsumerCounters`](super::ConsumerCounters), and the reason why the consumer is not ready, for health
//! checks.

use serde::Serialize;

/// The status of a consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
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
    /// The last transaction found the database unavailable, or a table, column, function or privilege
    /// missing. Only a consumer with messages to process notices.
    pub is_database_unavailable: bool,
    /// The brokers did not answer the last request. There is one every 5 s.
    pub are_brokers_unavailable: bool,
}

impl ConsumerStatus {
    /// Why it cannot process messages, if it cannot.
    pub fn not_ready_reason(&self) -> Option<&'static str> {
        if self.is_database_unavailable {
            Some("the consumer is waiting for its database")
        } else if !self.has_joined {
            Some("the consumer has not joined its group yet")
        } else {
            None
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
        let away = ConsumerStatus { is_database_unavailable: true, ..idle };
        assert!(away.not_ready_reason().unwrap().contains("database"));
    }
}
