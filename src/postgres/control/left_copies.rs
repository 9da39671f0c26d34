//! Finds temporary copies of a slot that a relay made to read a backlog in windows, and left
//! behind.
//!
//! A copy ends with its connection, but the server does not end a Unix socket connection whose
//! client has stopped reading. The copy then keeps WAL, and holds VACUUM back. Its name contains
//! the process ids of copy and stream. Invariant: a copy whose stream is alive is never named or
//! ended.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::get;
use crate::wal::COPY_PREFIX as PREFIX;

const DOING: &str = "looking for copies of slots";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftCopy {
    pub name: String,
    pub pid: i32,
    pub retained_bytes: i64,
}

/// Query for abandoned copies. If another stream reuses the process id, a copy seems alive.
fn left() -> String {
    format!(
        "SELECT s.slot_name::text AS name, s.active_pid AS pid, \
             coalesce(pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() \
                 THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, \
                 s.restart_lsn), 0)::bigint AS bytes \
         FROM pg_catalog.pg_replication_slots s \
         WHERE s.temporary AND s.database = current_database() \
             AND pg_catalog.substring(s.slot_name::text, '^{PREFIX}_([0-9]+)_[0-9]+$')::int = s.active_pid \
             AND pg_catalog.substring(s.slot_name::text, '^{PREFIX}_[0-9]+_([0-9]+)$')::int \
                 NOT IN (SELECT sender.pid FROM pg_catalog.pg_stat_get_wal_senders() AS sender)"
    )
}

pub async fn left_copies(client: &Client) -> Result<Vec<LeftCopy>, ControlError> {
    copies(client, &format!("{} ORDER BY 1", left())).await
}

/// Ends the processes of abandoned copies, if the role may. Returns the ended copies.
pub async fn end_left_copies(client: &Client) -> Result<Vec<LeftCopy>, ControlError> {
    let sql = format!(
        "WITH own AS MATERIALIZED (SELECT copy.name, copy.pid, copy.bytes FROM ({}) AS copy \
             JOIN pg_catalog.pg_stat_activity a ON a.pid = copy.pid AND a.usename = current_user) \
         SELECT own.name, own.pid, own.bytes FROM own WHERE pg_catalog.pg_terminate_backend(own.pid)",
        left()
    );
    copies(client, &sql).await
}

async fn copies(client: &Client, sql: &str) -> Result<Vec<LeftCopy>, ControlError> {
    let rows = client.run(DOING, client.sql().query(sql, &[])).await?;
    let one =
        |row| Ok(LeftCopy { name: get(row, 0)?, pid: get(row, 1)?, retained_bytes: get(row, 2)? });
    rows.iter().map(one).collect()
}
