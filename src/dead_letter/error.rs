//! What can go wrong with dead letters, and what to do about it.
//!
//! Enters: errors of the Kafka client. Leaves: [`DeadLetterError`]. What always holds: no key and
//! no payload in any text. Returned by the room.

use rdkafka::error::KafkaError;

use super::Place;
use super::office::SUFFIX;

/// A situation in which dead letters are not written, read or sent again.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// librdkafka does not take the settings.
    #[error("the Kafka client cannot be made")]
    Client(#[source] KafkaError),
    /// No broker said what lies in the topic.
    #[error("the brokers do not tell about the topic `{topic}`")]
    Metadata {
        /// The dead-letter topic.
        topic: String,
        /// Why not.
        source: KafkaError,
    },
    /// The brokers are there, and the topic is not.
    #[error("there is no topic `{0}`")]
    NoTopic(String),
    /// Nobody's letters are meant: a consumer that has none yet, or a name that is mistyped.
    #[error("there is no topic `{topic}`, so `{consumer}` has no dead letters")]
    NoLetters {
        /// The consumer, as it was named.
        consumer: String,
        /// The topic of its dead letters.
        topic: String,
        /// The consumers that have such a topic.
        others: Vec<String>,
    },
    /// A record could not be fetched.
    #[error("the topic `{topic}` cannot be read")]
    Read {
        /// The dead-letter topic.
        topic: String,
        /// Why not.
        source: KafkaError,
    },
    /// Nothing came for a while before the end was reached.
    #[error("the brokers sent nothing of the topic `{topic}` for {seconds} s")]
    Silent {
        /// The dead-letter topic.
        topic: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The brokers did not take a record, or did not say so.
    #[error("a record for the topic `{topic}` is not confirmed")]
    Unconfirmed {
        /// Where it was to go.
        topic: String,
        /// Why not.
        source: KafkaError,
    },
    /// What was asked for is not in the topic.
    #[error("there is no dead letter at {0}")]
    Missing(Place),
}

fn creation(topic: &str) -> String {
    format!(
        "kafka-topics.sh --bootstrap-server <address> --create --topic {topic} --config retention.ms=-1"
    )
}

impl DeadLetterError {
    /// The exact remedy, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoTopic(topic) => Some(creation(topic)),
            Self::NoLetters { consumer, topic, others } => Some(if others.is_empty() {
                format!(
                    "is the name `{consumer}` right? no topic ends in `{SUFFIX}`; for a consumer that \
                     is yet to run: {}",
                    creation(topic)
                )
            } else {
                format!(
                    "is the name `{consumer}` right? there are dead letters of: {}",
                    others.join(", ")
                )
            }),
            Self::Missing(_) => Some("list them to see which there are".to_owned()),
            _ => None,
        }
    }
}
