//! The one seam of the relay: where records leave and confirmations come back.
//!
//! Contract, for every implementation:
//! * records of one partition are appended in the order of `send` (G2);
//! * each accepted ticket is answered exactly once by a [`Confirmation`], or the sink reports a
//!   [`SinkError`], after which none of its unanswered tickets will be answered: the session is
//!   dropped and the relay resumes from the acknowledged position;
//! * `Stored` means that the brokers acknowledged it as `acks=all` demands (G1 rests on this);
//! * no call blocks for longer than a few milliseconds.

use crate::ledger::Ticket;
use crate::pipeline::Confirmation;
use crate::route::{Record, Rejection};

/// Why `send` did not take a record.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The queue is full: poll, stop reading, offer the same record again. Back-pressure (G3).
    #[error("the producer's queue is full")]
    Full,
    /// This record can never be sent.
    #[error("the record is refused: {}", .0.reason)]
    Refused(Rejection),
    /// The sink is no longer usable.
    #[error(transparent)]
    Broken(#[from] SinkError),
}

/// Why a sink stopped being usable. All of these are mended by a new session, except where a human
/// has to act; `is_definite` tells which.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// The client library declared the producer dead (out-of-order sequence, fenced epoch, ...).
    #[error("the producer is no longer usable: {0}")]
    Fatal(String),
    /// A batch was refused as a whole because one member is too large; the next session must send
    /// records singly until it is past them.
    #[error("a batch for topic `{topic}` was refused as too large")]
    BatchTooLarge {
        /// The topic of the batch.
        topic: String,
    },
    /// The topic does not exist and the broker does not create it: an outage, retried.
    #[error("topic `{topic}` does not exist")]
    UnknownTopic {
        /// The missing topic.
        topic: String,
    },
    /// Not allowed to write to the topic: an outage, retried.
    #[error("not authorised to write to topic `{topic}`")]
    Unauthorised {
        /// The topic.
        topic: String,
    },
    /// User name, password or mechanism refused.
    #[error("the brokers refused our credentials: {0}")]
    Authentication(String),
    /// The client library refused a setting.
    #[error("the Kafka client refused its settings: {0}")]
    Settings(String),
    /// Anything else that lost a record's order or fate.
    #[error("delivery to topic `{topic}` failed: {reason}")]
    Delivery {
        /// The topic.
        topic: String,
        /// The client library's reason.
        reason: String,
    },
}

/// A place that stores records. See the module's contract.
pub trait Sink {
    /// Hands over one record; the bytes are copied before this returns.
    fn send(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), SendError>;

    /// Serves every delivery report that has arrived, without waiting, and appends the answers.
    fn poll(&mut self, confirmations: &mut Vec<Confirmation>) -> Result<(), SinkError>;

    /// Whether at least one broker is known to answer.
    fn is_connected(&self) -> bool;
}
