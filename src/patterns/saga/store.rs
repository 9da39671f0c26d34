//! Starts sagas in Postgres, applies events to them, and reads them. Invariant: a saga's row is
//! locked while an event is applied.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::{Json, Type};
use tokio_postgres::{GenericClient, Row, Transaction};
use uuid::Uuid;

use super::{Emitted, Saga, SagaError, Timer, timers};
use crate::outbox_writer::{Event, append};
use crate::traceparent::Traceparent;

/// Effect of an event on a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own that callers ask for")]
#[non_exhaustive]
pub struct Transition {
    /// Status before the event.
    pub from: String,
    /// Status after the event; may equal `from`.
    pub to: &'static str,
    /// Whether the state changed.
    pub changed: bool,
    /// Whether the saga ended with this event.
    pub ended: bool,
    /// Whether the saga has ended, with this event or before.
    pub has_ended: bool,
    /// Whether [`start_or_advance`] started the saga.
    pub started: bool,
    /// Types of the emitted events, in order.
    pub emitted: Vec<&'static str>,
}

/// State and status of a saga.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SagaView<S> {
    /// State of the saga.
    pub state: S,
    /// Status of the saga.
    pub status: String,
}

/// Entry of a saga's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Event name from [`Saga::name`].
    pub event: String,
    /// Status after the event.
    pub status: String,
    /// Time of the event: RFC 3339, UTC.
    pub at: String,
    /// Id of the message that carried the event, a UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Starts a saga in the caller's transaction, emits its first events and sets its timers. Its
/// deadline is `timeout` from now.
///
/// After [`SagaError::Exists`] the transaction may continue. If the start may come twice or late,
/// use [`start_or_advance`].
pub async fn start<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    state: &S,
    first: &[Emitted],
    timeout: Duration,
) -> Result<(), SagaError> {
    if !insert(transaction, id, state, timeout).await? {
        return Err(SagaError::Exists { kind: S::KIND, id: id.to_owned() });
    }
    emit::<S>(transaction, id, first, None).await?;
    let running = running(state);
    if !running.is_empty() {
        timers::replace::<S>(transaction, id, &running).await?;
    }
    let event = first.first().map_or("", |emitted| emitted.event_type);
    let entry = NewEntry { event, status: state.status(), cause: None };
    append_history::<S>(transaction, id, entry).await
}

/// Initial state of a saga, and its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewSaga<S> {
    /// State before the first event.
    pub state: S,
    /// Time from the start to the first deadline.
    pub timeout: Duration,
}

impl<S> NewSaga<S> {
    /// Creates the initial state with this timeout.
    pub fn new(state: S, timeout: Duration) -> Self {
        Self { state, timeout }
    }
}

/// Applies an event as [`advance`] does, and starts the saga first if it does not exist
/// ([`Transition::started`]). Let [`Saga::apply`] emit the first events.
///
/// An event after the saga's deletion ([`clean_ended`](super::clean_ended)) starts it again.
pub async fn start_or_advance<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    new: NewSaga<S>,
    event: &S::Event,
    cause: impl Into<Cause>,
) -> Result<Transition, SagaError> {
    let cause = cause.into();
    let started = insert(transaction, id, &new.state, new.timeout).await?;
    let loaded = load_locked::<S>(transaction, id).await?;
    let transition = step(transaction, id, loaded, event, cause.clone()).await?;
    if started && !transition.changed {
        let entry = NewEntry { event: S::name(event), status: transition.to, cause: cause.id };
        append_history::<S>(transaction, id, entry).await?;
    }
    Ok(Transition { started, ..transition })
}

/// Returns false if the row exists.
async fn insert<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    state: &S,
    timeout: Duration,
) -> Result<bool, SagaError> {
    let status = state.status();
    let inserted = transaction
        .query_typed_opt(
            "INSERT INTO sagas (kind, id, state, status, deadline, ended_at) VALUES ($1, $2, $3, $4, \
             CASE WHEN NOT $6 THEN clock_timestamp() + $5 * interval '1 second' END, \
             CASE WHEN $6 THEN now() END) ON CONFLICT (kind, id) DO NOTHING RETURNING 1",
            &[
                (&S::KIND, Type::TEXT),
                (&id, Type::TEXT),
                (&Json(state), Type::JSONB),
                (&status, Type::TEXT),
                (&timeout.as_secs_f64(), Type::FLOAT8),
                (&state.has_ended(), Type::BOOL),
            ],
        )
        .await?;
    Ok(inserted.is_some())
}

/// Applies an event to a saga in the caller's transaction, which keeps the saga locked. Emitted
/// events continue the message's trace.
pub async fn advance<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    event: &S::Event,
    cause: impl Into<Cause>,
) -> Result<Transition, SagaError> {
    let loaded = load_locked::<S>(transaction, id).await?;
    step(transaction, id, loaded, event, cause.into()).await
}

/// Origin of an event. By default, an operator or the clock.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Cause {
    /// Id of the message.
    pub id: Option<Uuid>,
    /// Trace that the message belongs to.
    pub traceparent: Option<Traceparent>,
}

impl Cause {
    /// Sets the trace.
    #[must_use]
    pub fn with_traceparent(self, traceparent: impl Into<Option<Traceparent>>) -> Self {
        Self { traceparent: traceparent.into(), ..self }
    }
}

impl From<Uuid> for Cause {
    fn from(id: Uuid) -> Self {
        Self { id: Some(id), traceparent: None }
    }
}

#[cfg(feature = "inbox")]
impl From<&crate::inbox::Message> for Cause {
    fn from(message: &crate::inbox::Message) -> Self {
        Self { id: Some(message.id), traceparent: message.traceparent() }
    }
}

pub(super) struct Locked<S> {
    view: SagaView<S>,
    /// An open saga has a deadline in its row, an ended saga an end time. A row of another program
    /// has neither, and the state decides.
    is_open: Option<bool>,
}

pub(super) async fn load_locked<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
) -> Result<Locked<S>, SagaError> {
    let found = transaction
        .query_typed_opt(
            "SELECT state, status, \
             CASE WHEN ended_at IS NOT NULL THEN false WHEN deadline IS NOT NULL THEN true END \
             FROM sagas WHERE kind = $1 AND id = $2 FOR UPDATE",
            &[(&S::KIND, Type::TEXT), (&id, Type::TEXT)],
        )
        .await?;
    let row = found.ok_or_else(|| SagaError::Unknown { kind: S::KIND, id: id.to_owned() })?;
    Ok(Locked { view: parse::<S>(id, &row)?, is_open: row.try_get(2)? })
}

pub(super) async fn step<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    loaded: Locked<S>,
    event: &S::Event,
    cause: Cause,
) -> Result<Transition, SagaError> {
    let Locked { view: SagaView { mut state, status: from }, is_open } = loaded;
    let was_open = is_open.unwrap_or(!state.has_ended());
    let to_json =
        |state: &S| serde_json::to_value(state).map_err(|source| invalid_state::<S>(id, source));
    // A comparison with the stored text would report each field that is new in this version.
    let before = to_json(&state)?;
    let had_timers = was_open && !state.timers().is_empty();
    let emitted = state.apply(event);
    let (to, has_ended, runs) = (state.status(), state.has_ended(), running(&state));
    if !was_open && !has_ended {
        let (kind, id, event) = (S::KIND, id.to_owned(), S::name(event));
        return Err(SagaError::Reopened { kind, id, event });
    }
    emit::<S>(transaction, id, &emitted, cause.traceparent.as_ref()).await?;
    // Runs always, because another version may have set other timers.
    if had_timers || !runs.is_empty() {
        timers::replace::<S>(transaction, id, &runs).await?;
    }
    let emitted = emitted.iter().map(|emitted| emitted.event_type).collect();
    let after = to_json(&state)?;
    let ended = was_open && has_ended;
    if after == before && !ended {
        let (changed, ended, started) = (false, false, false);
        return Ok(Transition { from, to, changed, ended, has_ended, started, emitted });
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
    let entry = NewEntry { event: S::name(event), status: to, cause: cause.id };
    append_history::<S>(transaction, id, entry).await?;
    if from != to {
        let changed = S::status_changed(transaction, id, to).await;
        changed.map_err(SagaError::of_application)?;
    }
    Ok(Transition { from, to, changed: true, ended, has_ended, started: false, emitted })
}

/// Current state of a saga.
pub async fn view<S: Saga>(
    client: &impl GenericClient,
    id: &str,
) -> Result<Option<SagaView<S>>, SagaError> {
    let sql = "SELECT state, status FROM sagas WHERE kind = $1 AND id = $2";
    let found = client.query_opt(sql, &[&S::KIND, &id]).await?;
    found.map(|row| parse(id, &row)).transpose()
}

/// History of a saga, in order.
pub async fn history<S: Saga>(
    client: &impl GenericClient,
    id: &str,
) -> Result<Vec<HistoryEntry>, SagaError> {
    let sql = "SELECT event, status, to_char(at AT TIME ZONE 'UTC', \
               'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), cause::text \
               FROM saga_history WHERE kind = $1 AND id = $2 ORDER BY number";
    let rows = client.query(sql, &[&S::KIND, &id]).await?;
    let entry = |row: &Row| {
        Ok(HistoryEntry {
            event: row.try_get(0)?,
            status: row.try_get(1)?,
            at: row.try_get(2)?,
            cause: row.try_get(3)?,
        })
    };
    rows.iter().map(entry).collect()
}

fn running<S: Saga>(state: &S) -> Vec<Timer> {
    if state.has_ended() { Vec::new() } else { state.timers() }
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
    trace: Option<&Traceparent>,
) -> Result<(), SagaError> {
    for Emitted { event_type, payload, aggregate, traceparent } in emitted {
        let (aggregate_type, aggregate_id) = match aggregate {
            Some((aggregate_type, id)) => (aggregate_type.as_str(), id.as_str()),
            None => (S::KIND, id),
        };
        let event = Event::new(aggregate_type, aggregate_id, *event_type, payload.clone());
        let trace = traceparent.as_ref().or(trace).cloned();
        append(transaction, &event.with_traceparent(trace)).await?;
    }
    Ok(())
}

struct NewEntry<'a> {
    event: &'a str,
    status: &'a str,
    cause: Option<Uuid>,
}

/// The saga's row is locked, so the number is unique.
async fn append_history<S: Saga>(
    transaction: &Transaction<'_>,
    id: &str,
    entry: NewEntry<'_>,
) -> Result<(), SagaError> {
    transaction
        .query_typed(
            "INSERT INTO saga_history (kind, id, number, event, status, cause) \
             SELECT $1, $2, coalesce(max(number), 0) + 1, $3, $4, $5 \
             FROM saga_history WHERE kind = $1 AND id = $2",
            &[
                (&S::KIND, Type::TEXT),
                (&id, Type::TEXT),
                (&entry.event, Type::TEXT),
                (&entry.status, Type::TEXT),
                (&entry.cause, Type::UUID),
            ],
        )
        .await?;
    Ok(())
}
