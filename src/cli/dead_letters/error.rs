//! Why a command on dead letters ended early.

use std::fmt::Write as _;

use super::filter::Target;
use super::letter::Place;
use crate::kafka::{ReaderError, SinkError};

/// Why a command on dead letters ended early.
#[derive(Debug, thiserror::Error)]
pub enum DeadLettersError {
    /// Reading the topic.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// The brokers went away, or send nothing, before the end was reached.
    #[error("the brokers have sent nothing of the dead-letter topic for {seconds} s")]
    Unread {
        /// How long.
        seconds: u64,
    },
    /// What was named is not in the topic.
    #[error("there is no dead letter {}", listed(.0))]
    Missing(Vec<Target>),
    /// `--raw` writes one value, and several are meant.
    #[error("id `{id}` is in several dead letters: {}", listed(places))]
    Several {
        /// As typed.
        id: String,
        /// Where they are.
        places: Vec<Place>,
    },
    /// Some of those that were named cannot be sent again.
    #[error("{count} of the dead letters that were named cannot be sent again")]
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
    /// It was in the plan, and is not in the topic any more.
    #[error("the dead letter at {0} is gone")]
    Gone(Place),
    /// The producer, before anything was sent.
    #[error(transparent)]
    Sink(SinkError),
    /// The producer, with these on their way.
    #[error("the dead letter at {first} is not confirmed{}: {source}", and_more(*others))]
    Unconfirmed {
        /// The first of those on their way.
        first: Place,
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
        first: Place,
    },
    /// The brokers will never take this one.
    #[error("the dead letter at {place} is refused: {reason}")]
    Refused {
        /// Which.
        place: Place,
        /// The brokers' reason.
        reason: String,
    },
    /// It was sent again, but that cannot be written down.
    #[error("the receipt for the dead letter at {place} is refused: {reason}")]
    ReceiptRefused {
        /// Which.
        place: Place,
        /// The brokers' reason.
        reason: String,
    },
    /// A second signal.
    #[error("stopped at once with {count} dead letters on their way")]
    Aborted {
        /// How many.
        count: usize,
    },
}

impl DeadLettersError {
    /// Whether the producer is of no use any more.
    pub(super) const fn is_of_the_sink(&self) -> bool {
        matches!(
            self,
            Self::Sink(_) | Self::Unconfirmed { .. } | Self::Silent { .. } | Self::Aborted { .. }
        )
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Reader(ReaderError::UnknownTopic(_)) => {
                "name the topic with --from or dead_letters.topic; where the brokers create topics \
                 by themselves, it comes into being with the first dead letter"
            }
            Self::Reader(error) => return error.hint(),
            Self::Sink(error) | Self::Unconfirmed { source: error, .. } => return error.hint(),
            Self::Unread { .. } => "check that the brokers are up, and run it again",
            Self::Missing(_) => "see what there is: postrider dead-letters list --all",
            Self::Several { .. } => "name one of them by its place",
            Self::Hindered { .. } => "the plan says of each why, and what helps",
            Self::Circular(_) | Self::Reserved { .. } => "name another topic with --to",
            Self::Gone(_) => "retention has removed it; run it again for the rest",
            Self::Silent { .. } => {
                "look for partitions below min.insync.replicas, then run it again: what has a \
                 receipt is not sent twice"
            }
            Self::Refused { .. } => {
                "mend the topic or leave this one out; run it again for the rest: what has a \
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
fn listed(all: &[impl ToString]) -> String {
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
