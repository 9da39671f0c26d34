//! Operator actions: list, show, advance, compensate and delete sagas. Invariant: rows have no
//! state or payload, and each action may be repeated.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Row};

use super::{Cause, HistoryEntry, Saga, SagaError, Transition, advance, history};

/// Columns of a [`SagaSummary`]. Times are RFC 3339, UTC.
const SUMMARY: &str = "id, status, put_off, utc(updated_at), utc(deadline), utc(ended_at)";

/// Summary of a saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SagaSummary {
    /// The saga's id.
    pub id: String,
    /// The saga's status.
    pub status: String,
    /// Number of deadlines that have passed.
    pub deadlines_passed: i32,
    /// Time of the last state change: RFC 3339, UTC.
    pub updated_at: String,
    /// Time of the next deadline: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Time when the saga ended: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// A timer that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TimerEntry {
    /// Name of the timer.
    pub name: String,
    /// Time when the timer fires: RFC 3339, UTC.
    pub due: String,
}

/// A saga with its timers and its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SagaDetails {
    /// Summary of the saga.
    #[serde(flatten)]
    pub summary: SagaSummary,
    /// Its timers, the next one first.
    pub timers: Vec<TimerEntry>,
    /// Its history, in order.
    pub history: Vec<HistoryEntry>,
}

/// Action of an operator on a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperatorAction {
    /// Applies [`Saga::deadline_passed`] now.
    Advance,
    /// Applies [`Saga::compensation`].
    Compensate,
}

/// Number of rows that [`clean_ended`] deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanedSagas {
    /// Deleted sagas.
    pub sagas: u64,
    /// Deleted rows of their history.
    pub history: u64,
}

/// Expands `utc(column)` into SQL.
fn with_times(sql: &str) -> String {
    let mut parts = sql.split("utc(");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (column, rest) = part.split_once(')').unwrap_or((part, ""));
        text += "to_char(";
        text += column;
        text += " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')";
        text += rest;
    }
    text
}

fn summary(row: &Row) -> Result<SagaSummary, SagaError> {
    Ok(SagaSummary {
        id: row.try_get(0)?,
        status: row.try_get(1)?,
        deadlines_passed: row.try_get(2)?,
        updated_at: row.try_get(3)?,
        deadline: row.try_get(4)?,
        ended_at: row.try_get(5)?,
    })
}

/// Open sagas by their next deadline. `only_overdue` selects sagas that have passed a
/// deadline.
pub async fn list<S: Saga>(
    client: &impl GenericClient,
    only_overdue: bool,
    limit: u32,
) -> Result<Vec<SagaSummary>, SagaError> {
    let sql = with_times(&format!(
        "SELECT {SUMMARY} FROM sagas WHERE kind = $1 AND deadline IS NOT NULL \
             AND (NOT $2 OR put_off > 0 OR deadline < statement_timestamp()) \
         ORDER BY sagas.deadline, id LIMIT $3"
    ));
    let rows = client.query(&sql, &[&S::KIND, &only_overdue, &i64::from(limit)]).await?;
    rows.iter().map(summary).collect()
}

/// Returns a saga with its timers and its history.
pub async fn show<S: Saga>(
    client: &impl GenericClient,
    id: &str,
) -> Result<Option<SagaDetails>, SagaError> {
    let sql = with_times(&format!("SELECT {SUMMARY} FROM sagas WHERE kind = $1 AND id = $2"));
    let Some(row) = client.query_opt(&sql, &[&S::KIND, &id]).await? else { return Ok(None) };
    let sql = with_times(
        "SELECT name, utc(due) FROM saga_timers WHERE kind = $1 AND id = $2 \
         ORDER BY saga_timers.due, name",
    );
    let timers = client.query(&sql, &[&S::KIND, &id]).await?;
    let timer = |row: &Row| Ok(TimerEntry { name: row.try_get(0)?, due: row.try_get(1)? });
    let timers = timers.iter().map(timer).collect::<Result<_, SagaError>>()?;
    let history = history::<S>(client, id).await?;
    Ok(Some(SagaDetails { summary: summary(&row)?, timers, history }))
}

/// Applies an action. Without `execute`, it is rolled back and the result is the plan.
pub async fn act<S: Saga>(
    client: &mut Client,
    id: &str,
    action: OperatorAction,
    execute: bool,
) -> Result<Transition, SagaError> {
    let event = match action {
        OperatorAction::Advance => S::deadline_passed(),
        OperatorAction::Compensate => S::compensation(),
    };
    let transaction = client.transaction().await?;
    let transition = advance::<S>(&transaction, id, &event, Cause::default()).await?;
    if execute {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(transition)
}

/// Deletes up to `batch` sagas that ended more than `older_than` ago, with their history and the
/// sequence of their events. Skips locked sagas.
///
/// A later event of a deleted saga fails with [`SagaError::Unknown`], so `older_than` must exceed
/// the topics' retention time and the time for which dead letters are redriven.
pub async fn clean_ended<S: Saga>(
    client: &impl GenericClient,
    older_than: Duration,
    batch: u32,
) -> Result<CleanedSagas, SagaError> {
    let sql = "WITH old AS (SELECT id FROM sagas WHERE kind = $1 \
                 AND ended_at < statement_timestamp() - $2 * interval '1 second' \
                 ORDER BY ended_at LIMIT $3 FOR UPDATE SKIP LOCKED), \
             gone AS (DELETE FROM sagas USING old \
                 WHERE sagas.kind = $1 AND sagas.id = old.id RETURNING sagas.id), \
             past AS (DELETE FROM saga_history USING gone \
                 WHERE saga_history.kind = $1 AND saga_history.id = gone.id RETURNING 1), \
             numbers AS (DELETE FROM outbox_sequences USING gone \
                 WHERE aggregate_type = $1 AND aggregate_id = gone.id) \
         SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM past)";
    let statement = client.prepare_typed(sql, &[Type::TEXT, Type::FLOAT8, Type::INT8]).await?;
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&S::KIND, &older_than.as_secs_f64(), &i64::from(batch)];
    let row = client.query_one(&statement, &values).await?;
    let number = |at| Ok::<_, SagaError>(u64::try_from(row.try_get::<_, i64>(at)?).unwrap_or(0));
    Ok(CleanedSagas { sagas: number(0)?, history: number(1)? })
}
