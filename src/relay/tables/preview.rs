//! Previews a job before it delivers rows. Writes nothing.

use std::fmt;

use serde::Serialize;
use tokio::runtime::Handle;

use super::backfill::committed_in;
use super::session::{Found, FoundTable, find, reached};
use super::zone::refuse_without_zone;
use super::{RowFilter, TableJob, TableRows};
use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::meter::{Meter, Total};
use crate::plan::Plan;
use postrider_core::progress::{BackfillProgress, Lineage, Progress};
use postrider_kafka::newest_progress;
use postrider_postgres::wal::{Connection, WalError, sql_after, sql_rows};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TablePreview {
    /// Quoted as in SQL.
    pub table: String,
    /// Columns that define the reading order.
    pub order_by: Vec<String>,
    pub rows: u64,
    /// Rows that the backfill has already delivered.
    #[serde(skip_serializing_if = "is_zero")]
    pub delivered: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_zero(rows: &u64) -> bool {
    *rows == 0
}

impl fmt::Display for TablePreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, order_by, rows, delivered } = self;
        write!(f, "{table}: {rows} rows, in the order of {}", order_by.join(", "))?;
        if *delivered > 0 { write!(f, "; {delivered} are delivered") } else { Ok(()) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPreview {
    /// In reading order.
    pub tables: Vec<TablePreview>,
    /// Backfill that has begun and not ended.
    pub begun: Option<BackfillProgress>,
    pub slot_exists: bool,
    /// According to the progress in Kafka. A backfill then has nothing to send.
    pub has_streamed: bool,
}

impl JobPreview {
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }
}

/// Reads the tables and, for a backfill, the progress in Kafka.
pub async fn preview(plan: &Plan, job: &TableJob) -> Result<JobPreview, RelayError> {
    let wanted = plan.requirements()?;
    let found = find(plan, job, &wanted).await?;
    let asks_kafka = matches!(job.rows, TableRows::Backfill { .. }) && plan.keeps_progress();
    let has_window = |filter: &RowFilter| filter.since.is_some() || filter.until.is_some();
    let times_count = matches!(&job.rows, TableRows::Replay(filter) if has_window(filter));
    run_blocking(move || {
        let mut connection = Connection::open(&found.plan.config.source.connect, &found.params)?;
        if times_count {
            let column = &found.plan.config.outbox.created_at;
            for table in &found.tables {
                let of = (table.name.to_string(), table.facts.oid);
                refuse_without_zone(&mut connection, (&of.0, of.1), column)?;
            }
        }
        let progress = if asks_kafka { progress(&found, &mut connection)? } else { None };
        let has_streamed = progress.as_ref().is_some_and(|progress| progress.backfill.is_none());
        let begun = progress.and_then(|progress| progress.backfill);
        let tables = counts(&found, &mut connection, begun.as_ref())?;
        let slot_exists = found.inspection.slot.is_some();
        Ok(JobPreview { tables, begun, slot_exists, has_streamed })
    })
    .await?
}

fn progress(found: &Found, connection: &mut Connection) -> Result<Option<Progress>, RelayError> {
    let identity = connection.identify_system()?;
    let (system, timeline) = (identity.system_id, identity.timeline);
    let lineage = Lineage { system, timeline, ..found.plan.lineage(&found.inspection) };
    Ok(newest_progress(&found.plan.kafka, &lineage.key())?)
}

/// `begun`: excludes rows that this backfill has delivered.
fn counts(
    found: &Found,
    connection: &mut Connection,
    begun: Option<&BackfillProgress>,
) -> Result<Vec<TablePreview>, RelayError> {
    let mut tables = Vec::new();
    for (table, query) in found.tables.iter().zip(count_queries(found, begun)?) {
        let (rows, all) = count(connection, &query)?;
        tables.push(TablePreview {
            table: table.name.to_string(),
            order_by: table.order_by.iter().map(|column| column.name.clone()).collect(),
            rows,
            delivered: all.saturating_sub(rows),
        });
    }
    Ok(tables)
}

/// Counts the rows of a backfill on a separate connection, while the first rows are delivered.
/// `begun`, the progress at the start of this process, excludes rows that this process delivers.
pub(super) fn count_beside(
    found: &Found,
    begun: &BackfillProgress,
    (meter, runtime): (&Meter, &Handle),
) -> Result<(), RelayError> {
    let queries = count_queries(found, Some(begun))?;
    let (server, params) = (found.plan.config.source.connect.clone(), found.params.clone());
    let meter = meter.clone();
    runtime.spawn_blocking(move || {
        let counted = || -> Result<(u64, u64), WalError> {
            let mut connection = Connection::open(&server, &params)?;
            queries.iter().try_fold((0, 0), |(left, all), query| {
                let (rows, of_table) = count(&mut connection, query)?;
                Ok((left + rows, all + of_table))
            })
        };
        // An error that prevents the count also prevents the delivery, which reports it.
        if let Ok((left, all)) = counted() {
            meter.set_whole(all.saturating_sub(left), Total::Exactly(all));
        }
    });
    Ok(())
}

/// SQL per table that counts the remaining rows and all rows.
fn count_queries(
    found: &Found,
    begun: Option<&BackfillProgress>,
) -> Result<Vec<String>, RelayError> {
    let cursor = begun.and_then(|begun| begun.cursor.as_ref());
    let reached = cursor.map_or(Ok(0), |cursor| reached(found, cursor))?;
    let seen = begun.map(|begun| begun.snapshot.as_str()).filter(|seen| !seen.is_empty());
    let query = |(at, table): (usize, &FoundTable)| {
        let left = match cursor {
            _ if at < reached => "false".to_owned(),
            Some(cursor) if at == reached => sql_after(&table.order_by, &cursor.after),
            _ => "true".to_owned(),
        };
        let conditions = table.condition.clone().into_iter().chain(seen.map(committed_in));
        let conditions = conditions.map(|one| format!("({one})")).chain(["true".to_owned()]);
        let condition = conditions.collect::<Vec<_>>().join(" AND ");
        let rows = sql_rows(&table.name, table.facts.is_partitioned());
        format!("SELECT count(*) FILTER (WHERE {left}), count(*) FROM {rows} WHERE {condition}")
    };
    Ok(found.tables.iter().enumerate().map(query).collect())
}

fn count(connection: &mut Connection, query: &str) -> Result<(u64, u64), WalError> {
    let counted = connection.patient_query(query)?;
    let number = |at: usize| counted.first()?.get(at)?.as_deref()?.parse::<u64>().ok();
    number(0).zip(number(1)).ok_or(WalError::Protocol("a malformed count"))
}
