//! Keeps sagas in Postgres: reads one under a lock, lets it go on, writes it and what it emits.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::{Json, Type};
use tokio_postgres::{GenericClient, Row, Transaction};

use super::{Emitted, Saga, SagaError};
use crate::outbox_writer::{Event, append};

/// What an event did to a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The status before.
    pub from: String,
    /// The status after; the same for an event that changed nothing one can see.
    pub to: &'static str,
    /// Whether the saga ended with this event.
    pub ended: bool,
}

/// A saga as people look at it.
#[derive(Debug, Clone, PartialEq)]
pub struct View<S> {
    /// Its state.
    pub state: S,
    /// Its status.
    pub status: String,
}

/// How the sagas of a kind stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Those that have not ended.
    pub open: u64,
    /// Those of them whose deadline has passed.
    pub overdue: u64,
}

/// Begins a saga in the caller's transaction, and tells others what it emits first. `patience` is how
/// long it may take before [`overdue`] names it.
///
/// Fails with a unique violation where a saga of this id is there already.
pub async fn start<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    state: &S,
    first: &[Emitted],
    patience: Duration,
) -> Result<(), SagaError> {
    let status = state.status();
    transaction
        .query_typed(
            "INSERT INTO sagas (kind, id, state, status, deadline) \
             VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 second')",
            &[
                (&S::KIND, Type::TEXT),
                (&id, Type::TEXT),
                (&Json(state), Type::JSONB),
                (&status, Type::TEXT),
                (&patience.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    emit::<S>(transaction, id, first).await?;
    let name = first.first().map_or("", |emitted| emitted.event_type);
    record::<S>(transaction, id, name, status).await
}

/// Lets a saga hear of an event, in the caller's transaction. The saga is locked until that ends, so
/// two events about one saga are taken one after the other.
pub async fn advance<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    event: &S::Event,
) -> Result<Step, SagaError> {
    let found = transaction
        .query_typed_opt(
            "SELECT state, status FROM sagas WHERE kind = $1 AND id = $2 FOR UPDATE",
            &[(&S::KIND, Type::TEXT), (&id, Type::TEXT)],
        )
        .await?;
    let row = found.ok_or_else(|| unknown::<S>(id))?;
    let Json(before): Json<Value> = row.try_get(0)?;
    let View { mut state, status: from } = parse::<S>(id, &row)?;
    let was_open = !state.has_ended();
    let emitted = state.on(event);
    let (to, has_ended) = (state.status(), state.has_ended());
    emit::<S>(transaction, id, &emitted).await?;
    let after = serde_json::to_value(&state).map_err(|source| misunderstood::<S>(id, source))?;
    if after == before {
        // Heard of before, or too late: nothing to write down.
        return Ok(Step { from, to, ended: false });
    }
    transaction
        .query_typed(
            "UPDATE sagas SET state = $3, status = $4, updated_at = now(), \
             deadline = CASE WHEN $5 THEN NULL ELSE deadline END, \
             ended_at = CASE WHEN $5 THEN now() END WHERE kind = $1 AND id = $2",
            &[
                (&S::KIND, Type::TEXT),
                (&id, Type::TEXT),
                (&Json(&after), Type::JSONB),
                (&to, Type::TEXT),
                (&has_ended, Type::BOOL),
            ],
        )
        .await?;
    record::<S>(transaction, id, S::name(event), to).await?;
    Ok(Step { from, to, ended: has_ended && was_open })
}

/// Ids of sagas whose deadline has passed, the longest waiting ones if there are more than `limit`;
/// those that others have locked are left out. Their deadline is put off by `patience`, by twice that
/// the next time, and so on up to 64 times: what is told at a deadline adds up while nobody can hear
/// it. Commit that before they go on, each in a transaction of its own, so that one that cannot go on
/// does not stand in the way of the others.
pub async fn overdue<S: Saga>(
    transaction: &Transaction<'_>,
    patience: Duration,
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
                (&patience.as_secs_f64(), Type::FLOAT8),
                (&i64::from(limit), Type::INT8),
            ],
        )
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// How many sagas of a kind have not ended, and for how many of these a deadline has passed, whether or
/// not it was put off since. Looks at those alone, so it may be asked every few seconds.
pub async fn standing<S: Saga>(client: &impl GenericClient) -> Result<Standing, SagaError> {
    let sql = "SELECT count(*), \
               count(*) FILTER (WHERE put_off > 0 OR deadline < statement_timestamp()) \
               FROM sagas WHERE kind = $1 AND deadline IS NOT NULL";
    let row = client.query_one(sql, &[&S::KIND]).await?;
    let number = |at| Ok::<_, SagaError>(u64::try_from(row.try_get::<_, i64>(at)?).unwrap_or(0));
    Ok(Standing { open: number(0)?, overdue: number(1)? })
}

/// A saga as it stands, if there is one.
pub async fn view<S: Saga>(
    client: &impl GenericClient,
    id: &str,
) -> Result<Option<View<S>>, SagaError> {
    let sql = "SELECT state, status FROM sagas WHERE kind = $1 AND id = $2";
    let found = client.query_opt(sql, &[&S::KIND, &id]).await?;
    found.map(|row| parse(id, &row)).transpose()
}

/// What happened to a saga, in order: event, status after it, and when (RFC 3339, UTC).
pub async fn history<S: Saga>(
    client: &impl GenericClient,
    id: &str,
) -> Result<Vec<(String, String, String)>, SagaError> {
    let sql = "SELECT event, status, to_char(at AT TIME ZONE 'UTC', \
               'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') \
               FROM saga_history WHERE kind = $1 AND id = $2 ORDER BY number";
    let rows = client.query(sql, &[&S::KIND, &id]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
}

fn unknown<S: Saga>(id: &str) -> SagaError {
    SagaError::Unknown { kind: S::KIND, id: id.to_owned() }
}

fn misunderstood<S: Saga>(id: &str, source: serde_json::Error) -> SagaError {
    SagaError::State { kind: S::KIND, id: id.to_owned(), source }
}

fn parse<S: Saga>(id: &str, row: &Row) -> Result<View<S>, SagaError> {
    let Json(state): Json<Value> = row.try_get(0)?;
    let state = serde_json::from_value(state).map_err(|source| misunderstood::<S>(id, source))?;
    Ok(View { state, status: row.try_get(1)? })
}

async fn emit<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    emitted: &[Emitted],
) -> Result<(), SagaError> {
    for Emitted { event_type, payload } in emitted {
        append(transaction, &Event::new(S::KIND, id, *event_type, payload.clone())).await?;
    }
    Ok(())
}

/// The saga's row is locked, so the number is nobody else's.
async fn record<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    event: &str,
    status: &str,
) -> Result<(), SagaError> {
    transaction
        .query_typed(
            "INSERT INTO saga_history (kind, id, number, event, status) \
             SELECT $1, $2, coalesce(max(number), 0) + 1, $3, $4 \
             FROM saga_history WHERE kind = $1 AND id = $2",
            &[
                (&S::KIND, Type::TEXT),
                (&id, Type::TEXT),
                (&event, Type::TEXT),
                (&status, Type::TEXT),
            ],
        )
        .await?;
    Ok(())
}
