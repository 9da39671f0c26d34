//! Why a consumer does not start, or ends.
//!
//! Enters: errors of the clients. Leaves: [`InboxError`], which names a situation and its remedy.
//! What always holds: no password, key or payload in any text; what passes by itself, such as a
//! database or a broker that is away, is no error here but waited for. Returned by `Consumer`.

use rdkafka::error::KafkaError;

use crate::dead_letter::DeadLetterError;

/// A situation in which a consumer ends.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// The specification cannot be carried out.
    #[error("the consumer's specification is not possible: {0}")]
    Spec(&'static str),
    /// A Kafka setting that the consumer decides on itself.
    #[error("the Kafka setting `{0}` is the consumer's own")]
    OwnSetting(String),
    /// librdkafka does not take the settings.
    #[error("the Kafka consumer cannot be made")]
    Client(#[source] KafkaError),
    /// The Kafka client has failed in a way that only a new one mends.
    #[error("the Kafka consumer has failed for good")]
    Fatal(#[source] KafkaError),
    /// The client of dead letters cannot be made.
    #[error("dead letters cannot be laid down")]
    DeadLetters(#[source] DeadLetterError),
    /// The URL of the cache is not understood. Its text is not repeated: it may hold a password.
    #[error("the URL of the cache is not understood")]
    CacheUrl,
    /// The table of markers is not there, or not as expected.
    #[error("the table `processed_messages` cannot be used")]
    Markers(#[source] tokio_postgres::Error),
    /// The consumer's thread or its runtime does not start.
    #[error("the consumer's thread does not start")]
    Thread(#[source] std::io::Error),
    /// The application's effects panicked, in a process that is built to unwind; nothing of the batch
    /// at hand was committed. It is no dead letter: the message comes again. Where panics abort, as in
    /// Postrider's own binaries, the process ends instead.
    #[error("the consumer's thread panicked")]
    Panicked,
}

impl InboxError {
    /// The exact remedy, where there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::DeadLetters(source) => return source.hint(),
            Self::OwnSetting(name) => return Some(format!("leave out `{name}`")),
            Self::CacheUrl => "write it as redis://host:6379",
            Self::Markers(_) => {
                "psql -d \"$DATABASE_URL\" -f migrations/0003_application.sql; \
                 GRANT SELECT, INSERT ON processed_messages TO <the consumer's role>"
            }
            Self::Fatal(_) | Self::Panicked => "start the consumer again",
            Self::Spec(_) | Self::Client(_) | Self::Thread(_) => return None,
        };
        Some(hint.to_owned())
    }
}
