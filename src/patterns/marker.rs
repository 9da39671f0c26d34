//! Marks a message as processed in the transaction of its effects, for services that read a queue
//! with their own client.
//!
//! Invariant: of all transactions that mark one message for one consumer as [`Mark::Fresh`], at
//! most one commits. Needs the piece `Inbox` of [`migrations`](crate::migrations). Other languages
//! call the function `inbox_mark`. Acknowledge the message after the COMMIT, never before.
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

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use crate::table_error::TableFault;

/// Whether the effects of the message were already committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a message that was seen must not have its effects again"]
pub enum Mark {
    /// New message: apply its effects in this transaction and commit.
    Fresh,
    /// Committed before: only acknowledge the message.
    Seen,
}

/// Reason why a message was not marked. Roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MarkError {
    /// The function or its table does not exist.
    #[error("the function `inbox_mark` or the table `processed_messages` does not exist")]
    Missing(#[source] tokio_postgres::Error),
    /// The role lacks a privilege on the table.
    #[error("the role lacks a privilege on `processed_messages`")]
    Forbidden(#[source] tokio_postgres::Error),
    /// The statement failed for another reason.
    #[error("cannot mark the message as processed")]
    Database(#[source] tokio_postgres::Error),
}

impl MarkError {
    /// Exact fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Missing(_) => Some("run the piece `Inbox` of `postrider_patterns::migrations`"),
            Self::Forbidden(_) => Some(
                "GRANT SELECT, INSERT ON processed_messages TO <role>; and DELETE for `clean_markers`",
            ),
            Self::Database(_) => None,
        }
    }

    /// Error of Postgres, with its SQLSTATE.
    pub fn database(&self) -> &tokio_postgres::Error {
        match self {
            Self::Missing(error) | Self::Forbidden(error) | Self::Database(error) => error,
        }
    }
}

impl From<tokio_postgres::Error> for MarkError {
    fn from(error: tokio_postgres::Error) -> Self {
        match TableFault::of(&error) {
            TableFault::Missing => Self::Missing(error),
            TableFault::Forbidden => Self::Forbidden(error),
            _ => Self::Database(error),
        }
    }
}

/// Marks the message for the caller's transaction.
///
/// Waits while another transaction has marked the message: [`Mark::Seen`] if it commits,
/// [`Mark::Fresh`] if it rolls back. `lock_timeout` bounds the wait. In REPEATABLE READ and
/// SERIALIZABLE the second transaction may get a serialization failure: repeat it.
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

/// Skips rows that another run is deleting.
const CLEAN: &str = "\
    DELETE FROM processed_messages AS marker USING ( \
        SELECT message_id FROM processed_messages WHERE consumer = $1 \
            AND processed_at < statement_timestamp() - $2 * interval '1 second' \
        ORDER BY processed_at LIMIT $3 FOR UPDATE SKIP LOCKED \
    ) AS old WHERE marker.consumer = $1 AND marker.message_id = old.message_id";

/// Deletes up to `batch` markers older than `older_than`, and returns their number. Needs DELETE on
/// `processed_messages`.
///
/// A message that is delivered later has its effects again. `older_than` must exceed twice the
/// topic's retention time (`inbox::topic_retention`) and the time for which dead letters are
/// redriven.
pub async fn clean_markers(
    client: &impl GenericClient,
    consumer: &str,
    older_than: Duration,
    batch: u32,
) -> Result<u64, MarkError> {
    let types = [Type::TEXT, Type::FLOAT8, Type::INT8];
    let statement = client.prepare_typed(CLEAN, &types).await?;
    let (seconds, batch) = (older_than.as_secs_f64(), i64::from(batch));
    Ok(client.execute(&statement, &[&consumer, &seconds, &batch]).await?)
}
