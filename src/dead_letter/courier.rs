//! Sends single records and hears whether they are stored.
//!
//! Enters: a record's parts. Leaves: a [`Receipt`] that is filled in once the brokers have spoken.
//! What always holds: a receipt says `Ok` only after all in-sync replicas have the record. Records
//! are few here, so nothing is batched or bounded. Called by `redrive` and by `inbox`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::{RDKafkaConfRes, RDKafkaErrorCode};
use rdkafka::{ClientConfig, ClientContext};

use super::{DeadLetterError, Header};
use crate::log_throttle::LogThrottle;

/// How long the brokers may take for a record before its sender decides anew.
const DELIVERY_LIMIT_MS: &str = "30000";
/// How long one question to a broker may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// As large as librdkafka allows: what was received once is not refused here, but by the topic.
const RECORD_BYTES_MAX: &str = "1000000000";

/// Empty until the brokers have spoken.
pub(crate) type Receipt = Arc<OnceLock<Result<(), KafkaError>>>;

/// A record to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parcel<'a> {
    pub(crate) topic: &'a str,
    /// By the key where there is none.
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: &'a [Header],
}

/// An idempotent producer.
pub(crate) struct Courier {
    producer: BaseProducer<Ear>,
}

impl Courier {
    /// Connects in the background.
    pub(crate) fn new(settings: &[(String, String)]) -> Result<Self, DeadLetterError> {
        let mut config = ClientConfig::new();
        for (name, value) in settings {
            config.set(name, value);
        }
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("message.max.bytes", RECORD_BYTES_MAX)
            .set("message.timeout.ms", DELIVERY_LIMIT_MS)
            // As the relay and Java's clients choose, so that a key keeps its partition.
            .set("partitioner", "murmur2_random")
            .set_log_level(RDKafkaLogLevel::Critical);
        let ear = Ear::default();
        let client = |error| DeadLetterError::Client(valueless(error));
        Ok(Self { producer: config.create_with_context(ear).map_err(client)? })
    }

    /// Hands a record over; the receipt is filled in by a later [`Courier::poll`].
    pub(crate) fn send(&self, parcel: &Parcel<'_>) -> Result<Receipt, KafkaError> {
        let receipt = Receipt::default();
        let headers = OwnedHeaders::new_with_capacity(parcel.headers.len());
        let headers = parcel.headers.iter().fold(headers, |headers, (key, value)| {
            headers.insert(KafkaHeader { key, value: value.as_deref() })
        });
        let mut record =
            BaseRecord::<[u8], [u8], Receipt>::with_opaque_to(parcel.topic, Arc::clone(&receipt))
                .headers(headers);
        record.partition = parcel.partition;
        record.key = parcel.key;
        record.payload = parcel.value;
        self.producer.send(record).map_err(|(error, _)| error)?;
        Ok(receipt)
    }

    /// Fills in what has been heard, waiting for it at most so long.
    pub(crate) fn poll(&self, limit: Duration) {
        self.producer.poll(limit);
    }

    /// Sends and waits, for callers that may block.
    pub(crate) fn deliver(&self, parcel: &Parcel<'_>) -> Result<(), DeadLetterError> {
        let failed =
            |source| DeadLetterError::Unconfirmed { topic: parcel.topic.to_owned(), source };
        let receipt = self.send(parcel).map_err(failed)?;
        // Ends: librdkafka fills in the receipt when its own limit is over.
        loop {
            self.poll(Duration::from_millis(100));
            if let Some(outcome) = receipt.get() {
                return outcome.clone().map_err(failed);
            }
        }
    }

    /// Whether the topic is there; brokers that create topics by themselves create it now. What
    /// else they say of it, such as that nobody may know, is an error.
    pub(crate) fn finds(&self, topic: &str) -> Result<bool, KafkaError> {
        let metadata = self.producer.client().fetch_metadata(Some(topic), ASK_LIMIT)?;
        let Some(found) = metadata.topics().first() else { return Ok(false) };
        match found.error().map(RDKafkaErrorCode::from) {
            None => Ok(!found.partitions().is_empty()),
            Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition) => {
                Ok(false)
            }
            Some(code) => Err(KafkaError::MetadataFetch(code)),
        }
    }

    /// Whether the client has failed in a way that only a new one mends.
    pub(crate) fn is_broken(&self) -> bool {
        self.producer.client().fatal_error().is_some()
    }
}

impl std::fmt::Debug for Courier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Courier").finish_non_exhaustive()
    }
}

/// Whether the brokers will never take a record of that size.
pub(crate) fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize)
    )
}

/// The same error without the setting's value, which may be a password. The library's own reason
/// repeats it too.
pub(crate) fn valueless(error: KafkaError) -> KafkaError {
    let KafkaError::ClientConfig(outcome, reason, name, _) = error else { return error };
    let reason = if outcome == RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN {
        "there is no such setting:"
    } else if reason.contains("not available at build time") {
        "what it asks for is not in this build:"
    } else {
        "its value is refused:"
    };
    KafkaError::ClientConfig(outcome, reason.to_owned(), name, String::new())
}

/// What the client says of its own accord.
#[derive(Default)]
struct Ear(Mutex<LogThrottle>);

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(?level, facility, message, "the Kafka client says");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let mut throttle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if throttle.is_due(&error.to_string()) {
            tracing::warn!(%error, reason, "the Kafka client has trouble");
        } else {
            tracing::debug!(%error, reason, "the Kafka client has trouble");
        }
    }
}

impl ProducerContext for Ear {
    type DeliveryOpaque = Receipt;

    fn delivery(&self, result: &DeliveryResult<'_>, receipt: Receipt) {
        let outcome = result.as_ref().map(drop).map_err(|(error, _)| error.clone());
        // Each record is reported once, so the receipt is empty.
        let _ = receipt.set(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_refused_are_named_without_their_value() {
        let cases = [
            ("security.protocol", "refused"),
            ("queue.buffering.max.ms", "refused"),
            ("no.such.setting", "no such setting"),
        ];
        for (name, reason) in cases {
            let settings = [(name.to_owned(), "hunter2".to_owned())];
            let error = Courier::new(&settings).unwrap_err();
            let DeadLetterError::Client(source) = &error else { panic!("{error:?}") };
            let text = format!("{error} {error:?} {source}");
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains(name) && text.contains(reason), "{text}");
        }
    }
}
