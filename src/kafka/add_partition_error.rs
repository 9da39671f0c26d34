//! Finds out from librdkafka's log which topic the brokers do not let a Kafka transaction write to (a
//! refused AddPartitionsToTxn), because the error that the library returns does not name the topic.
//!
//! Input: one log line. Output: the topic, the broker's reason, and whether it is a matter of permission;
//! nothing for a line that is about the producer itself, such as one with an old epoch. No I/O.

use rdkafka::types::RDKafkaErrorCode as Code;

/// The brokers do not let a transaction write to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddPartitionError {
    pub(super) topic: String,
    /// The broker's words.
    pub(super) reason: String,
    /// We may not.
    pub(super) denied: bool,
}

/// Answers to a request for a topic that are about who asks.
const OF_THE_PRODUCER: [Code; 5] = [
    Code::InvalidProducerEpoch,
    Code::ProducerFenced,
    Code::InvalidProducerIdMapping,
    Code::InvalidTransactionalState,
    Code::TransactionalIdAuthorizationFailed,
];

impl AddPartitionError {
    /// From the line with which librdkafka 2.12 logs it (`rd_kafka_txn_handle_AddPartitionsToTxn`); the
    /// error that follows does not name the topic.
    pub(super) fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("Failed to add partition \"")?;
        let (topic, rest) = rest.split_once("\" [")?;
        let (_, reason) = rest.split_once("] to transaction: ")?;
        // One that was left alone for another's sake.
        if reason.contains("Operation not attempted") {
            return None;
        }
        // Said of the producer, which hears of it otherwise: another one may have begun.
        if OF_THE_PRODUCER.iter().any(|code| code.to_string().contains(reason)) {
            return None;
        }
        let denied = reason.contains("Topic authorization failed");
        Some(Self { topic: topic.to_owned(), reason: reason.to_owned(), denied })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_transactions_may_not_write_to_is_known_by_its_log_line() {
        let line = |topic: &str, reason: &str| {
            format!(
                "[thrd:main]: a:9092/1: Failed to add partition \"{topic}\" [0] to transaction: \
                 Broker: {reason}"
            )
        };
        assert_eq!(AddPartitionError::read(&line("other", "Operation not attempted")), None);
        let another = "Producer attempted an operation with an old epoch";
        assert_eq!(
            AddPartitionError::read(&line("other", another)),
            None,
            "another producer has begun"
        );
        let error = AddPartitionError::read(&line("a", "Topic authorization failed")).unwrap();
        assert!(error.denied && error.topic == "a", "{error:?}");
    }
}
