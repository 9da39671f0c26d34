//! Why dead letters are not read or not sent again, and what to do about it.
//!
//! Enters: errors of the Kafka side. Leaves: [`DeadLetterError`]. What always holds: no key, payload or
//! password in any text.

use std::fmt::Write as _;

use postrider_core::record::{PartitionOffset, Target};
use postrider_kafka::{ReaderError, SinkError};

/// A situation in which dead letters are not read or not sent again.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// Reading the topic.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// A consumer that has none yet, or a name that is mistyped.
    #[error("there is no topic `{topic}`, so `{consumer}` has no dead letters")]
    NoLetters {
        /// The consumer, as it was named.
        consumer: String,
        /// The topic of its dead letters.
        topic: String,
        /// The consumers that have such a topic.
        others: Vec<String>,
        /// The command that creates it.
        creation: String,
    },
    /// The brokers went away, or send nothing, before the end was reached.
    #[error("the brokers have sent nothing of the dead-letter topic for {seconds} s")]
    Unread {
        /// How long.
        seconds: u64,
    },
    /// What was named is not in the topic.
    #[error("there is no dead letter {}", listed(.0))]
    Missing(Vec<Target>),
    /// It was to be sent again, and is not in the topic any more.
    #[error("the dead letter at {0} is gone")]
    Gone(PartitionOffset),
    /// The producer, before anything was sent.
    #[error(transparent)]
    Sink(SinkError),
    /// The producer, with these on their way.
    #[error("the dead letter at {first} is not confirmed{}: {source}", and_more(*others))]
    Unconfirmed {
        /// The first of those on their way.
        first: PartitionOffset,
        /// How many more are.
        others: usize,
        /// What happened.
        source: SinkError,
    },
    /// The producer gave no sign for too long.
    #[error(
        "the brokers have confirmed nothing for {seconds} s; waiting: the dead letter at {first}"
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
    /// It was sent again, but that cannot be written down.
    #[error("the receipt for the dead letter at {at} is refused: {reason}")]
    ReceiptRefused {
        /// Which.
        at: PartitionOffset,
        /// The brokers' reason.
        reason: String,
    },
    /// The caller did not want to wait any more.
    #[error("stopped at once with {count} dead letters on their way")]
    Aborted {
        /// How many.
        count: usize,
    },
}

impl DeadLetterError {
    /// Whether the producer is of no use any more.
    pub(super) const fn is_of_the_sink(&self) -> bool {
        matches!(
            self,
            Self::Sink(_) | Self::Unconfirmed { .. } | Self::Silent { .. } | Self::Aborted { .. }
        )
    }

    /// The exact remedy, where there is one that does not depend on how the caller is configured.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Reader(_) | Self::Sink(_) | Self::Unconfirmed { .. } => return None,
            Self::NoLetters { consumer, topic, others, creation } if others.is_empty() => {
                let end = topic.strip_prefix(consumer).unwrap_or(topic);
                return Some(format!(
                    "is the name `{consumer}` right? no topic ends in `{end}`; for a consumer that is \
                     yet to run: {creation}"
                ));
            }
            Self::NoLetters { consumer, others, .. } => {
                let others = others.join(", ");
                return Some(format!(
                    "is the name `{consumer}` right? there are dead letters of: {others}"
                ));
            }
            Self::Unread { .. } => "check that the brokers are up, and run it again",
            Self::Missing(_) => "list them to see which there are",
            Self::Gone(_) => "retention has removed it; run it again for the rest",
            Self::Silent { .. } => {
                "look for partitions below min.insync.replicas, then run it again: what has a \
                 receipt is not sent twice"
            }
            Self::Refused { .. } => {
                "fix the topic or leave this one out; run it again for the rest: what has a \
                 receipt is not sent twice"
            }
            Self::ReceiptRefused { .. } => {
                "it was stored in its topic, and would be sent once more; allow null values and \
                 keys in the dead-letter topic (cleanup.policy=delete)"
            }
            Self::Aborted { .. } => "run it again: those without a receipt are sent once more",
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
