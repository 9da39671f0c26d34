//! Deletes old rows of one table, slice by slice of time.
//!
//! Enters: a table and an age. Leaves: how many rows are gone. What always holds: each slice is looked
//! at once (the index over times finds it), however many dead rows lie before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::Client;

use super::MaintenanceArgs;
use super::horizon::Table;
use crate::shop::ShopError;

/// Hours of rows that are looked at together.
const SLICE_H: f64 = 1.0;

/// What this process has deleted so far.
#[derive(Debug, Default)]
pub(super) struct Swept {
    rows: AtomicU64,
    failures: AtomicU64,
}

impl Swept {
    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Rows deleted, runs that failed.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.rows.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }
}

/// How many rows are older.
pub(super) async fn count(client: &Client, table: Table, age: Duration) -> Result<u64, ShopError> {
    let (name, column) = (table.name(), table.age());
    let sql =
        format!("SELECT count(*) FROM {name} WHERE {column} < now() - $1 * interval '1 second'");
    let rows: i64 = client.query_one(&sql, &[&age.as_secs_f64()]).await?.try_get(0)?;
    Ok(u64::try_from(rows).unwrap_or_default())
}

/// Deletes them. Returns how many.
pub(super) async fn sweep(
    client: &Client,
    table: Table,
    args: &MaintenanceArgs,
    swept: &Swept,
) -> Result<u64, ShopError> {
    let (name, column) = (table.name(), table.age());
    // Hours, counted back from now, so that no clock but the database's is looked at.
    let oldest =
        format!("SELECT (extract(epoch FROM now() - min({column})) / 3600)::float8 FROM {name}");
    let oldest: Option<f64> = client.query_one(&oldest, &[]).await?.try_get(0)?;
    let newest = args.older_than.as_secs_f64() / 3600.0;
    // A row that somebody holds is left for the next run.
    let delete = format!(
        "DELETE FROM {name} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {name} \
         WHERE {column} >= now() - $1 * interval '1 hour' \
           AND {column} < now() - $2 * interval '1 hour' LIMIT $3 FOR UPDATE SKIP LOCKED))"
    );
    let delete = client.prepare(&delete).await?;
    let mut deleted = 0;
    // A little further back than the oldest, whose age has grown since.
    let mut from = oldest.map_or(0.0, |hours| hours + SLICE_H);
    while from > newest {
        let to = (from - SLICE_H).max(newest);
        let rows = client.execute(&delete, &[&from, &to, &i64::from(args.batch)]).await?;
        deleted += rows;
        swept.rows.fetch_add(rows, Ordering::Relaxed);
        if rows > 0 {
            tokio::time::sleep(args.pause).await;
        }
        if rows < u64::from(args.batch) {
            from = to;
        }
    }
    Ok(deleted)
}
