//! Why a command on dead letters failed, and what the operator can do about it.

use super::DeadLetterError;
use postrider_kafka::ReaderError;
use postrider_patterns::dead_letter::{PartitionOffset, listed};

#[derive(Debug, thiserror::Error)]
pub enum DeadLettersError {
    #[error(transparent)]
    Topic(#[from] DeadLetterError),
    /// `--raw` writes one value, but several letters have the id.
    #[error("several dead letters have id `{id}`: {}", listed(places))]
    Several {
        /// Id as typed.
        id: String,
        places: Vec<PartitionOffset>,
    },
    /// Named letters, or all letters, cannot be sent again.
    #[error("{count} of the dead letters that were asked for cannot be sent again")]
    Hindered {
        /// Number of letters.
        count: usize,
    },
    /// `--to` names the dead-letter topic.
    #[error("topic `{0}` is the dead-letter topic itself")]
    Circular(String),
    /// `--to` names a topic that is not for rows.
    #[error("topic `{topic}` is not for rows: {reason}")]
    Reserved {
        /// Topic as typed.
        topic: String,
        reason: &'static str,
    },
}

impl DeadLettersError {
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Topic(DeadLetterError::Reader(ReaderError::UnknownTopic(_))) => {
                "name the topic with --from or dead_letters.topic; if the brokers create topics \
                 automatically, the first dead letter creates it"
            }
            Self::Topic(DeadLetterError::Reader(error)) => return error.hint(),
            Self::Topic(
                DeadLetterError::Sink(error) | DeadLetterError::Unconfirmed { source: error, .. },
            ) => return error.hint(),
            Self::Topic(DeadLetterError::Missing(_)) => {
                "list them: postrider dead-letters list --all"
            }
            Self::Topic(error) => return error.hint(),
            Self::Several { .. } => "name one of them by its PARTITION:OFFSET",
            Self::Hindered { .. } => "the plan has the reason and the remedy of each",
            Self::Circular(_) | Self::Reserved { .. } => "name another topic with --to",
        };
        Some(hint.to_owned())
    }
}
