//! Whether a transaction is still the one in which the markers were inserted: effects may have ended it.
//!
//! Input: the consumer's transaction, and the number that Postgres gave it. Output: the transaction, or why the
//! messages failed. Invariant: what later messages wrote in another transaction is committed if and only if their
//! markers are.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, Statement, Transaction};

use super::Failure;
use super::session::TransactionFailure;

/// Before COMMIT: another, or none, means that an effect has ended the transaction.
const CURRENT_XACT: &str = "SELECT txid_current_if_assigned()";

const XACT_IS_COMMITTED: &str = "SELECT coalesce(txid_status($1) = 'committed', false)";

/// The reason of the dead letter.
const XACT_ENDED: &str = "the effects ended the transaction they were called in";

/// The server would answer COMMIT with ROLLBACK, and the client would report success.
#[derive(Debug, thiserror::Error)]
#[error("a statement failed and the effects did not report it")]
struct IgnoredError(#[source] Error);

/// Whether the transaction of this number was committed, on this server.
pub(super) async fn is_committed<C: GenericClient>(client: &C, xact: i64) -> Result<bool, Error> {
    client.query_typed_one(XACT_IS_COMMITTED, &[(&xact, Type::INT8)]).await?.try_get(0)
}

/// Prepares the statement for [`still_in`].
pub(super) async fn prepare_look(client: &Client) -> Result<Statement, Error> {
    client.prepare(CURRENT_XACT).await
}

/// The transaction, if it is still the one of the markers and can be committed.
pub(super) async fn still_in<'tx>(
    tx: Transaction<'tx>,
    look: &Statement,
    xact: Option<i64>,
) -> Result<Transaction<'tx>, TransactionFailure> {
    let current = tx.query_one(look, &[]).await;
    let current: Option<i64> = current.and_then(|row| row.try_get(0)).map_err(ignored)?;
    // None has markers: there was nothing but what `Work::unmarked` says.
    let Some(xact) = xact.filter(|xact| current != Some(*xact)) else { return Ok(tx) };
    let unended = |error: Error| TransactionFailure::new(error.into(), None);
    // What later messages did in another transaction belongs to the markers of this one.
    if current.is_some() && is_committed(&tx, xact).await.map_err(unended)? {
        tx.commit().await.map_err(unended)?;
    }
    Err(TransactionFailure::new(Failure::poison(XACT_ENDED), None))
}

fn ignored(error: Error) -> TransactionFailure {
    let is_ignored = error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
    let failure = if is_ignored { Failure::technical(IgnoredError(error)) } else { error.into() };
    TransactionFailure::new(failure, None)
}
