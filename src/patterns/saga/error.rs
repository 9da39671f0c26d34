//! Errors of sagas, with their fixes. Invariant: no text contains a state or a payload.

use tokio_postgres::Error;

use crate::outbox_writer::WriterError;
use crate::table_error::TableFault;

/// Reason why a saga did not advance. Roll the transaction back, except after
/// [`Exists`](Self::Exists).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SagaError {
    /// The saga was not started here.
    #[error("there is no saga `{kind}` `{id}`")]
    Unknown {
        /// Kind of saga.
        kind: &'static str,
        /// The saga's id.
        id: String,
    },
    /// The saga exists. Nothing was written, and the transaction may continue.
    #[error("saga `{kind}` `{id}` was started before")]
    Exists {
        /// Kind of saga.
        kind: &'static str,
        /// The saga's id.
        id: String,
    },
    /// The stored state cannot be decoded.
    #[error("cannot decode the stored state of saga `{kind}` `{id}`")]
    State {
        /// Kind of saga.
        kind: &'static str,
        /// The saga's id.
        id: String,
        /// Decoding error.
        #[source]
        source: serde_json::Error,
    },
    /// An event would reopen a saga that has ended.
    #[error("saga `{kind}` `{id}` has ended, and event `{event}` would continue it")]
    Reopened {
        /// Kind of saga.
        kind: &'static str,
        /// The saga's id.
        id: String,
        /// Event name.
        event: &'static str,
    },
    /// An emitted event could not be appended.
    #[error("cannot append a saga's event to the outbox")]
    Outbox(#[from] WriterError),
    /// A table or a column does not exist.
    #[error("a table or a column of the sagas is missing")]
    Missing(#[source] Error),
    /// A statement of [`Saga::status_changed`](super::Saga::status_changed) failed.
    #[error("a statement of the application failed when a saga's status changed")]
    Application(#[source] Error),
    /// A statement on the saga tables failed.
    #[error("a statement on the saga tables failed")]
    Database(#[source] Error),
}

impl SagaError {
    /// Exact fix, if one is known.
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

    pub(super) fn of_application(error: Self) -> Self {
        match error {
            Self::Missing(error) | Self::Database(error) => Self::Application(error),
            other => other,
        }
    }

    /// Error of Postgres, with its SQLSTATE.
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

/// The consumer retries the message for at least
/// [`give_up_after`](crate::inbox::ConsumerSpec::give_up_after), if the saga does not exist yet.
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
