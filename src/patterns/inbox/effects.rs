//! The interface that applications implement: which messages they handle (`Interest`), what a message does
//! in the database (`Effects`), and why it could not (`Failure`).
//!
//! Input: a `Message` and the transaction in which its marker, the proof that it was processed, is written.
//! Output: the application's rows, in that transaction, or a `Failure`. Invariant: effects of a message are
//! committed together with its marker or not at all.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use tokio_postgres::Transaction;

use super::Message;

/// Whether a consumer handles messages of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interest {
    /// It has effects.
    Handle,
    /// The consumer knows it and does nothing: it is counted and leaves no marker.
    Ignore,
    /// The consumer does not know it: a dead letter. Skipping what nobody foresaw would lose it
    /// without a word, and once the code understands it the dead letter can be sent again.
    Unknown,
}

/// The application's half of a consumer.
pub trait Effects: Send + Sync + 'static {
    /// Whether this consumer handles messages of this type. Called before anything else. A panic here ends the
    /// consumer.
    fn interest(&self, event_type: &str) -> Interest;

    /// Does in `tx` all that the message asks for, rows of the application's own outbox included.
    ///
    /// A business refusal (no money, no stock) is **not** a [`Failure`]: write it as a result, with its event,
    /// and return `Ok`. A failure rolls `tx` back, and with it whatever was written about the refusal.
    ///
    /// Runs in a span `message` at level INFO with `id`, `event_type`, `record.topic`, `record.partition` and
    /// `record.offset`; [`Message::traceparent`](super::Message::traceparent) is what its parent may be made of.
    ///
    /// May be called again for the same message after a rollback, so nothing outside of `tx` may be
    /// done here: no call to others, no send. It must not end the transaction. What it waits for, it makes the whole
    /// consumer wait for.
    ///
    /// A later message of a key may be tried before an earlier one has had its effects, in a transaction that is rolled
    /// back whatever this returns. This happens only if the earlier message has failed at least twice and no other
    /// message has succeeded in that time. The failures must be a lock, a deadlock, a serialization failure, a cancelled
    /// statement, or an error that may be the database's: a missing table, a refused privilege, a limit, a full disk, a
    /// lost session. After [`Failure::Unavailable`] no later message of the key is tried.
    ///
    /// A panic rolls `tx` back and uses up an attempt, like an error, in a program that is built to unwind. Built with
    /// `panic = "abort"` it ends the process, and the message comes again first: return a [`Failure`].
    fn apply(
        &self,
        tx: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called after each commit that had an effect, on the consumer's thread, for example to wake another task; where
    /// the answer to a commit was lost, after the next one, whether there was an effect or not.
    /// It must return at once and not panic, which ends the consumer. What it spawns runs in the Tokio runtime that
    /// [`Consumer::run`](super::Consumer::run) was called in.
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

/// Why a message could not have its effects. Either way all of its transaction is rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It never will succeed: a dead letter at once. The reason goes into the dead letter and the log, so
    /// it must not repeat the payload.
    #[error("{0}")]
    Poison(String),
    /// It may succeed later, and is tried [`attempts_max`](super::ConsumerSpec::attempts_max) times before
    /// it becomes a dead letter. Attempts do not count while the database is unavailable or slow, or a row
    /// is locked; nor, after an error that may be the database's as well as the message's (a missing table,
    /// a refused privilege, a limit), before another message has had its effects; where such an error may pass
    /// by itself (a full disk, a lost session), one attempt counts in a minute. A foreign key whose row may
    /// come later (23503) and errors that are not of Postgres, such as a saga that is not started yet, are tried for
    /// [`give_up_after`](super::ConsumerSpec::give_up_after) at least. Of errors of Postgres the
    /// code and the names are told, of others their text, which must not repeat the payload.
    #[error("{0}")]
    Technical(#[source] Box<dyn Error + Send + Sync>),
    /// Something that the effect needs, other than the consumer's database, is not there yet. It is tried with
    /// back-off and uses up no attempt. It becomes a dead letter once messages of other keys have had their effects for
    /// [`contention_max`](super::ConsumerSpec::contention_max) meanwhile. No later message of its key is tried before. The
    /// reason goes into the log, the status and the dead letter, so it must not repeat the payload.
    #[error("{0}")]
    Unavailable(String),
}

impl Failure {
    /// A message that cannot be understood, for this reason.
    pub fn poison(reason: impl Into<String>) -> Self {
        Self::Poison(reason.into())
    }

    /// A failure that may be transient.
    pub fn technical(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Technical(source.into())
    }

    /// A dependency that is away, for this reason: the message waits, and uses up no attempt.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable(reason.into())
    }
}

/// So that `?` works for statements.
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Technical(Box::new(error))
    }
}
