//! Marks a message as processed, in the transaction of its effects: the idempotent consumer for services that
//! read Kafka, or another queue, with a client of their own.
//!
//! Input: the caller's transaction, the consumer's name, the message's id. Output: a [`Mark`], or a
//! [`MarkError`]. Invariant: of all transactions that mark one message for one consumer as [`Mark::Fresh`] at
//! most one commits, and the marker exists if and only if that one's effects do. Needs the piece `Inbox` of
//! [`migrations`](crate::migrations); other languages and drivers call the same function, `inbox_mark`.
//!
//! The caller acknowledges the message (commits its offset) after the COMMIT, and never before.
//!
//! ```no_run
//! # async fn process(client: &mut tokio_postgres::Client, id: uuid::Uuid) -> Result<(), Box<dyn std::error::Error>> {
//! use postrider_patterns::marker::{Mark, mark};
//!
//! let transaction = client.transaction().await?;
//! if mark(&transaction, "payments", id).await? == Mark::Fresh {
//!     transaction.execute("UPDATE accounts SET balance = balance - 990 WHERE id = 42", &[]).await?;
//! }
//! transaction.commit().await?;
//! // Now acknowledge the message.
//! # Ok(())
//! # }
//! ```

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Whether the message has had its effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a message that was seen must not have its effects again"]
pub enum Mark {
    /// Not yet: have them in this transaction, and commit.
    Fresh,
    /// They were committed before: nothing is to be done but to acknowledge the message.
    Seen,
}

/// Why a message was not marked. The transaction is aborted then: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MarkError {
    /// The function or its table does not exist.
    #[error("the function `inbox_mark` or the table `processed_messages` does not exist")]
    Missing(#[source] tokio_postgres::Error),
    /// The role lacks a privilege on the table.
    #[error("the role lacks SELECT or INSERT on `processed_messages`")]
    Forbidden(#[source] tokio_postgres::Error),
    /// The statement failed for another reason.
    #[error("cannot mark the message as processed")]
    Database(#[source] tokio_postgres::Error),
}

impl MarkError {
    /// The exact fix, where one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Missing(_) => Some("run the piece `Inbox` of `postrider_patterns::migrations`"),
            Self::Forbidden(_) => Some("GRANT SELECT, INSERT ON processed_messages TO <role>"),
            Self::Database(_) => None,
        }
    }
}

impl From<tokio_postgres::Error> for MarkError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code();
        if code == Some(&SqlState::UNDEFINED_FUNCTION) || code == Some(&SqlState::UNDEFINED_TABLE) {
            return Self::Missing(error);
        }
        if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return Self::Forbidden(error);
        }
        Self::Database(error)
    }
}

/// Marks the message for the caller's transaction, in one round trip.
///
/// Waits while another transaction has marked the same message, until that one commits (then [`Mark::Seen`]) or
/// rolls back (then [`Mark::Fresh`]); `lock_timeout` bounds the wait. In REPEATABLE READ and SERIALIZABLE the
/// loser may get a serialization failure instead: repeat the transaction.
pub async fn mark(
    transaction: &Transaction<'_>,
    consumer: &str,
    message_id: Uuid,
) -> Result<Mark, MarkError> {
    let row = transaction
        .query_typed_one(
            "SELECT inbox_mark($1, $2)",
            &[(&consumer, Type::TEXT), (&message_id, Type::UUID)],
        )
        .await?;
    let is_fresh: bool = row.try_get(0)?;
    Ok(if is_fresh { Mark::Fresh } else { Mark::Seen })
}
