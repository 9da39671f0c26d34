//! Why a command on dead letters failed, and what the operator can do about it.
//!
//! Input: errors of reading the topic and of sending again. Output: `DeadLettersError` with its hint. It
//! adds what only the command line can get wrong: an id that several dead letters have, named ones that
//! cannot be sent again, a topic for `--to` that rows must not go to.

use super::DeadLetterError;
use postrider_kafka::ReaderError;
use postrider_patterns::dead_letter::{PartitionOffset, listed};

/// Why a command on dead letters ended early.
#[derive(Debug, thiserror::Error)]
pub enum DeadLettersError {
    /// Reading the topic, or sending again.
    #[error(transparent)]
    Topic(#[from] DeadLetterError),
    /// `--raw` writes one value, and several are meant.
    #[error("several dead letters have id `{id}`: {}", listed(places))]
    Several {
        /// As typed.
        id: String,
        /// Where they are.
        places: Vec<PartitionOffset>,
    },
    /// Some of those that were named cannot be sent again, or none of all.
    #[error("{count} of the dead letters that were asked for cannot be sent again")]
    Hindered {
        /// How many.
        count: usize,
    },
    /// `--to` would send dead letters where they came from.
    #[error("topic `{0}` is the dead-letter topic itself")]
    Circular(String),
    /// `--to` names a topic that is not for rows.
    #[error("topic `{topic}` is not for rows: {reason}")]
    Reserved {
        /// As typed.
        topic: String,
        /// Why.
        reason: &'static str,
    },
}

impl DeadLettersError {
    /// What the operator can do about it.
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
