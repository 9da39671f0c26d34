//! Interface that applications implement: `Interest`, `Effects` and `Failure`.
//!
//! Invariant: effects are committed together with the message's marker or not at all.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use tokio_postgres::Transaction;

use super::Message;

/// Whether a consumer handles messages of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interest {
    /// The type has effects.
    Handle,
    /// The message is counted and leaves no marker.
    Ignore,
    /// The message becomes a dead letter, to be redriven once the code understands it.
    Unknown,
}

/// The application's part of a consumer.
pub trait Effects: Send + Sync + 'static {
    /// Whether this consumer handles messages of this type. A panic ends the consumer.
    fn interest(&self, event_type: &str) -> Interest;

    /// Applies all effects of the message in `tx`, including rows of the application's own outbox.
    ///
    /// A business refusal (no money, no stock) is **not** a [`Failure`], because a failure rolls
    /// `tx` back. Write it as a result and return `Ok`.
    ///
    /// May be called again after a rollback. It must therefore do nothing outside `tx`, and must
    /// not end the transaction. While it waits, the whole consumer waits.
    ///
    /// Runs in a span `message` at level INFO with `id`, `event_type`, `record.topic`,
    /// `record.partition` and `record.offset`. Its parent can be made of
    /// [`Message::traceparent`](super::Message::traceparent).
    ///
    /// A later message of a key may be tried before an earlier one, in a transaction that is always
    /// rolled back. The earlier one must have failed at least twice, while nothing succeeded, with
    /// a lock conflict, a cancelled statement or an error that may be the database's.
    ///
    /// A panic uses up an attempt, if the program unwinds. With `panic = "abort"` the process ends
    /// and gets the message first again.
    fn apply(
        &self,
        tx: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called on the consumer's thread after each commit that had an effect, for example to wake
    /// another task. If the answer to a commit was lost, the call follows the next commit. It must
    /// return at once; a panic ends the consumer. Its tasks run in the Tokio runtime of
    /// [`Consumer::run`](super::Consumer::run).
    fn committed(&self) {}
}

impl<E: Effects> Effects for Arc<E> {
    fn interest(&self, event_type: &str) -> Interest {
        (**self).interest(event_type)
    }

    fn apply(
        &self,
        tx: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        (**self).apply(tx, message)
    }

    fn committed(&self) {
        (**self).committed();
    }
}

/// Reason why a message could not have its effects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The message will never succeed and becomes a dead letter at once. The dead letter and the
    /// log show the reason, so it must not repeat the payload.
    #[error("{0}")]
    Poison(String),
    /// The message may succeed later. It becomes a dead letter after
    /// [`attempts_max`](super::ConsumerSpec::attempts_max) attempts. An attempt does not count:
    ///
    /// * while the database is unavailable or slow, or a row is locked;
    /// * before another message succeeds, if the error may be the database's, such as a missing
    ///   table;
    /// * more than once a minute, if such an error may pass by itself, such as a full disk.
    ///
    /// A missing foreign key row (23503) and errors that are not from Postgres are retried for at
    /// least [`give_up_after`](super::ConsumerSpec::give_up_after). The log shows the text of
    /// errors that are not from Postgres, so it must not repeat the payload.
    #[error("{0}")]
    Technical(#[source] Box<dyn Error + Send + Sync>),
    /// A dependency other than the consumer's database is not available yet. The message is retried
    /// and uses up no attempt. It becomes a dead letter once other keys have succeeded for
    /// [`contention_max`](super::ConsumerSpec::contention_max). No later message of its key is
    /// tried before. The dead letter and the log show the reason, so it must not repeat the
    /// payload.
    #[error("{0}")]
    Unavailable(String),
}

impl Failure {
    /// Creates a failure of a message that cannot be understood.
    pub fn poison(reason: impl Into<String>) -> Self {
        Self::Poison(reason.into())
    }

    /// Creates a failure that may be transient.
    pub fn technical(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Technical(source.into())
    }

    /// Creates a failure of an unavailable dependency.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable(reason.into())
    }
}

/// Allows `?` on statements.
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Technical(Box::new(error))
    }
}
