//! Stores sagas in Postgres: starts them, applies events to them, finds overdue ones, counts and shows
//! them.
//!
//! Input: the caller's transaction, a saga's id, an event. Output: the new state and an entry in its
//! history, and the events that the saga emits as rows of the outbox, all in that transaction; a
//! `Transition`. Invariant: a saga's row is locked while an event is applied, so that events of one saga
//! are applied one after the other.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::{Json, Type};
use tokio_postgres::{GenericClient, Row, Transaction};

use super::{Emitted, Saga, SagaError};
use crate::outbox_writer::{Event, append};

/// The effect of an event on a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The status before.
    pub from: String,
    /// The status after; the same for an event that did not change it.
    pub to: &'static str,
    /// Whether the saga ended with this event.
    pub ended: bool,
}

/// State and status of a saga.
#[derive(Debug, Clone, PartialEq)]
pub struct SagaView<S> {
    /// Its state.
    pub state: S,
    /// Its status.
    pub status: String,
}

/// Counts of open sagas of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSagas {
    /// Those that have not ended.
    pub open: u64,
    /// Those of them whose deadline has passed.
    pub overdue: u64,
}

/// Starts a saga in the caller's transaction, and emits its first events. After `timeout` [`overdue`]
/// returns it.
///
/// Fails with a unique violation if a saga with this id exists already.
pub async fn start<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    state: &S,
    first: &[Emitted],
    timeout: Duration,
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
                (&timeout.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    emit::<S>(transaction, id, first).await?;
    let name = first.first().map_or("", |emitted| emitted.event_type);
    append_history::<S>(transaction, id, name, status).await
}

/// Applies an event to a saga, in the caller's transaction. The saga is locked until that ends, so two
/// events of one saga are applied one after the other.
pub async fn advance<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    event: &S::Event,
) -> Result<Transition, SagaError> {
    let found = transaction
        .query_typed_opt(
            "SELECT state, status FROM sagas WHERE kind = $1 AND id = $2 FOR UPDATE",
            &[(&S::KIND, Type::TEXT), (&id, Type::TEXT)],
        )
        .await?;
    let row = found.ok_or_else(|| unknown::<S>(id))?;
    let Json(before): Json<Value> = row.try_get(0)?;
    let SagaView { mut state, status: from } = parse::<S>(id, &row)?;
    let was_open = !state.has_ended();
    let emitted = state.apply(event);
    let (to, has_ended) = (state.status(), state.has_ended());
    emit::<S>(transaction, id, &emitted).await?;
    let after = serde_json::to_value(&state).map_err(|source| invalid_state::<S>(id, source))?;
    if after == before {
        // A repeat, or too late: nothing to write.
        return Ok(Transition { from, to, ended: false });
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
    append_history::<S>(transaction, id, S::name(event), to).await?;
    Ok(Transition { from, to, ended: has_ended && was_open })
}

/// Ids of sagas whose deadline has passed, the oldest ones if there are more than `limit`; locked ones are
/// skipped. Their deadline is postponed by `timeout`, by twice that the next time, and so on up to 64 times:
/// events that are emitted at deadlines pile up during an outage of their consumers. Commit that before
/// advancing them, each in a transaction of its own, so that one that fails does not block the others.
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

/// The current state of a saga, if it exists.
pub async fn view<S: Saga>(
    client: &impl GenericClient,
    id: &str,
) -> Result<Option<SagaView<S>>, SagaError> {
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

fn invalid_state<S: Saga>(id: &str, source: serde_json::Error) -> SagaError {
    SagaError::State { kind: S::KIND, id: id.to_owned(), source }
}

fn parse<S: Saga>(id: &str, row: &Row) -> Result<SagaView<S>, SagaError> {
    let Json(state): Json<Value> = row.try_get(0)?;
    let state = serde_json::from_value(state).map_err(|source| invalid_state::<S>(id, source))?;
    Ok(SagaView { state, status: row.try_get(1)? })
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

/// The saga's row is locked, so the number is unique.
async fn append_history<S: Saga>(
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
