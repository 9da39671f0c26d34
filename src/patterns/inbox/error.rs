//! Why a consumer does not start, or ends: `InboxError`.
//!
//! Input: errors of the client libraries. Output: a situation and its remedy. Invariant: no password, key
//! or payload in any text; transient failures, such as an unavailable database or broker, are retried and
//! are not errors here.

use std::error::Error;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use postrider_kafka::SinkError;

/// A situation in which a consumer ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The specification is not valid.
    #[error("invalid specification of the consumer: {0}")]
    Spec(&'static str),
    /// A Kafka setting that the consumer decides on itself.
    #[error("the Kafka setting `{0}` is set by the consumer and cannot be changed")]
    OwnSetting(String),
    /// librdkafka does not take the settings.
    #[error("cannot create the Kafka consumer")]
    Client(#[source] Box<dyn Error + Send + Sync>),
    /// The Kafka client has failed in a way that only a new one fixes.
    #[error("the Kafka consumer failed fatally")]
    Fatal(#[source] Box<dyn Error + Send + Sync>),
    /// The client of dead letters cannot be made.
    #[error("cannot create the producer of dead letters")]
    DeadLetters(#[source] SinkError),
    /// The URL of the cache cannot be parsed. Its text is not repeated: it may contain a password.
    #[error("the URL of the cache is not valid")]
    CacheUrl,
    /// The consumer's thread or its runtime does not start.
    #[error("cannot start the consumer's thread")]
    Thread(#[source] std::io::Error),
    /// The consumer was not run in a Tokio runtime, where what its effects spawn could run.
    #[error("the consumer was not run in a Tokio runtime")]
    NoRuntime,
    /// `Effects::interest` or `Effects::committed` panicked, in a process that is built to unwind. A panic in
    /// `Effects::apply` does not end the consumer: it is a failed attempt. Where panics abort, as in Postrider's own
    /// binaries, each ends the process.
    #[error("the consumer's thread panicked")]
    Panicked,
}

impl InboxError {
    /// The client library's error without the setting's value, which may be a password. The library's own
    /// reason repeats it too.
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

    /// The exact remedy, where there is one.
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
