//! Partitions of an outbox that is partitioned by age: listed, judged, and dropped as a whole.
//!
//! Input: a [`PruneTable`] whose partitions are ranges of the age, the moment before which rows are old, and what
//! was [`Passed`]. Output: [`Partition`]s with what holds each back; [`drop_partition`] detaches and drops one.
//! Invariant: a partition goes only if every row in it is old and passed, which is looked at under a lock that
//! keeps writers out of it, in the transaction that drops it; the default partition and one without an upper
//! bound stay. How the partitions are called does not matter: their bounds are the catalog's.
//!
//! The order of the locks: SHARE on the partition first, which waits for whoever writes into it and keeps others
//! out, but lets everybody write into the rest of the table; with it the rows are counted. ACCESS EXCLUSIVE on the
//! table, which DETACH takes, comes last and is held for as long as catalog entries are changed. A writer that has
//! the table and waits for the partition, and this, which has it the other way round, would wait for each other:
//! so a lock is waited for only half as long as Postgres takes to look for that (`deadlock_timeout`), and it is
//! always this that gives way.

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

/// A partition whose upper bound is old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: TableName,
    /// Its OID.
    pub oid: u32,
    /// Its upper bound, as the catalog has it; rows in it are older.
    pub until: String,
}

/// What is in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionState {
    /// Its rows.
    pub rows: u64,
    /// Those that may not go.
    pub kept: u64,
    /// What each slot holds back, in the order of [`Passed`].
    pub held: Vec<Held>,
}

/// What became of a partition that was to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dropped {
    /// It is gone, with so many rows.
    Gone(u64),
    /// A row that may not go is in it now.
    Kept(PartitionState),
    /// A lock was not to be had in time.
    Locked,
    /// Other objects depend on it, such as a view.
    Needed,
    /// Somebody else has taken it out of the table meanwhile.
    Vanished,
}

/// The partitions that lie before `cutoff` as a whole, oldest first.
pub async fn partitions(
    client: &Client,
    table: &PruneTable,
    cutoff: &str,
) -> Result<Vec<Partition>, PruneError> {
    let kind = &table.age_type;
    // The default partition's bound has no values, and MAXVALUE is not quoted. A partition that is being
    // detached by others is theirs.
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
    /// Counts its rows, without a lock.
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

/// Detaches a partition and drops it, if every row in it may go: in one transaction.
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
        // A session that is gone has rolled back already.
        let _ = client.sql().batch_execute("ROLLBACK").await;
    }
    match ended {
        // 55P03, and what a rename or DROP by others comes to: 42P01.
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
    // Each statement sees what was committed before it, whatever the role's default is.
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

/// How long a lock is waited for, in milliseconds: see the module.
async fn patience(client: &Client, lock_timeout: Duration) -> Result<i64, PruneError> {
    const SQL: &str = "SELECT greatest(1, least($1::int8, setting::int8 / 2)) \
        FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'";
    // 0 would be no limit at all.
    let wanted = i64::try_from(lock_timeout.as_millis()).unwrap_or(i64::MAX);
    let row = client.run(DROPPING, client.sql().query_one(SQL, &[&wanted])).await?;
    Ok(get(&row, 0)?)
}
