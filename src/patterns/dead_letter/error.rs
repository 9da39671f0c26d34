//! Errors of reading and redriving dead letters. Invariant: no text contains a key, a payload or a
//! password.

use std::fmt::Write as _;

use postrider_core::record::{PartitionOffset, Target};
use postrider_kafka::{ReaderError, SinkError};

/// Reason why dead letters could not be read or redriven.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// Reading the topic failed.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// The consumer has no dead-letter topic yet, or its name is mistyped.
    #[error("there is no topic `{topic}`, so `{consumer}` has no dead letters")]
    NoDeadLetters {
        /// Consumer name as the caller gave it.
        consumer: String,
        /// Name of its dead-letter topic.
        topic: String,
        /// Consumers that have a dead-letter topic.
        others: Vec<String>,
        /// Command that creates the topic.
        creation: String,
    },
    /// The brokers sent nothing for `seconds` before the end of the topic.
    #[error("no data from the dead-letter topic for {seconds} s")]
    Unread {
        /// Length of the silence in seconds.
        seconds: u64,
    },
    /// A named dead letter is not in the topic.
    #[error("there is no dead letter {}", listed(.0))]
    Missing(Vec<Target>),
    /// A selected dead letter is no longer in the topic.
    #[error("the dead letter at {0} does not exist any more")]
    Gone(PartitionOffset),
    /// The producer failed before any record was sent.
    #[error(transparent)]
    Sink(SinkError),
    /// The producer failed while records were in flight.
    #[error("the dead letter at {first} is not confirmed{}: {source}", and_more(*others))]
    Unconfirmed {
        /// First dead letter in flight.
        first: PartitionOffset,
        /// Number of other dead letters in flight.
        others: usize,
        /// Error of the producer.
        source: SinkError,
    },
    /// The brokers confirmed no record for `seconds`.
    #[error(
        "the brokers have confirmed nothing for {seconds} s, first of all the dead letter at {first}"
    )]
    Silent {
        /// Length of the silence in seconds.
        seconds: u64,
        /// First dead letter without a confirmation.
        first: PartitionOffset,
    },
    /// The brokers will never accept this record.
    #[error("the dead letter at {at} is refused: {reason}")]
    Refused {
        /// Position of the dead letter.
        at: PartitionOffset,
        /// The brokers' reason.
        reason: String,
    },
    /// The dead letter was redriven, but its receipt cannot be stored.
    #[error("the receipt for the dead letter at {at} is refused: {reason}")]
    ReceiptRefused {
        /// Position of the dead letter.
        at: PartitionOffset,
        /// The brokers' reason.
        reason: String,
    },
    /// The caller aborted the redrive.
    #[error("aborted with {count} dead letters in flight")]
    Aborted {
        /// Number of records without a confirmation.
        count: usize,
    },
}

impl DeadLetterError {
    pub(super) const fn is_of_the_producer(&self) -> bool {
        matches!(
            self,
            Self::Sink(_) | Self::Unconfirmed { .. } | Self::Silent { .. } | Self::Aborted { .. }
        )
    }

    /// Exact fix, if it does not depend on the caller's configuration.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Reader(_) | Self::Sink(_) | Self::Unconfirmed { .. } => return None,
            Self::NoDeadLetters { consumer, topic, others, creation } if others.is_empty() => {
                let end = topic.strip_prefix(consumer).unwrap_or(topic);
                return Some(format!(
                    "is the name `{consumer}` right? no topic ends in `{end}`; for a consumer that is \
                     yet to run: {creation}"
                ));
            }
            Self::NoDeadLetters { consumer, others, .. } => {
                let others = others.join(", ");
                return Some(format!(
                    "is the name `{consumer}` right? there are dead letters of: {others}"
                ));
            }
            Self::Unread { .. } => "check that the brokers are running, then repeat the command",
            Self::Missing(_) => "list the dead letters to see which exist",
            Self::Gone(_) => "retention has deleted it; repeat the command for the rest",
            Self::Silent { .. } => {
                "look for partitions below min.insync.replicas, then repeat the command: dead letters \
                 with a receipt are not sent twice"
            }
            Self::Refused { .. } => {
                "fix the topic or exclude this one, then repeat the command: dead letters with a \
                 receipt are not sent twice"
            }
            Self::ReceiptRefused { .. } => {
                "it was stored in its topic, and would be sent again; allow null values and keys \
                 in the dead-letter topic (cleanup.policy=delete)"
            }
            Self::Aborted { .. } => "repeat the command: letters without a receipt are sent again",
        };
        Some(hint.to_owned())
    }
}

/// Lists up to ten items and counts the rest.
pub fn listed(all: &[impl ToString]) -> String {
    const MOST: usize = 10;
    let mut text = all.iter().take(MOST).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if all.len() > MOST {
        let _ = write!(text, " and {} more", all.len() - MOST);
    }
    text
}

fn and_more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(", nor {count} sent with it") }
}
