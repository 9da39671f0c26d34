//! Deletes old rows of one table, page by page from the oldest.
//!
//! Enters: a table and an age. Leaves: how many rows are gone, and how many were old enough and are
//! needed all the same. What always holds: each row is looked at once, through the index over its age
//! and its key, however many are of one age; a page is a transaction, and between two of them it
//! stops when told to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::info;

use super::table::{Along, Table, Type};
use super::{MaintenanceArgs, slot};
use crate::ShopError;
use crate::face::Count;

/// How often a sweep says how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// What this process has done so far, over all tables.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Rows that are gone.
    pub(super) deleted: AtomicU64,
    /// Outbox rows that the last look at them found old enough, and not passed by the slot.
    pub(super) held_back: AtomicU64,
    /// Runs that found no slot, or a lost one.
    pub(super) left_alone: AtomicU64,
    /// Runs that did not clean all, for that or another reason.
    pub(super) failed: AtomicU64,
}

impl Totals {
    /// For the face.
    pub(super) fn counts(&self) -> Vec<Count> {
        let now = |number: &AtomicU64| number.load(Ordering::Relaxed);
        vec![
            ("shop_maintenance_rows_deleted_total", "rows deleted", now(&self.deleted)),
            (
                "shop_maintenance_outbox_rows_held_back",
                "outbox rows old enough that the slot has not passed",
                now(&self.held_back),
            ),
            (
                "shop_maintenance_outbox_left_alone_total",
                "runs without a slot, or with a lost one",
                now(&self.left_alone),
            ),
            ("shop_maintenance_failures_total", "runs that did not clean all", now(&self.failed)),
        ]
    }
}

/// What a sweep did to one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Swept {
    /// Rows that are gone, or would be.
    pub(super) deleted: u64,
    /// Rows that are old enough, and needed.
    pub(super) held_back: u64,
    /// Rows of other tables that went with them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) along: BTreeMap<&'static str, u64>,
    /// Why nothing was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_alone: Option<String>,
}

/// Sweeps tables over one session.
pub(super) struct Sweep<'a> {
    /// The session.
    pub(super) client: &'a Client,
    /// How.
    pub(super) args: &'a MaintenanceArgs,
    /// Counts while it runs.
    pub(super) totals: &'a Totals,
    /// Turns true when it shall end.
    pub(super) stop: watch::Receiver<bool>,
}

impl Sweep<'_> {
    /// Deletes what is old enough, or counts it, until nothing is left or it is told to stop.
    pub(super) async fn table(&self, table: Table) -> Result<Swept, ShopError> {
        if table == Table::Outbox {
            slot::check(self.client, &self.args.slot).await?;
        }
        let page = self.client.prepare(&page(table, self.args.dry_run)).await?;
        // Where the page before ended: age and key, as Postgres writes them.
        let mut from = vec!["-infinity".to_owned()];
        from.extend(table.key().iter().map(|(_, kind)| kind.least()));
        let (mut swept, mut told) = (Swept::default(), Instant::now());
        while !*self.stop.borrow() {
            let row = self.turn(table, &page, &from).await?;
            let seen = self.add(table, &row, &mut swept)?;
            if seen < u64::from(self.args.batch) {
                break;
            }
            from = row.try_get("last")?;
            if told.elapsed() >= PROGRESS {
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
        if table == Table::Outbox {
            self.totals.held_back.store(swept.held_back, Ordering::Relaxed);
        }
        Ok(swept)
    }

    async fn turn(
        &self,
        table: Table,
        page: &Statement,
        from: &[String],
    ) -> Result<Row, ShopError> {
        let (older_than, batch) = (self.args.older_than.as_secs_f64(), i64::from(self.args.batch));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&from, &older_than, &batch];
        if table == Table::Outbox {
            values.push(&self.args.slot);
        }
        Ok(self.client.query_one(page, &values).await?)
    }

    /// Adds a page up. Returns how many rows it looked at.
    fn add(&self, table: Table, row: &Row, swept: &mut Swept) -> Result<u64, ShopError> {
        let number = |column: &str| {
            let number: i64 = row.try_get(column)?;
            Ok::<_, ShopError>(u64::try_from(number).unwrap_or_default())
        };
        let mut gone = number("gone")?;
        swept.deleted += gone;
        swept.held_back += number("needed")?;
        for along in table.along() {
            let rows = number(along.table)?;
            *swept.along.entry(along.table).or_default() += rows;
            gone += rows;
        }
        if !self.args.dry_run {
            self.totals.deleted.fetch_add(gone, Ordering::Relaxed);
        }
        number("seen")
    }
}

/// Waits, unless or until told to stop.
pub(super) async fn pause(time: Duration, stop: &watch::Receiver<bool>) {
    let mut stop = stop.clone();
    // A sender that is gone tells nobody to stop, but ends the wait; it outlives every sweep.
    let _ = tokio::time::timeout(time, stop.wait_for(|stop| *stop)).await;
}

/// One page. Columns: how many rows were seen, are gone, are needed; age and key of the last one; how
/// many of each other table went along.
fn page(table: Table, dry_run: bool) -> String {
    let (name, age) = (table.name(), table.age());
    let columns = |show: fn(usize, &str, Type) -> String| {
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
        // A row that somebody holds is left for the next run.
        format!(
            "DELETE FROM {name} AS t WHERE t.ctid = ANY (ARRAY(SELECT h.ctid FROM {name} AS h \
                 WHERE h.ctid = ANY ({places}) FOR UPDATE SKIP LOCKED)) RETURNING {key}"
        )
    };
    let (mut along, mut counts) = (String::new(), String::new());
    for Along { table, which } in table.along() {
        let rows = if dry_run {
            format!("SELECT 1 FROM {table} AS a, gone AS g WHERE {which}")
        } else {
            format!("DELETE FROM {table} AS a USING gone AS g WHERE {which} RETURNING 1")
        };
        // Writing to a string cannot fail.
        let _ = write!(along, ", gone_{table} AS ({rows})");
        let _ = write!(counts, ", (SELECT count(*) FROM gone_{table}) AS {table}");
    }
    format!(
        // One comparison of all columns is a place in the index. A second one, of the age alone, would
        // be another, before all rows of that age.
        "WITH page AS MATERIALIZED (SELECT t.ctid AS place, t.{age} AS age, {key}, \
                 {is_needed} AS needed FROM {name} AS t WHERE {has_ended} \
                 AND (t.{age}, {key}) > (($1::text[])[1]::timestamptz, {from}) \
                 AND t.{age} < now() - $2::float8 * interval '1 second' \
             ORDER BY t.{age}, {key} LIMIT $3::int8), \
         gone AS ({gone}){along} \
         SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM gone) AS gone, \
             (SELECT count(*) FROM page WHERE needed) AS needed{counts}, \
             (SELECT ARRAY[age::text, {place}] FROM page ORDER BY age DESC, {back} LIMIT 1) AS last"
    )
}
