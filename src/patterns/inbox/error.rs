//! Errors that end a consumer. Invariant: no text contains a password, a key or a payload.
//! Transient failures are retried instead.

use std::error::Error;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use postrider_kafka::SinkError;

/// Reason why a consumer ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The specification is not valid.
    #[error("invalid specification of the consumer: {0}")]
    Spec(&'static str),
    /// The consumer sets this Kafka setting itself.
    #[error("the Kafka setting `{0}` is set by the consumer and cannot be changed")]
    OwnSetting(String),
    /// librdkafka refuses the settings.
    #[error("cannot create the Kafka consumer")]
    Client(#[source] Box<dyn Error + Send + Sync>),
    /// The Kafka client has failed permanently.
    #[error("the Kafka consumer failed fatally")]
    Fatal(#[source] Box<dyn Error + Send + Sync>),
    /// The client of the dead-letter topic cannot be created.
    #[error("cannot create the producer of dead letters")]
    DeadLetters(#[source] SinkError),
    /// The URL of the cache cannot be parsed. It may contain a password, so it is not repeated.
    #[error("the URL of the cache is not valid")]
    CacheUrl,
    /// The consumer's thread or its runtime does not start.
    #[error("cannot start the consumer's thread")]
    Thread(#[source] std::io::Error),
    /// The consumer was not run in a Tokio runtime.
    #[error("the consumer was not run in a Tokio runtime")]
    NoRuntime,
    /// `Effects::interest` or `Effects::committed` panicked. A panic in `Effects::apply` is a
    /// failed attempt instead.
    #[error("the consumer's thread panicked")]
    Panicked,
}

impl InboxError {
    /// Omits the setting's value, which may be a password and which the library's reason repeats.
    pub(super) fn of_client(error: KafkaError) -> Self {
        let KafkaError::ClientConfig(outcome, reason, name, _) = error else {
            return Self::Client(error.into());
        };
        let reason = if outcome == RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN {
            "no such setting:"
        } else if reason.contains("not available at build time") {
            "not available in this build:"
        } else {
            "value refused:"
        };
        let error = KafkaError::ClientConfig(outcome, reason.to_owned(), name, String::new());
        Self::Client(error.into())
    }

    /// Exact fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::OwnSetting(name) => return Some(format!("leave out `{name}`")),
            Self::CacheUrl => {
                "write it as redis://host:6379; docs/patterns/idempotency-key-redis.md has Cluster and Sentinel"
            }
            Self::NoRuntime => {
                "call `run` from a task of a Tokio runtime, or within `Runtime::block_on`"
            }
            Self::Fatal(_) | Self::Panicked => "start the consumer again",
            Self::Spec(_) | Self::Client(_) | Self::DeadLetters(_) | Self::Thread(_) => {
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::BaseConsumer;

    use super::*;

    #[test]
    fn settings_that_are_refused_are_named_without_their_value() {
        let cases = [
            ("security.protocol", "refused"),
            ("queue.buffering.max.ms", "refused"),
            ("no.such.setting", "no such setting"),
        ];
        for (name, reason) in cases {
            let client: Result<BaseConsumer, _> = ClientConfig::new().set(name, "hunter2").create();
            let error = InboxError::of_client(client.err().unwrap());
            let InboxError::Client(source) = &error else { panic!("{error:?}") };
            let text = format!("{error} {error:?} {source}");
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains(name) && text.contains(reason), "{text}");
        }
    }
}
