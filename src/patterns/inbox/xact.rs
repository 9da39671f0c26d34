//! Checks that a transaction is still the one with the markers, because effects may have ended it.
//! Invariant: writes of later messages in another transaction are committed if and only if their
//! markers are.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, Statement, Transaction};

use super::Failure;
use super::session::TransactionFailure;

/// Another number, or none, means that an effect has ended the transaction.
const CURRENT_XACT: &str = "SELECT txid_current_if_assigned()";

const XACT_IS_COMMITTED: &str = "SELECT coalesce(txid_status($1) = 'committed', false)";

const XACT_ENDED: &str = "the effects ended the transaction they were called in";

/// The server would answer COMMIT with ROLLBACK, and the client would report success.
#[derive(Debug, thiserror::Error)]
#[error("a statement failed and the effects did not report it")]
struct IgnoredError(#[source] Error);

pub(super) async fn is_committed<C: GenericClient>(client: &C, xact: i64) -> Result<bool, Error> {
    client.query_typed_one(XACT_IS_COMMITTED, &[(&xact, Type::INT8)]).await?.try_get(0)
}

pub(super) async fn prepare_look(client: &Client) -> Result<Statement, Error> {
    client.prepare(CURRENT_XACT).await
}

/// Fails unless the transaction is still the one with the markers and can be committed.
pub(super) async fn still_in<'tx>(
    tx: Transaction<'tx>,
    look: &Statement,
    xact: Option<i64>,
) -> Result<Transaction<'tx>, TransactionFailure> {
    let current = tx.query_one(look, &[]).await;
    let current: Option<i64> = current.and_then(|row| row.try_get(0)).map_err(ignored)?;
    // Without new markers, the transaction had only messages of `Work::unmarked`.
    let Some(xact) = xact.filter(|xact| current != Some(*xact)) else { return Ok(tx) };
    let unended = |error: Error| TransactionFailure::new(error.into(), None);
    // The writes of later messages in another transaction belong to the markers of this one.
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
