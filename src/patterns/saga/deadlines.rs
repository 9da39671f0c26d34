//! Applies deadline and timer events to due sagas, and counts open sagas.
//!
//! Invariant: one process takes a saga at a time, in its own transaction, and a failing saga does
//! not block others. A deadline recurs, with growing pauses, until the saga ends.

use std::future::Future;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::{Cause, Saga, SagaError, advance, timers};

const BATCH: u32 = 100;

/// Counts of the open sagas of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenSagas {
    /// Number of sagas that have not ended.
    pub open: u64,
    /// Open sagas whose deadline has passed.
    pub overdue: u64,
}

/// Result of one round of [`fire_due`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DueRound {
    /// Number of sagas whose deadline had passed.
    pub deadlines: usize,
    /// Number of timers that were due.
    pub timers: usize,
}

impl DueRound {
    /// Whether more sagas or timers may be due.
    pub fn is_full(&self) -> bool {
        self.deadlines.max(self.timers) >= BATCH as usize
    }
}

/// Runs rounds, such as [`fire_due`], until the future is dropped. The next round follows a full
/// round at once, and otherwise after `interval`.
///
/// ```no_run
/// # use std::time::Duration;
/// # use postrider_patterns::saga::{self, Saga, SagaError};
/// # async fn connect() -> Result<tokio_postgres::Client, tokio_postgres::Error> {
/// #     Ok(tokio_postgres::connect("", tokio_postgres::NoTls).await?.0)
/// # }
/// # async fn example<Trip: Saga>() {
/// let round = || async {
///     let mut client = connect().await?;
///     saga::fire_due::<Trip>(&mut client, Duration::from_secs(60)).await
/// };
/// let on_error = |error: &SagaError| eprintln!("{error}");
/// saga::run_deadlines(Duration::from_millis(500), round, on_error).await;
/// # }
/// ```
pub async fn run_deadlines<F, E>(
    interval: Duration,
    mut round: impl FnMut() -> F,
    mut on_error: impl FnMut(&E),
) where
    F: Future<Output = Result<DueRound, E>>,
{
    loop {
        match round().await {
            Ok(found) if found.is_full() => continue,
            Ok(_) => {}
            Err(error) => on_error(&error),
        }
        tokio::time::sleep(interval).await;
    }
}

/// Applies [`Saga::deadline_passed`] and [`Saga::timer_fired`] for due deadlines and timers, each
/// in its own transaction. Each deadline is postponed by `timeout` ([`overdue`]).
///
/// An error is returned after the other sagas were tried; the failed one is due again later.
pub async fn fire_due<S: Saga>(
    client: &mut Client,
    timeout: Duration,
) -> Result<DueRound, SagaError> {
    let transaction = client.transaction().await?;
    let late = overdue::<S>(&transaction, timeout, BATCH).await?;
    let due = timers::take_due::<S>(&transaction, i64::from(BATCH)).await?;
    // All deadlines are postponed now, so that a locked saga does not delay the others.
    transaction.commit().await?;
    let mut failure = None;
    for id in &late {
        let transaction = client.transaction().await?;
        let fired = advance::<S>(&transaction, id, &S::deadline_passed(), Cause::default()).await;
        failure = failure.or(end(transaction, fired.map(drop)).await.err());
    }
    for timer in &due {
        let transaction = client.transaction().await?;
        let fired = timers::fire::<S>(&transaction, timer).await;
        failure = failure.or(end(transaction, fired).await.err());
    }
    failure.map_or(Ok(DueRound { deadlines: late.len(), timers: due.len() }), Err)
}

/// A failed COMMIT, for example of a deferred constraint, is also this saga's failure.
async fn end(transaction: Transaction<'_>, fired: Result<(), SagaError>) -> Result<(), SagaError> {
    fired?;
    Ok(transaction.commit().await?)
}

/// Ids of up to `limit` sagas whose deadline has passed, oldest first. Skips locked
/// sagas.
///
/// Each deadline is postponed by `timeout`, next time by twice as much, up to 64 times `timeout`,
/// so that events do not pile up. Commit the postponement before you advance the sagas.
/// [`fire_due`] does all of this.
pub async fn overdue<S: Saga>(
    transaction: &Transaction<'_>,
    timeout: Duration,
    limit: u32,
) -> Result<Vec<String>, SagaError> {
    let rows = transaction
        .query_typed(
            // clock_timestamp() is volatile, so Postgres would not use the index for it.
            "UPDATE sagas SET put_off = put_off + 1, deadline = statement_timestamp() \
                 + $2 * 2 ^ least(put_off, 6) * interval '1 second' \
             WHERE kind = $1 AND id = ANY (ARRAY(SELECT id FROM sagas WHERE kind = $1 \
                 AND deadline < statement_timestamp() ORDER BY deadline LIMIT $3 \
                 FOR UPDATE SKIP LOCKED)) RETURNING id",
            &[
                (&S::KIND, Type::TEXT),
                (&timeout.as_secs_f64(), Type::FLOAT8),
                (&i64::from(limit), Type::INT8),
            ],
        )
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Counts the open sagas of a kind, and those that have passed a deadline. Reads only open sagas.
pub async fn count_open<S: Saga>(client: &impl GenericClient) -> Result<OpenSagas, SagaError> {
    let sql = "SELECT count(*), \
               count(*) FILTER (WHERE put_off > 0 OR deadline < statement_timestamp()) \
               FROM sagas WHERE kind = $1 AND deadline IS NOT NULL";
    let row = client.query_one(sql, &[&S::KIND]).await?;
    let number = |at| Ok::<_, SagaError>(u64::try_from(row.try_get::<_, i64>(at)?).unwrap_or(0));
    Ok(OpenSagas { open: number(0)?, overdue: number(1)? })
}
