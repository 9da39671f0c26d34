//! Why dead letters were not read or not sent again, and what to do about it.
//!
//! Input: errors of the Kafka side. Output: `DeadLetterError` with its hint; `listed` shortens a long list
//! for such a text. Invariant: no key, payload or password in any text.

use std::fmt::Write as _;

use postrider_core::record::{PartitionOffset, Target};
use postrider_kafka::{ReaderError, SinkError};

/// A situation in which dead letters are not read or not sent again.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// Reading the topic.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// A consumer that has none yet, or a mistyped name.
    #[error("there is no topic `{topic}`, so `{consumer}` has no dead letters")]
    NoDeadLetters {
        /// The consumer, as it was named.
        consumer: String,
        /// The topic of its dead letters.
        topic: String,
        /// The consumers that have such a topic.
        others: Vec<String>,
        /// The command that creates it.
        creation: String,
    },
    /// The brokers sent nothing for too long, before the end was reached.
    #[error("no data from the dead-letter topic for {seconds} s")]
    Unread {
        /// How long.
        seconds: u64,
    },
    /// A named dead letter is not in the topic.
    #[error("there is no dead letter {}", listed(.0))]
    Missing(Vec<Target>),
    /// It was to be redriven, and is not in the topic any more.
    #[error("the dead letter at {0} does not exist any more")]
    Gone(PartitionOffset),
    /// The producer, before anything was sent.
    #[error(transparent)]
    Sink(SinkError),
    /// The producer failed, with these in flight.
    #[error("the dead letter at {first} is not confirmed{}: {source}", and_more(*others))]
    Unconfirmed {
        /// The first of those on their way.
        first: PartitionOffset,
        /// How many more are.
        others: usize,
        /// What happened.
        source: SinkError,
    },
    /// No delivery report for too long.
    #[error(
        "the brokers have confirmed nothing for {seconds} s, first of all the dead letter at {first}"
    )]
    Silent {
        /// How long.
        seconds: u64,
        /// The first of those that wait.
        first: PartitionOffset,
    },
    /// The brokers will never take this one.
    #[error("the dead letter at {at} is refused: {reason}")]
    Refused {
        /// Which.
        at: PartitionOffset,
        /// The brokers' reason.
        reason: String,
    },
    /// It was redriven, but its receipt cannot be stored.
    #[error("the receipt for the dead letter at {at} is refused: {reason}")]
    ReceiptRefused {
        /// Which.
        at: PartitionOffset,
        /// The brokers' reason.
        reason: String,
    },
    /// The caller aborted.
    #[error("aborted with {count} dead letters in flight")]
    Aborted {
        /// How many.
        count: usize,
    },
}

impl DeadLetterError {
    /// Whether the producer cannot be used any more.
    pub(super) const fn is_of_the_producer(&self) -> bool {
        matches!(
            self,
            Self::Sink(_) | Self::Unconfirmed { .. } | Self::Silent { .. } | Self::Aborted { .. }
        )
    }

    /// The exact fix, where it does not depend on the caller's configuration.
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
                "it was stored in its topic, and would be sent once more; allow null values and \
                 keys in the dead-letter topic (cleanup.policy=delete)"
            }
            Self::Aborted { .. } => {
                "repeat the command: those without a receipt are sent once more"
            }
        };
        Some(hint.to_owned())
    }
}

/// Up to ten, and how many more.
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
