//! Why a saga did not advance, and how to fix it.
//!
//! Input: errors of Postgres, of the outbox writer, and of decoding a state. Output: [`SagaError`] with a hint.
//! Invariant: no state and no payload in any text.

use tokio_postgres::Error;

use crate::outbox_writer::WriterError;
use crate::table_error::TableFault;

/// Why a saga did not advance. The caller's transaction has to be rolled back, but for [`Exists`](Self::Exists).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SagaError {
    /// The saga does not exist: it was not started here.
    #[error("there is no saga `{kind}` `{id}`")]
    Unknown {
        /// [`Saga::KIND`](super::Saga::KIND).
        kind: &'static str,
        /// The saga's id.
        id: String,
    },
    /// There is a saga with this id already. Nothing was written, and the transaction may go on.
    #[error("saga `{kind}` `{id}` was started before")]
    Exists {
        /// [`Saga::KIND`](super::Saga::KIND).
        kind: &'static str,
        /// The saga's id.
        id: String,
    },
    /// The stored state is not of this kind: an older version or another program wrote it.
    #[error("cannot decode the stored state of saga `{kind}` `{id}`")]
    State {
        /// [`Saga::KIND`](super::Saga::KIND).
        kind: &'static str,
        /// The saga's id.
        id: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The saga has ended, and an event would have it go on: without a deadline nobody would notice if it never
    /// ended again.
    #[error("saga `{kind}` `{id}` has ended, and event `{event}` would have it go on")]
    Reopened {
        /// [`Saga::KIND`](super::Saga::KIND).
        kind: &'static str,
        /// The saga's id.
        id: String,
        /// The event, as [`Saga::name`](super::Saga::name) calls it.
        event: &'static str,
    },
    /// An emitted event could not be appended to the outbox.
    #[error("cannot append a saga's event to the outbox")]
    Outbox(#[from] WriterError),
    /// A table or a column of the sagas does not exist.
    #[error("a table or a column of the sagas is missing")]
    Missing(#[source] Error),
    /// A statement of the application failed, in [`Saga::status_changed`](super::Saga::status_changed).
    #[error("a statement of the application failed when a saga's status changed")]
    Application(#[source] Error),
    /// The tables `sagas`, `saga_history` and `saga_timers`.
    #[error("a statement on the saga tables failed")]
    Database(#[source] Error),
}

impl SagaError {
    /// The exact fix, where one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Outbox(error) => error.hint(),
            Self::State { .. } => Some(
                "add serde defaults for fields that are new, or fix the row in the table `sagas`",
            ),
            Self::Reopened { .. } => Some(
                "have `Saga::has_ended` return false as long as an event may still change the outcome, or \
                 `Saga::apply` change nothing once it has ended",
            ),
            Self::Missing(_) => Some(
                "run `migrations::migrate` with `Piece::Saga`, or migrations/0003_application.sql; have the schema \
                 in this role's search_path: ALTER ROLE <role> SET search_path = public, <schema>",
            ),
            Self::Exists { .. } => Some(
                "treat it as done if the same request or message started it; `saga::start_or_advance` does not mind",
            ),
            Self::Unknown { .. } => Some(
                "start it first; where the start may come later than its events, use `saga::start_or_advance`",
            ),
            Self::Application(_) | Self::Database(_) => None,
        }
    }

    /// The error of what the application did itself: it is not about the sagas' tables.
    pub(super) fn of_application(error: Self) -> Self {
        match error {
            Self::Missing(error) | Self::Database(error) => Self::Application(error),
            other => other,
        }
    }

    /// The error of Postgres, for callers that distinguish errors by SQLSTATE.
    pub fn database(&self) -> Option<&Error> {
        match self {
            Self::Outbox(error) => Some(error.database()),
            Self::Missing(error) | Self::Application(error) | Self::Database(error) => Some(error),
            Self::Unknown { .. }
            | Self::Exists { .. }
            | Self::State { .. }
            | Self::Reopened { .. } => None,
        }
    }
}

/// A consumer tries it again, and others of its messages meanwhile; one whose saga is not there yet for
/// [`give_up_after`](crate::inbox::ConsumerSpec::give_up_after) at least.
#[cfg(feature = "inbox")]
impl From<SagaError> for crate::inbox::Failure {
    fn from(error: SagaError) -> Self {
        Self::technical(error)
    }
}

impl From<Error> for SagaError {
    fn from(error: Error) -> Self {
        match TableFault::of(&error) {
            TableFault::Missing => Self::Missing(error),
            _ => Self::Database(error),
        }
    }
}
