//! Adds partitions of coming days to an outbox that is partitioned by age.
//!
//! Days are in UTC. Invariant: a lock is awaited for at most `lock_timeout`, and held for at most
//! [`SCAN_LIMIT`]; existing objects stay unchanged.

use std::time::Duration;

use super::PruneError;
use super::rows::failed;
use super::table::PruneTable;
use crate::control::connect::Client;
use crate::control::error::ControlError;
use crate::control::hint_text::qualified;
use crate::control::inspect::get;
use crate::control::outbox_table::partition_name;
use crate::wal::quote::{identifier, literal};
use postrider_core::outbox::TableName;

const DOING: &str = "adding a partition";

/// Postgres scans the default partition for rows of the new one.
const SCAN_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Day {
    pub partition: TableName,
    /// Lower bound in SQL syntax.
    pub from: String,
    /// Exclusive upper bound.
    pub until: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    Created,
    /// Another session has created a partition that covers part of the day.
    Covered,
    /// The default partition contains rows of the day, or too many to scan in time.
    Occupied,
    /// Another object has the partition's name.
    Taken,
    Locked,
}

/// Earliest first.
pub async fn missing_days(
    client: &Client,
    table: &PruneTable,
    ahead: u32,
) -> Result<Vec<Day>, PruneError> {
    if !table.by_age {
        let (table, column) = (table.name.clone(), table.age.clone());
        return Err(PruneError::NotByAge { table, column });
    }
    let kind = &table.age_type;
    let form = match kind.as_str() {
        "date" => "YYYY-MM-DD",
        "timestamp with time zone" => "YYYY-MM-DD 00:00:00+00",
        _ => "YYYY-MM-DD 00:00:00",
    };
    // MINVALUE and MAXVALUE are not quoted, so such a bound is NULL.
    let sql = format!(
        "WITH day AS ( \
             SELECT to_char(day, 'YYYYMMDD') AS name, to_char(day, '{form}') AS since, \
                 to_char(day + interval '1 day', '{form}') AS until \
             FROM (SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + n * interval '1 day' AS day \
                 FROM generate_series(0, $2::int8) AS n) AS days), \
         part AS ( \
             SELECT substring(bound FROM ' FROM \\(''([^'']*)''') AS since, \
                 substring(bound FROM ' TO \\(''([^'']*)''') AS until \
             FROM (SELECT pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound \
                 FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid \
                 WHERE i.inhparent = $1::oid) AS bounds \
             WHERE bound LIKE 'FOR VALUES FROM %') \
         SELECT name, since, until FROM day WHERE NOT EXISTS (SELECT FROM part \
             WHERE coalesce(part.since::{kind} < day.until::{kind}, true) \
                 AND coalesce(part.until::{kind} > day.since::{kind}, true)) \
         ORDER BY name"
    );
    let rows =
        client.run(DOING, client.sql().query(&sql, &[&table.oid, &i64::from(ahead)])).await?;
    let day = |row| {
        let name = partition_name(&table.name.name, &get::<String>(row, 0)?);
        let partition = TableName::new(&table.name.schema, name);
        Ok(Day { partition, from: get(row, 1)?, until: get(row, 2)? })
    };
    Ok(rows.iter().map(day).collect::<Result<_, ControlError>>()?)
}

pub async fn add_day(
    client: &Client,
    table: &PruneTable,
    day: &Day,
    lock_timeout: Duration,
) -> Result<Added, PruneError> {
    let (lock_ms, scan_ms) = (lock_timeout.as_millis().max(1), SCAN_LIMIT.as_millis());
    let (name, parent) = (qualified(&day.partition), qualified(&table.name));
    let (from, until, owner) = (literal(&day.from), literal(&day.until), identifier(&table.owner));
    // Members of the owner's role create it for the owner.
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {lock_ms}; SET LOCAL statement_timeout = {}; \
         CREATE TABLE {name} PARTITION OF {parent} FOR VALUES FROM ({from}) TO ({until}); \
         ALTER TABLE {name} OWNER TO {owner}; COMMIT",
        lock_ms + scan_ms
    );
    let done = client.sql().batch_execute(&sql).await;
    let Err(error) = done.map_err(|error| failed(DOING, &error)) else { return Ok(Added::Created) };
    // A closed session has already rolled back.
    let _ = client.sql().batch_execute("ROLLBACK").await;
    // lock_not_available and deadlock_detected; invalid_object_definition for an overlap;
    // check_violation and query_canceled for the default partition; duplicate_table, and
    // duplicate_object if a type has the name.
    if error.is_of(&["55P03", "40P01"]) {
        Ok(Added::Locked)
    } else if error.is_of(&["42P17"]) {
        Ok(Added::Covered)
    } else if error.is_of(&["23514", "57014"]) {
        Ok(Added::Occupied)
    } else if error.is_of(&["42P07", "42710"]) {
        Ok(Added::Taken)
    } else {
        Err(error.into())
    }
}
