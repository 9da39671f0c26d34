//! Errors of the idempotency guard and of its table in Postgres, and how to fix them.
//!
//! Input: errors of the two clients, and settings, scopes and responses that are refused. Output:
//! `IdempotencyError` with its hint. Invariant: no key, payload or password in any text. A Redis that does
//! not answer is not an error: the guard then leaves the decision to Postgres. A client's invalid key is a
//! `KeyRefusal` instead.

use std::error::Error;

use tokio_postgres::error::SqlState;

use crate::table_error::TableFault;

/// Why the guard cannot be created, a response cannot be stored, or Postgres did not decide. After an
/// error of Postgres the transaction is aborted: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// Settings that are out of range.
    #[error("invalid settings of the idempotency guard: {0}")]
    Settings(&'static str),
    /// The Redis URL cannot be parsed. Its text is not repeated: it may contain a password.
    #[error("the Redis URL is not valid")]
    Url(#[source] Box<dyn Error + Send + Sync>),
    /// The scope is not 1 to 255 bytes without control characters.
    #[error("the scope of the request is empty, too long, or has a control character")]
    Scope,
    /// The status is not that of a final response, 200 to 599.
    #[error("{0} is not the status of a final response")]
    Status(u16),
    /// A header that HTTP does not allow, by its index from 0. A value with a line break would inject
    /// another header into every replay.
    #[error("header {0} of the response has a name or value that HTTP does not allow")]
    Header(usize),
    /// The session's `search_path` does not lead to the table.
    #[error("the table `idempotency_keys` is not found in the search_path")]
    Missing(#[source] tokio_postgres::Error),
    /// The role lacks a privilege on it.
    #[error("the role lacks a privilege on `idempotency_keys`")]
    Forbidden(#[source] tokio_postgres::Error),
    /// Another transaction has locked the key for longer than `lock_timeout` or `statement_timeout`: tell the
    /// client to retry.
    #[error("another transaction has locked the idempotency key")]
    Busy(#[source] tokio_postgres::Error),
    /// The row is not what [`claim`](super::claim) writes.
    #[error("a row of `idempotency_keys` does not contain a valid response")]
    CorruptRow,
    /// The row existed and was deleted, several times: something deletes keys that are in use.
    #[error("rows of `idempotency_keys` are deleted while they are in use")]
    Vanishing,
    /// COMMIT was sent and its outcome is not known: the effect is there or it is not. The same request
    /// with the same key finds out.
    #[error("the outcome of COMMIT is not known")]
    CommitUnknown(#[source] tokio_postgres::Error),
    /// An attempt that has its response, or is being run, was run again. Where the response is stored, the same
    /// request with the same key gets it.
    #[error("the attempt is being run or has its response, and was run again")]
    RunAgain,
    /// The tokio runtime ended before the work did.
    #[error("the runtime was shut down before the request was executed")]
    ShutDown,
    /// A statement failed for another reason: the guard's, or one of the effect whatever the reason.
    #[error("a statement of the request failed in the database")]
    Database(#[source] tokio_postgres::Error),
}

impl IdempotencyError {
    pub(super) fn url(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Url(Box::new(error))
    }

    /// Of a statement that names the guard's table and nothing else.
    pub(super) fn of_claim(error: tokio_postgres::Error) -> Self {
        match TableFault::of(&error) {
            TableFault::Missing => Self::Missing(error),
            TableFault::Forbidden => Self::Forbidden(error),
            TableFault::Busy => Self::Busy(error),
            _ => Self::Database(error),
        }
    }

    /// Of the INSERT, whose time goes into waiting for the key.
    pub(super) fn of_insert(error: tokio_postgres::Error) -> Self {
        if error.code() == Some(&SqlState::QUERY_CANCELED) {
            return Self::Busy(error);
        }
        Self::of_claim(error)
    }

    /// The exact fix, where one is known.
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

    /// The error of Postgres, for callers that distinguish errors by SQLSTATE.
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
    /// Of the effect's statements too, so it tells nothing of the guard's table.
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}
