//! Deletes old rows of one table, page by page from the oldest.
//!
//! Invariant: each row is visited once, by keyset pagination through the index over age and key. A
//! page is one transaction.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::info;

use super::table::{CleanupTable, Dependent, KeyType};
use super::{MaintenanceArgs, slot};
use crate::ShopError;
use crate::probes::Metric;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct MaintenanceTotals {
    pub(super) deleted: AtomicU64,
    /// Outbox rows of the last run that the slot had not passed.
    pub(super) held_back: AtomicU64,
    pub(super) left_alone: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl MaintenanceTotals {
    pub(super) fn counts(&self) -> Vec<Metric> {
        let now = |number: &AtomicU64| number.load(Ordering::Relaxed);
        vec![
            ("shop_maintenance_rows_deleted_total", "rows deleted", now(&self.deleted)),
            (
                "shop_maintenance_outbox_rows_held_back",
                "outbox rows that are old enough but not passed by the slot",
                now(&self.held_back),
            ),
            (
                "shop_maintenance_outbox_left_alone_total",
                "runs that skipped the outbox: slot missing or lost",
                now(&self.left_alone),
            ),
            (
                "shop_maintenance_failures_total",
                "runs that failed for any table",
                now(&self.failed),
            ),
        ]
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct CleanupCounts {
    /// In a dry run, rows that would be deleted.
    pub(super) deleted: u64,
    /// Old enough, but still needed.
    pub(super) held_back: u64,
    #[serde(rename = "along", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) dependents: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_alone: Option<String>,
}

pub(super) struct Sweep<'a> {
    pub(super) client: &'a Client,
    pub(super) args: &'a MaintenanceArgs,
    pub(super) totals: &'a MaintenanceTotals,
    pub(super) stop: watch::Receiver<bool>,
}

impl Sweep<'_> {
    /// Ends when no old row is left, or at the stop signal.
    pub(super) async fn table(&self, table: CleanupTable) -> Result<CleanupCounts, ShopError> {
        if table == CleanupTable::Outbox {
            slot::check(self.client, &self.args.slot).await?;
        }
        let page = self.client.prepare(&page(table, self.args.dry_run)).await?;
        // End of the previous page: age and key as text.
        let mut from = vec!["-infinity".to_owned()];
        from.extend(table.key().iter().map(|(_, kind)| kind.least()));
        let (mut swept, mut told) = (CleanupCounts::default(), Instant::now());
        while !*self.stop.borrow() {
            let row = self.fetch_page(table, &page, &from).await?;
            let seen = self.add(table, &row, &mut swept)?;
            if seen < u64::from(self.args.batch) {
                break;
            }
            from = row.try_get("last")?;
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                info!(
                    table = table.name(),
                    deleted = swept.deleted,
                    up_to = from.first(),
                    "cleaning"
                );
            }
            pause(self.args.pause, &self.stop).await;
        }
        if table == CleanupTable::Outbox {
            self.totals.held_back.store(swept.held_back, Ordering::Relaxed);
        }
        Ok(swept)
    }

    async fn fetch_page(
        &self,
        table: CleanupTable,
        page: &Statement,
        from: &[String],
    ) -> Result<Row, ShopError> {
        let (older_than, batch) = (self.args.older_than.as_secs_f64(), i64::from(self.args.batch));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&from, &older_than, &batch];
        if table == CleanupTable::Outbox {
            values.push(&self.args.slot);
        }
        Ok(self.client.query_one(page, &values).await?)
    }

    fn add(
        &self,
        table: CleanupTable,
        row: &Row,
        swept: &mut CleanupCounts,
    ) -> Result<u64, ShopError> {
        let number = |column: &str| {
            let number: i64 = row.try_get(column)?;
            Ok::<_, ShopError>(u64::try_from(number).unwrap_or_default())
        };
        let mut gone = number("gone")?;
        swept.deleted += gone;
        swept.held_back += number("needed")?;
        for dependent in table.dependents() {
            let rows = number(dependent.table)?;
            *swept.dependents.entry(dependent.table).or_default() += rows;
            gone += rows;
        }
        if !self.args.dry_run {
            self.totals.deleted.fetch_add(gone, Ordering::Relaxed);
        }
        number("seen")
    }
}

pub(super) async fn pause(time: Duration, stop: &watch::Receiver<bool>) {
    let mut stop = stop.clone();
    // The sender outlives every sweep.
    let _ = tokio::time::timeout(time, stop.wait_for(|stop| *stop)).await;
}

/// Columns: numbers of visited, deleted and needed rows; age and key of the last row; deleted rows
/// per dependent table.
fn page(table: CleanupTable, dry_run: bool) -> String {
    let (name, age) = (table.name(), table.age());
    let columns = |show: fn(usize, &str, KeyType) -> String| {
        let key = table.key().iter().enumerate();
        key.map(|(at, (name, kind))| show(at, name, *kind)).collect::<Vec<_>>().join(", ")
    };
    let key = columns(|_, name, _| format!("t.{name}"));
    let from = columns(|at, _, kind| format!("($1::text[])[{}]::{}", at + 2, kind.name()));
    let place = columns(|_, name, _| format!("{name}::text"));
    let back = columns(|_, name, _| format!("{name} DESC"));
    let (has_ended, is_needed) = (table.has_ended(), table.is_needed());
    let places = "ARRAY(SELECT place FROM page WHERE NOT needed)";
    let gone = if dry_run {
        format!("SELECT {key} FROM {name} AS t WHERE t.ctid = ANY ({places})")
    } else {
        // A locked row is left for the next run.
        format!(
            "DELETE FROM {name} AS t WHERE t.ctid = ANY (ARRAY(SELECT h.ctid FROM {name} AS h \
                 WHERE h.ctid = ANY ({places}) FOR UPDATE SKIP LOCKED)) RETURNING {key}"
        )
    };
    let (mut dependents, mut counts) = (String::new(), String::new());
    for Dependent { table, which } in table.dependents() {
        let rows = if dry_run {
            format!("SELECT 1 FROM {table} AS a, gone AS g WHERE {which}")
        } else {
            format!("DELETE FROM {table} AS a USING gone AS g WHERE {which} RETURNING 1")
        };
        let _ = write!(dependents, ", gone_{table} AS ({rows})");
        let _ = write!(counts, ", (SELECT count(*) FROM gone_{table}) AS {table}");
    }
    format!(
        // A single row comparison is an index position. A separate one would start before all rows
        // of that age.
        "WITH page AS MATERIALIZED (SELECT t.ctid AS place, t.{age} AS age, {key}, \
                 {is_needed} AS needed FROM {name} AS t WHERE {has_ended} \
                 AND (t.{age}, {key}) > (($1::text[])[1]::timestamptz, {from}) \
                 AND t.{age} < now() - $2::float8 * interval '1 second' \
             ORDER BY t.{age}, {key} LIMIT $3::int8), \
         gone AS ({gone}){dependents} \
         SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM gone) AS gone, \
             (SELECT count(*) FROM page WHERE needed) AS needed{counts}, \
             (SELECT ARRAY[age::text, {place}] FROM page ORDER BY age DESC, {back} LIMIT 1) AS last"
    )
}
