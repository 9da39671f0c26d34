//! What can go wrong with the guard, apart from a client's bad key, and what to do about it.
//!
//! Enters: errors of the two clients. Leaves: [`IdempotencyError`], which names a situation. What
//! always holds: no key, no payload and no password in any text. Trouble with a running Redis is not
//! among them: it makes the guard unsure, and nothing else.

use tokio_postgres::error::SqlState;

/// Why the guard cannot be made, an answer cannot be kept, or Postgres did not decide. After an error
/// of Postgres the transaction is aborted: roll it back.
#[derive(Debug, thiserror::Error)]
pub enum IdempotencyError {
    /// Settings that cannot work.
    #[error("the guard's settings are not possible: {0}")]
    Settings(&'static str),
    /// The Redis URL is not understood. Its text is not repeated: it may hold a password.
    #[error("the Redis URL is not understood")]
    Url(#[source] redis::RedisError),
    /// The scope is not 1 to 255 bytes without control characters.
    #[error("the scope of the request is empty, too long, or has a control character")]
    Scope,
    /// The status is not one that ends a request, 200 to 599.
    #[error("{0} is not the status of a final answer")]
    Status(u16),
    /// A header that HTTP does not allow, by its place from 0. A value with a line break would smuggle
    /// another header into every replay.
    #[error("header {0} of the answer has a name or value that HTTP does not allow")]
    Header(usize),
    /// The table is not there.
    #[error("the table `idempotency_keys` is not in the database")]
    Missing(#[source] tokio_postgres::Error),
    /// The role may not use it.
    #[error("the role may not read and insert into `idempotency_keys`")]
    Forbidden(#[source] tokio_postgres::Error),
    /// Another transaction holds the key longer than this session's `lock_timeout`: tell the client to
    /// come again.
    #[error("another transaction holds the idempotency key")]
    Busy(#[source] tokio_postgres::Error),
    /// The row is not what [`claim`](super::claim) writes.
    #[error("a row of `idempotency_keys` holds no answer")]
    Garbled,
    /// The row was there and gone again, several times in a row: somebody deletes keys that are in use.
    #[error("the idempotency key is deleted as fast as it is written")]
    Vanishing,
    /// The statement failed for another reason.
    #[error("the database did not decide on the idempotency key")]
    Database(#[source] tokio_postgres::Error),
}

impl IdempotencyError {
    /// The exact remedy, where one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Url(_) => {
                Some("write it as redis://user:password@host:6379/0, or rediss:// for TLS")
            }
            Self::Missing(_) => {
                Some("psql -d \"$DATABASE_URL\" -f migrations/0003_application.sql")
            }
            Self::Forbidden(_) => Some("GRANT SELECT, INSERT ON idempotency_keys TO <role>"),
            Self::Vanishing => Some("delete only keys older than clients retry: a day, or a week"),
            _ => None,
        }
    }

    /// The database's own error, for who tells a conflict from a fault by its code.
    pub fn database(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Self::Missing(error)
            | Self::Forbidden(error)
            | Self::Busy(error)
            | Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for IdempotencyError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code();
        if code == Some(&SqlState::UNDEFINED_TABLE) {
            return Self::Missing(error);
        }
        if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return Self::Forbidden(error);
        }
        if code == Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Self::Busy(error);
        }
        Self::Database(error)
    }
}
