//! Classifies a failed delivery by librdkafka's error code.

use rdkafka::types::RDKafkaErrorCode as Code;

use super::SinkError;
use postrider_core::route::{Rejection, RejectionCode};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeliveryFailure {
    /// Nothing else is affected.
    Refuse(Rejection),
    Break(SinkError),
    /// The producer had already failed; the reason is elsewhere.
    Consequence,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FailedRecord<'a> {
    /// librdkafka's name; `none` without one.
    pub(super) codec: &'a str,
    pub(super) topic: &'a str,
    pub(super) partition: Option<i32>,
    pub(super) size: usize,
    pub(super) has_key: bool,
}

pub(super) fn judge(code: Code, case: FailedRecord<'_>) -> DeliveryFailure {
    let topic = case.topic.to_owned();
    match code {
        Code::InvalidTopic => {
            refuse(RejectionCode::InvalidTopic, format!("the broker refuses the name `{topic}`"))
        }
        // Detected before sending, so no batch is involved.
        Code::UnknownPartition => match case.partition {
            Some(partition) => refuse(
                RejectionCode::Refused,
                format!("topic `{topic}` has no partition {partition}"),
            ),
            None => DeliveryFailure::Break(SinkError::UnknownTopic { topic }),
        },
        code if is_about_the_record(code) => of_the_record(code, case),
        // librdkafka 2.12 reports `_DESTROY` for a deleted topic (`rd_kafka_toppar_destroy_final`).
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::BrokerDestroy => {
            DeliveryFailure::Break(SinkError::UnknownTopic { topic })
        }
        code if is_about_the_codec(code, case.codec) => {
            let (codec, reason) = (case.codec.to_owned(), words(code));
            DeliveryFailure::Break(SinkError::CodecRefused { topic, codec, reason })
        }
        Code::TopicAuthorizationFailed => DeliveryFailure::Break(SinkError::Unauthorised { topic }),
        code if is_fencing(code) => DeliveryFailure::Break(SinkError::Fenced(words(code))),
        Code::Fatal | Code::PurgeQueue | Code::PurgeInflight => DeliveryFailure::Consequence,
        code => DeliveryFailure::Break(SinkError::Delivery { topic, reason: words(code) }),
    }
}

/// In a larger batch these codes do not identify the record (KIP-467 names records only sometimes,
/// and never for size).
const fn is_about_the_record(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord
            | Code::InvalidTimestamp
    )
}

/// Azure Event Hubs returns `UnsupportedForMessageFormat` for a compressed batch
/// (twmb/franz-go#144). Apache Kafka returns it for a topic with an old format, whatever the codec.
fn is_about_the_codec(code: Code, codec: &str) -> bool {
    codec != "none"
        && matches!(code, Code::UnsupportedCompressionType | Code::UnsupportedForMessageFormat)
}

pub(super) const fn is_fencing(code: Code) -> bool {
    matches!(code, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch)
}

/// True if the brokers object to the request, not because of their own state.
pub(super) const fn is_a_rule(code: Code) -> bool {
    matches!(code, Code::PolicyViolation | Code::InvalidRequest | Code::UnsupportedForMessageFormat)
}

/// False for codes of the client library.
pub(super) const fn is_of_the_broker(code: Code) -> bool {
    // Kafka's numbers start at 1, except for UNKNOWN_SERVER_ERROR (-1).
    code as i32 > 0 || matches!(code, Code::Unknown)
}

fn of_the_record(code: Code, case: FailedRecord<'_>) -> DeliveryFailure {
    let FailedRecord { topic, size, has_key, .. } = case;
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => refuse(
            RejectionCode::TooLarge,
            format!("a record of {size} bytes exceeds the limit of topic `{topic}`"),
        ),
        Code::InvalidTimestamp => refuse(
            RejectionCode::Refused,
            format!("topic `{topic}` refuses the timestamp (message.timestamp.*.max.ms)"),
        ),
        _ if has_key => refuse(
            RejectionCode::Refused,
            format!("topic `{topic}` refuses the record; the broker's log may say why"),
        ),
        _ => refuse(
            RejectionCode::Refused,
            format!("topic `{topic}` refuses the record (a compacted topic needs a key)"),
        ),
    }
}

fn refuse(code: RejectionCode, reason: String) -> DeliveryFailure {
    DeliveryFailure::Refuse(Rejection { code, reason })
}

pub(super) fn words(code: Code) -> String {
    code.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: FailedRecord<'static> =
        FailedRecord { topic: "t", partition: None, size: 7, has_key: true, codec: "none" };

    #[test]
    fn a_codec_is_refused_only_where_there_is_one() {
        for code in [Code::UnsupportedCompressionType, Code::UnsupportedForMessageFormat] {
            let compressed = FailedRecord { codec: "lz4", ..RECORD };
            let DeliveryFailure::Break(error) = judge(code, compressed) else { panic!("{code}") };
            assert!(matches!(&error, SinkError::CodecRefused { codec, .. } if codec == "lz4"));
            let plain = judge(code, RECORD);
            assert!(
                matches!(plain, DeliveryFailure::Break(SinkError::Delivery { .. })),
                "{plain:?}"
            );
        }
    }

    #[test]
    fn what_a_record_is_may_be_its_fault() {
        for code in [Code::MessageSizeTooLarge, Code::InvalidRecord, Code::InvalidTimestamp] {
            let verdict = judge(code, RECORD);
            assert!(matches!(verdict, DeliveryFailure::Refuse(_)), "{verdict:?}");
        }
    }

    #[test]
    fn outages_are_never_the_records_fault() {
        for code in [Code::UnknownTopicOrPartition, Code::BrokerDestroy] {
            let gone = SinkError::UnknownTopic { topic: "t".into() };
            assert_eq!(judge(code, RECORD), DeliveryFailure::Break(gone));
        }
        assert_eq!(
            judge(Code::TopicAuthorizationFailed, RECORD),
            DeliveryFailure::Break(SinkError::Unauthorised { topic: "t".into() })
        );
        for code in [Code::NotEnoughReplicas, Code::MessageTimedOut, Code::OutOfOrderSequenceNumber]
        {
            let verdict = judge(code, RECORD);
            assert!(
                matches!(verdict, DeliveryFailure::Break(SinkError::Delivery { .. })),
                "{code:?} {verdict:?}"
            );
        }
    }

    #[test]
    fn a_partition_of_its_own_choice_is_the_records_fault() {
        let chosen = FailedRecord { partition: Some(9), ..RECORD };
        assert!(matches!(judge(Code::UnknownPartition, chosen), DeliveryFailure::Refuse(_)));
        assert!(matches!(judge(Code::UnknownPartition, RECORD), DeliveryFailure::Break(_)));
    }

    #[test]
    fn an_outage_is_no_brokers_word_about_a_record() {
        for code in [Code::MessageTimedOut, Code::BrokerTransportFailure, Code::AllBrokersDown] {
            assert!(!is_of_the_broker(code), "{code:?}");
        }
        for code in [Code::Unknown, Code::OutOfOrderSequenceNumber, Code::PolicyViolation] {
            assert!(is_of_the_broker(code), "{code:?}");
        }
    }

    /// Two relays that fence each other must not turn records into dead letters.
    #[test]
    fn g4_what_is_said_of_the_producer_is_no_records_fault() {
        for code in [Code::ProducerFenced, Code::InvalidProducerEpoch] {
            let verdict = judge(code, RECORD);
            assert!(matches!(verdict, DeliveryFailure::Break(SinkError::Fenced(_))), "{verdict:?}");
        }
    }

    #[test]
    fn a_dead_producers_records_say_nothing() {
        assert_eq!(judge(Code::Fatal, RECORD), DeliveryFailure::Consequence);
        assert_eq!(judge(Code::PurgeQueue, RECORD), DeliveryFailure::Consequence);
    }
}
