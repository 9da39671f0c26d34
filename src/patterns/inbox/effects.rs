//! The interface that applications implement: which messages they handle (`Interest`), the effects
//! of a message in the database (`Effects`), and the reason of a failure (`Failure`).
//!
//! Input: a `Message` and the transaction in which its marker, the proof that it was processed, is
//! written. Output: the application's rows, in that transaction, or a `Failure`. Invariant: effects
//! of a message are committed together with its marker or not at all.

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
    /// The consumer knows the type and does nothing. The message is counted and leaves no marker.
    Ignore,
    /// The consumer does not know the type: the message becomes a dead letter. Skipping an
    /// unexpected message would lose it silently. A dead letter can be redriven once the code
    /// understands the type.
    Unknown,
}

/// The application's part of a consumer.
pub trait Effects: Send + Sync + 'static {
    /// Returns whether this consumer handles messages of this type. Called before any other method.
    /// A panic here ends the consumer.
    fn interest(&self, event_type: &str) -> Interest;

    /// Applies all effects of the message in `tx`, including rows of the application's own outbox.
    ///
    /// A business refusal (no money, no stock) is **not** a [`Failure`]: write it as a result, with
    /// its event, and return `Ok`. A failure rolls `tx` back, including all rows about the refusal.
    ///
    /// Runs in a span `message` at level INFO with `id`, `event_type`, `record.topic`,
    /// `record.partition` and `record.offset`. The span's parent can be made of
    /// [`Message::traceparent`](super::Message::traceparent).
    ///
    /// May be called again for the same message after a rollback. It must therefore do nothing
    /// outside `tx`: no call to other services, no send. It must not end the transaction. While it
    /// waits, the whole consumer waits.
    ///
    /// A later message of a key may be tried before an earlier one has had its effects, in a
    /// transaction that is always rolled back. This happens only if the earlier message has failed
    /// at least twice and no other message has succeeded in that time.
    ///
    /// The failures must be a lock, a deadlock, a serialization failure, a cancelled statement, or
    /// an error that may be the database's. Such errors are a missing table, a refused privilege, a
    /// limit, a full disk or a lost session. After [`Failure::Unavailable`] no later message of the
    /// key is tried.
    ///
    /// In a program that is built to unwind, a panic rolls `tx` back and uses up an attempt, like
    /// an error. With `panic = "abort"` it ends the process, and the message comes first again:
    /// return a [`Failure`].
    fn apply(
        &self,
        tx: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called on the consumer's thread after each commit that had an effect, for example to wake
    /// another task. If the answer to a commit was lost, it is called after the next commit, even
    /// if that one had no effect. It must return at once. A panic ends the consumer. Tasks that it
    /// spawns run in the Tokio runtime in which [`Consumer::run`](super::Consumer::run) was called.
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

/// Reason why a message could not have its effects. Its whole transaction is rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The message will never succeed and becomes a dead letter at once. The reason goes into the
    /// dead letter and the log, so it must not repeat the payload.
    #[error("{0}")]
    Poison(String),
    /// The message may succeed later. It is tried
    /// [`attempts_max`](super::ConsumerSpec::attempts_max) times before it becomes a dead letter.
    /// An attempt does not count:
    ///
    /// * while the database is unavailable or slow, or a row is locked;
    /// * before another message has had its effects, if the error may be the database's: a missing
    ///   table, a refused privilege, a limit;
    /// * more than once a minute, if such an error may pass by itself: a full disk, a lost session.
    ///
    /// Two kinds of errors are tried for at least
    /// [`give_up_after`](super::ConsumerSpec::give_up_after): a foreign key whose row may come
    /// later (23503), and errors that are not from Postgres, such as a saga that is not started
    /// yet. For errors of Postgres, the log shows the code and the names. For other errors it shows
    /// their text, which must not repeat the payload.
    #[error("{0}")]
    Technical(#[source] Box<dyn Error + Send + Sync>),
    /// A dependency of the effect, other than the consumer's database, is not available yet. The
    /// message is retried with back-off and uses up no attempt. It becomes a dead letter once
    /// messages of other keys have had their effects for
    /// [`contention_max`](super::ConsumerSpec::contention_max) in the meantime. No later message of
    /// its key is tried before. The reason goes into the log, the status and the dead letter, so it
    /// must not repeat the payload.
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

    /// Creates a failure of an unavailable dependency: the message waits, and uses up no attempt.
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
