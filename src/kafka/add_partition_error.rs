//! Parses from librdkafka's log which topic a Kafka transaction may not write to (a refused
//! AddPartitionsToTxn); the library's error does not name the topic.

use rdkafka::types::RDKafkaErrorCode as Code;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddPartitionError {
    pub(super) topic: String,
    pub(super) reason: String,
    pub(super) denied: bool,
}

const OF_THE_PRODUCER: [Code; 5] = [
    Code::InvalidProducerEpoch,
    Code::ProducerFenced,
    Code::InvalidProducerIdMapping,
    Code::InvalidTransactionalState,
    Code::TransactionalIdAuthorizationFailed,
];

impl AddPartitionError {
    /// Parses a line of librdkafka 2.12 (`rd_kafka_txn_handle_AddPartitionsToTxn`). `None` for a
    /// line about the producer.
    pub(super) fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("Failed to add partition \"")?;
        let (topic, rest) = rest.split_once("\" [")?;
        let (_, reason) = rest.split_once("] to transaction: ")?;
        // Skipped because another topic failed.
        if reason.contains("Operation not attempted") {
            return None;
        }
        // The producer gets its own error: another one may have started.
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
