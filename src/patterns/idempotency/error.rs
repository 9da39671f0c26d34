//! Errors of the idempotency guard, with their fixes. Invariant: no text contains a key, a payload
//! or a password. An unavailable Redis is not an error.

use std::error::Error;

use tokio_postgres::error::SqlState;

use crate::table_error::TableFault;

/// Error of the guard. After an error of Postgres, roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// A setting is out of range.
    #[error("invalid settings of the idempotency guard: {0}")]
    Settings(&'static str),
    /// The Redis URL cannot be parsed. It may contain a password, so it is not repeated.
    #[error("the Redis URL is not valid")]
    Url(#[source] Box<dyn Error + Send + Sync>),
    /// The scope is not 1 to 255 bytes without control characters.
    #[error("the scope of the request is empty, too long, or has a control character")]
    Scope,
    /// The status is not a final status from 200 to 599.
    #[error("{0} is not the status of a final response")]
    Status(u16),
    /// HTTP does not allow the header with this index, from 0. A line break in a value would add a
    /// header to every replay.
    #[error("header {0} of the response has a name or value that HTTP does not allow")]
    Header(usize),
    /// The table does not exist, or is not in the session's `search_path`.
    #[error("the table `idempotency_keys` is not found in the search_path")]
    Missing(#[source] tokio_postgres::Error),
    /// The role lacks a privilege on the table.
    #[error("the role lacks a privilege on `idempotency_keys`")]
    Forbidden(#[source] tokio_postgres::Error),
    /// Another transaction locked the key for too long: the client should retry.
    #[error("another transaction has locked the idempotency key")]
    Busy(#[source] tokio_postgres::Error),
    /// The row does not have the format that [`claim`](super::claim) writes.
    #[error("a row of `idempotency_keys` does not contain a valid response")]
    CorruptRow,
    /// The row was deleted several times while it was in use.
    #[error("rows of `idempotency_keys` are deleted while they are in use")]
    Vanishing,
    /// The outcome of COMMIT is unknown. A repeat of the request finds it.
    #[error("the outcome of COMMIT is not known")]
    CommitUnknown(#[source] tokio_postgres::Error),
    /// The attempt was run again while it was running or after it had a response.
    #[error("the attempt is being run or has its response, and was run again")]
    RunAgain,
    /// The tokio runtime ended before the work did.
    #[error("the runtime was shut down before the request was executed")]
    ShutDown,
    /// Another statement of the guard or of the effect failed.
    #[error("a statement of the request failed in the database")]
    Database(#[source] tokio_postgres::Error),
}

impl IdempotencyError {
    pub(super) fn url(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Url(Box::new(error))
    }

    pub(super) fn of_claim(error: tokio_postgres::Error) -> Self {
        match TableFault::of(&error) {
            TableFault::Missing => Self::Missing(error),
            TableFault::Forbidden => Self::Forbidden(error),
            TableFault::Busy => Self::Busy(error),
            _ => Self::Database(error),
        }
    }

    /// The INSERT spends its time waiting for the key.
    pub(super) fn of_insert(error: tokio_postgres::Error) -> Self {
        if error.code() == Some(&SqlState::QUERY_CANCELED) {
            return Self::Busy(error);
        }
        Self::of_claim(error)
    }

    /// Exact fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Url(_) => Some(
                "write it as redis://user:password@host:6379/0, redis+cluster://host,host.. or \
                     redis+sentinel://host,host../NAME; rediss for TLS; each but the first needs its \
                     cargo feature",
            ),
            Self::Missing(_) => Some(
                "run `migrations::migrate` with `Piece::Idempotency`; put its schema into the role's \
                     search_path (ALTER ROLE <role> SET search_path = public, <schema>) and GRANT USAGE \
                     ON SCHEMA <schema> TO <role>, without which the schema is passed over",
            ),
            Self::Forbidden(_) => Some(
                "GRANT USAGE ON SCHEMA <its schema> TO <role>; \
                     GRANT SELECT, INSERT, UPDATE ON idempotency_keys TO <role>; and DELETE for \
                     `clean_claims`",
            ),
            Self::RunAgain => {
                Some("do all that the request asks for in the effect of one `Attempt::run`")
            }
            Self::Vanishing => {
                Some("delete only keys that are two days old, and no client repeats")
            }
            _ => None,
        }
    }

    /// Error of Postgres, with its SQLSTATE.
    pub fn database(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Self::Missing(error)
            | Self::Forbidden(error)
            | Self::Busy(error)
            | Self::CommitUnknown(error)
            | Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for IdempotencyError {
    /// The statement may be one of the effect.
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}
