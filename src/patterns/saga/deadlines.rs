//! Deadlines and timers: finds sagas whose deadline has passed and timers that are due, and applies their
//! events; counts open sagas.
//!
//! Input: the database's clock. Output: the saga's next state and its emitted events, each saga in a
//! transaction of its own. Invariant: one process takes a saga at a time; a saga that fails does not block
//! the others; a deadline comes again, later each time, until the saga ends.

use std::future::Future;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::{Cause, Saga, SagaError, advance, timers};

/// Most sagas, and most timers, of one round.
const BATCH: u32 = 100;

/// Counts of open sagas of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenSagas {
    /// Those that have not ended.
    pub open: u64,
    /// Those of them whose deadline has passed.
    pub overdue: u64,
}

/// What one round of [`fire_due`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DueRound {
    /// Sagas whose deadline had passed.
    pub deadlines: usize,
    /// Timers that were due.
    pub timers: usize,
}

impl DueRound {
    /// Whether there may be more.
    pub fn is_full(&self) -> bool {
        self.deadlines.max(self.timers) >= BATCH as usize
    }
}

/// Runs rounds, such as [`fire_due`] on a session of a pool, until it is dropped: the next one at once after a
/// full one, else after `interval`, also after an error, which `on_error` gets.
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

/// One round: applies [`Saga::deadline_passed`] to sagas whose deadline has passed and [`Saga::timer_fired`]
/// for timers that are due, each in a transaction of its own. `timeout` is by how much a deadline is postponed
/// ([`overdue`]).
///
/// An error, such as a saga whose state cannot be decoded, is returned after the others were tried; the saga or
/// the timer is due again later.
pub async fn fire_due<S: Saga>(
    client: &mut Client,
    timeout: Duration,
) -> Result<DueRound, SagaError> {
    let transaction = client.transaction().await?;
    let late = overdue::<S>(&transaction, timeout, BATCH).await?;
    let due = timers::take_due::<S>(&transaction, i64::from(BATCH)).await?;
    // They are all postponed by now: one that is locked must not make the others wait.
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

/// Commits what succeeded. A COMMIT that fails is this saga's failure too, as of a constraint that is deferred;
/// where the session has ended, the next transaction does not begin.
async fn end(transaction: Transaction<'_>, fired: Result<(), SagaError>) -> Result<(), SagaError> {
    fired?;
    Ok(transaction.commit().await?)
}

/// Ids of sagas whose deadline has passed, the oldest ones if there are more than `limit`; locked ones are
/// skipped. Their deadline is postponed by `timeout`, by twice that the next time, and so on up to 64 times:
/// events that are emitted at deadlines pile up during an outage of their consumers. Commit that before
/// advancing them, each in a transaction of its own, so that one that fails does not block the others:
/// [`fire_due`] does all of that.
pub async fn overdue<S: Saga>(
    transaction: &Transaction<'_>,
    timeout: Duration,
    limit: u32,
) -> Result<Vec<String>, SagaError> {
    let rows = transaction
        .query_typed(
            // Not clock_timestamp(), which is volatile: the index would not be searched by it.
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

/// How many sagas of a kind have not ended, and how many of these have passed a deadline, even if it was
/// postponed since. Reads only those, so it may be called every few seconds.
pub async fn count_open<S: Saga>(client: &impl GenericClient) -> Result<OpenSagas, SagaError> {
    let sql = "SELECT count(*), \
               count(*) FILTER (WHERE put_off > 0 OR deadline < statement_timestamp()) \
               FROM sagas WHERE kind = $1 AND deadline IS NOT NULL";
    let row = client.query_one(sql, &[&S::KIND]).await?;
    let number = |at| Ok::<_, SagaError>(u64::try_from(row.try_get::<_, i64>(at)?).unwrap_or(0));
    Ok(OpenSagas { open: number(0)?, overdue: number(1)? })
}
