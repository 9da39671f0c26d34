//! Timers of sagas in Postgres: sets, cancels and fires them. Invariant: a timer fires once, in the
//! transaction that deletes its row. The saga is locked before its timers, so firing and cancelling
//! do not deadlock.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::store::{Cause, load_locked, step};
use super::{Saga, SagaError, Timer};

/// Seconds until a taken timer is due again; doubles with each try.
const RETRY_S: f64 = 30.0;

pub(super) struct DueTimer {
    pub(super) id: String,
    name: String,
}

/// Cancels timers that are not in `running`, and sets missing ones.
pub(super) async fn replace<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    running: &[Timer],
) -> Result<(), SagaError> {
    let names: Vec<&str> = running.iter().map(|timer| timer.name).collect();
    let seconds: Vec<f64> = running.iter().map(|timer| timer.after.as_secs_f64()).collect();
    let sql = "WITH cancelled AS (DELETE FROM saga_timers \
             WHERE kind = $1 AND id = $2 AND name <> ALL ($3)) \
         INSERT INTO saga_timers (kind, id, name, due) \
         SELECT $1, $2, name, clock_timestamp() + seconds * interval '1 second' \
             FROM unnest($3, $4) AS running (name, seconds) \
         ON CONFLICT (kind, id, name) DO NOTHING";
    transaction
        .execute_typed(
            sql,
            &[
                (&S::KIND, Type::TEXT),
                (&id, Type::TEXT),
                (&names, Type::TEXT_ARRAY),
                (&seconds, Type::FLOAT8_ARRAY),
            ],
        )
        .await?;
    Ok(())
}

/// Postpones the taken timers, so that no other process takes them.
pub(super) async fn take_due<S: Saga>(
    transaction: &Transaction<'_>,
    limit: i64,
) -> Result<Vec<DueTimer>, SagaError> {
    let sql = "UPDATE saga_timers SET tries = tries + 1, \
             due = statement_timestamp() + $2 * 2 ^ least(tries, 6) * interval '1 second' \
         WHERE ctid = ANY (ARRAY(SELECT ctid FROM saga_timers \
             WHERE kind = $1 AND due < statement_timestamp() ORDER BY due LIMIT $3 \
             FOR UPDATE SKIP LOCKED)) RETURNING id, name";
    let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&S::KIND, Type::TEXT), (&RETRY_S, Type::FLOAT8), (&limit, Type::INT8)];
    let rows = transaction.query_typed(sql, &values).await?;
    rows.iter().map(|row| Ok(DueTimer { id: row.try_get(0)?, name: row.try_get(1)? })).collect()
}

/// Fires a taken timer, unless it was cancelled since.
pub(super) async fn fire<S: Saga>(
    transaction: &Transaction<'_>,
    timer: &DueTimer,
) -> Result<(), SagaError> {
    let DueTimer { id, name } = timer;
    let loaded = load_locked::<S>(transaction, id).await?;
    // A timer that was cancelled and set again has no tries.
    let sql = "DELETE FROM saga_timers WHERE kind = $1 AND id = $2 AND name = $3 AND tries > 0";
    let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&S::KIND, Type::TEXT), (id, Type::TEXT), (name, Type::TEXT)];
    if transaction.execute_typed(sql, &values).await? == 0 {
        return Ok(());
    }
    // Only an earlier version uses the timer.
    let Some(event) = S::timer_fired(name) else { return Ok(()) };
    step(transaction, id, loaded, &event, Cause::default()).await?;
    Ok(())
}
