//! Lists, judges and drops partitions of an outbox that is partitioned by age.
//!
//! Invariant: a partition is dropped only if all its rows are old and passed, checked under a lock
//! that excludes writers. The default partition and one without an upper bound stay.
//!
//! Order of the locks: first SHARE on the partition, which excludes its writers but allows writes
//! into other partitions. Under it the rows are counted. ACCESS EXCLUSIVE on the table (DETACH)
//! comes last and is short. A writer with a lock on the table that waits for the partition would
//! deadlock with this order. A lock is therefore awaited for half of `deadlock_timeout`: this side
//! always gives way.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::PruneError;
use super::passed::{Held, Passed};
use super::rows::failed;
use super::table::{PruneTable, table_name};
use crate::control::connect::Client;
use crate::control::error::ControlError;
use crate::control::hint_text::qualified;
use crate::control::inspect::get;
use crate::wal::quote::identifier;
use postrider_core::outbox::TableName;

const DOING: &str = "looking at a partition";
const DROPPING: &str = "dropping a partition";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    pub name: TableName,
    pub oid: u32,
    /// Bound from the catalog; all rows are older.
    pub until: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionState {
    pub rows: u64,
    pub kept: u64,
    /// Rows held back by each slot, in the order of [`Passed`].
    pub held: Vec<Held>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dropped {
    Gone(u64),
    /// A row that must stay is in it now.
    Kept(PartitionState),
    Locked,
    /// Other objects, for example a view, depend on it.
    Needed,
    /// Another session has removed it from the table.
    Vanished,
}

/// Partitions completely before `cutoff`, oldest first.
pub async fn partitions(
    client: &Client,
    table: &PruneTable,
    cutoff: &str,
) -> Result<Vec<Partition>, PruneError> {
    let kind = &table.age_type;
    // The default partition's bound has no values, and MAXVALUE is not quoted. A partition in
    // detachment is skipped.
    let sql = format!(
        "SELECT * FROM (SELECT n.nspname::text, c.relname::text, c.oid, \
             substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid) FROM ' TO \\(''([^'']*)''') AS until \
         FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE i.inhparent = $1::oid AND c.relkind IN ('r', 'p') \
             AND NOT coalesce((to_jsonb(i)->>'inhdetachpending')::bool, false)) AS part \
         WHERE until IS NOT NULL AND until::{kind} <= ($2::text::timestamptz)::{kind} \
         ORDER BY until::{kind}"
    );
    let rows = client.run(DOING, client.sql().query(&sql, &[&table.oid, &cutoff])).await?;
    let part =
        |row| Ok(Partition { name: table_name(row)?, oid: get(row, 2)?, until: get(row, 3)? });
    Ok(rows.iter().map(part).collect::<Result<_, ControlError>>()?)
}

impl Partition {
    pub async fn count(
        &self,
        client: &Client,
        table: &PruneTable,
        cutoff: &str,
        passed: &Passed,
    ) -> Result<PartitionState, PruneError> {
        let (name, age, kind) = (qualified(&self.name), identifier(&table.age), &table.age_type);
        let (condition, flags, counts) = (passed.condition(), passed.columns(), passed.counts());
        let sql = format!(
            "SELECT count(*), count(*) FILTER (WHERE may_go IS NOT TRUE), {counts} \
             FROM (SELECT t.{age} < ($1::text::timestamptz)::{kind} AND {condition} AS may_go, {flags} \
                 FROM {name} AS t) AS one"
        );
        let found = client.sql().query_one(&sql, &[&cutoff]).await;
        let row = found.map_err(|error| failed(DOING, &error))?;
        let number = |at: usize| Ok::<_, ControlError>(get::<i64>(&row, at)?.unsigned_abs());
        let held = passed.held(&get::<Vec<i64>>(&row, 2)?);
        Ok(PartitionState { rows: number(0)?, kept: number(1)?, held })
    }
}

pub async fn drop_partition(
    client: &Client,
    table: &PruneTable,
    partition: &Partition,
    (cutoff, passed): (&str, &Passed),
    lock_timeout: Duration,
) -> Result<Dropped, PruneError> {
    let limit = patience(client, lock_timeout).await?;
    let ended = attempt(client, table, partition, (cutoff, passed), limit).await;
    if !matches!(ended, Ok(Dropped::Gone(_))) {
        // A closed session has already rolled back.
        let _ = client.sql().batch_execute("ROLLBACK").await;
    }
    match ended {
        // lock_not_available, deadlock_detected; 42P01 after another session's rename or DROP.
        Err(PruneError::Control(error)) if error.is_of(&["55P03", "40P01"]) => Ok(Dropped::Locked),
        Err(PruneError::Control(error)) if error.is_of(&["42P01"]) => Ok(Dropped::Vanished),
        // dependent_objects_still_exist
        Err(PruneError::Control(error)) if error.is_of(&["2BP01"]) => Ok(Dropped::Needed),
        ended => ended,
    }
}

async fn attempt(
    client: &Client,
    table: &PruneTable,
    partition: &Partition,
    (cutoff, passed): (&str, &Passed),
    limit_ms: i64,
) -> Result<Dropped, PruneError> {
    const IS_PART: &str = "SELECT FROM pg_catalog.pg_inherits WHERE inhrelid = $1::oid AND inhparent = $2::oid \
         AND $1::oid = to_regclass($3::text)";
    let (parent, name) = (qualified(&table.name), qualified(&partition.name));
    let run = async |sql: String| {
        let done = client.sql().batch_execute(&sql).await;
        done.map_err(|error| failed(DROPPING, &error))
    };
    // Each statement sees the latest commits, whatever the role's default isolation is.
    run(format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {limit_ms}; \
         LOCK TABLE {name} IN SHARE MODE"
    ))
    .await?;
    let values: [&(dyn ToSql + Sync); 3] = [&partition.oid, &table.oid, &name];
    let is_part = client.sql().query_opt(IS_PART, &values);
    if client.run(DROPPING, is_part).await?.is_none() {
        return Ok(Dropped::Vanished);
    }
    let state = partition.count(client, table, cutoff, passed).await?;
    if state.kept > 0 {
        return Ok(Dropped::Kept(state));
    }
    run(format!("ALTER TABLE {parent} DETACH PARTITION {name}; DROP TABLE {name}; COMMIT")).await?;
    Ok(Dropped::Gone(state.rows))
}

/// Limit in milliseconds; see the module documentation.
async fn patience(client: &Client, lock_timeout: Duration) -> Result<i64, PruneError> {
    const SQL: &str = "SELECT greatest(1, least($1::int8, setting::int8 / 2)) \
        FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'";
    // 0 would mean no limit.
    let wanted = i64::try_from(lock_timeout.as_millis()).unwrap_or(i64::MAX);
    let row = client.run(DROPPING, client.sql().query_one(SQL, &[&wanted])).await?;
    Ok(get(&row, 0)?)
}
