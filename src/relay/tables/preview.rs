//! What a job would deliver, before it does.
//!
//! Input: a plan and a job. Output: for each table its order and how many rows fit; for a backfill whether it begins
//! or goes on. Invariant: nothing is written anywhere.

use std::fmt;

use serde::Serialize;

use super::backfill::committed_in;
use super::session::{Found, find, reached};
use super::zone::refuse_without_zone;
use super::{RowFilter, TableJob, TableRows};
use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::plan::Plan;
use postrider_core::progress::{BackfillProgress, Lineage, Progress};
use postrider_kafka::newest_progress;
use postrider_postgres::wal::{Connection, WalError, sql_after, sql_rows};

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TablePreview {
    /// The table, quoted as in SQL.
    pub table: String,
    /// The columns that its rows are read in the order of.
    pub order_by: Vec<String>,
    /// Rows that would be delivered, as of now.
    pub rows: u64,
    /// Rows that the backfill has delivered before.
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

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPreview {
    /// In the order in which they are read.
    pub tables: Vec<TablePreview>,
    /// A backfill that has begun and not ended.
    pub begun: Option<BackfillProgress>,
    /// Whether the slot exists.
    pub slot_exists: bool,
    /// A stream of this slot has delivered rows, as the progress in Kafka says: there is nothing of before it.
    pub has_streamed: bool,
}

impl JobPreview {
    /// How many rows would be delivered.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// How many rows the backfill has delivered before.
    pub fn delivered(&self) -> u64 {
        self.tables.iter().map(|table| table.delivered).sum()
    }
}

/// Looks at both sides.
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

/// `begun`: only rows that it has not delivered yet count.
fn counts(
    found: &Found,
    connection: &mut Connection,
    begun: Option<&BackfillProgress>,
) -> Result<Vec<TablePreview>, RelayError> {
    let cursor = begun.and_then(|begun| begun.cursor.as_ref());
    let reached = cursor.map_or(Ok(0), |cursor| reached(found, cursor))?;
    let seen = begun.map(|begun| begun.snapshot.as_str()).filter(|seen| !seen.is_empty());
    let mut tables = Vec::new();
    for (at, table) in found.tables.iter().enumerate() {
        let left = match cursor {
            _ if at < reached => "false".to_owned(),
            Some(cursor) if at == reached => sql_after(&table.order_by, &cursor.after),
            _ => "true".to_owned(),
        };
        let conditions = table.condition.clone().into_iter().chain(seen.map(committed_in));
        let conditions = conditions.map(|one| format!("({one})")).chain(["true".to_owned()]);
        let condition = conditions.collect::<Vec<_>>().join(" AND ");
        let rows = sql_rows(&table.name, table.facts.is_partitioned());
        let counted = connection.patient_query(&format!(
            "SELECT count(*) FILTER (WHERE {left}), count(*) FROM {rows} WHERE {condition}"
        ))?;
        let number = |at: usize| counted.first()?.get(at)?.as_deref()?.parse::<u64>().ok();
        let (rows, all) =
            number(0).zip(number(1)).ok_or(WalError::Protocol("a malformed count"))?;
        tables.push(TablePreview {
            table: table.name.to_string(),
            order_by: table.order_by.iter().map(|column| column.name.clone()).collect(),
            rows,
            delivered: all.saturating_sub(rows),
        });
    }
    Ok(tables)
}
