//! Samples the slot for the metrics: retained WAL, acknowledged position, and holder.
//!
//! `held_sample` fails unless the given stream held the slot at that moment.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{get, known, position};
use crate::wal::ServerProcess;
use postrider_core::lsn::Lsn;

const DOING: &str = "sampling the replication slot";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSample {
    /// End of the log; on a standby, of the replayed log.
    pub current: Lsn,
    pub confirmed_flush: Lsn,
    /// `None` once the slot is lost.
    pub restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`; empty before version 13.
    pub wal_status: String,
    /// `None` without a limit.
    pub safe_wal_bytes: Option<u64>,
    pub active_pid: Option<i32>,
    /// Microseconds since the Unix epoch.
    pub server_started_us: i64,
    /// Latest start or crash recovery. A crash of one process keeps the server's start time, but
    /// resets its statistics.
    pub server_recovered_us: i64,
    /// No transaction with this number or a later one has committed.
    pub next_xid: u64,
    /// Microseconds since the Unix epoch.
    pub server_now_us: i64,
}

impl SlotSample {
    /// Unacknowledged bytes, including other tables' log.
    pub fn lag_bytes(&self) -> u64 {
        self.current.bytes_since(self.confirmed_flush)
    }

    /// A suspended process learns here that another relay took over.
    pub fn is_held_by(&self, stream: ServerProcess) -> bool {
        self.server_started_us == stream.server_started_us && self.active_pid == Some(stream.pid)
    }

    pub fn retained_bytes(&self) -> u64 {
        self.restart.map_or(0, |restart| self.current.bytes_since(restart))
    }
}

pub async fn sample(client: &Client, slot: &str) -> Result<Option<SlotSample>, ControlError> {
    const SQL: &str = "\
        SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                ELSE pg_current_wal_lsn() END::text, \
            s.confirmed_flush_lsn::text, s.restart_lsn::text, \
            coalesce(to_jsonb(s)->>'wal_status', ''), (to_jsonb(s)->>'safe_wal_size')::bigint, \
            s.active_pid, \
            (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint, \
            pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()), \
            (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint, \
            (extract(epoch FROM greatest(pg_catalog.pg_postmaster_start_time(), \
                pg_catalog.pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint \
        FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::text";
    let row = client.run(DOING, client.sql().query_opt(SQL, &[&slot])).await?;
    let Some(row) = row else { return Ok(None) };
    let safe: Option<i64> = get(&row, 4)?;
    let active_pid = get(&row, 5)?;
    let confirmed_flush = position(&row, 1)?.ok_or_else(|| ControlError::SlotUnfinished {
        slot: slot.to_owned(),
        pid: active_pid,
        waits_for: None,
    })?;
    Ok(Some(SlotSample {
        current: known(&row, 0)?,
        confirmed_flush,
        restart: position(&row, 2)?,
        wal_status: get(&row, 3)?,
        // Negative if more was written than may be kept, until the next checkpoint.
        safe_wal_bytes: safe.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
        active_pid,
        server_started_us: get(&row, 6)?,
        next_xid: get::<i64>(&row, 7)?.cast_unsigned(),
        server_now_us: get(&row, 8)?,
        server_recovered_us: get(&row, 9)?,
    }))
}

/// Columns in order; empty if the slot does not exist.
pub async fn slot_columns(
    client: &Client,
    slot: &str,
) -> Result<Vec<(String, String)>, ControlError> {
    const SQL: &str = "\
        SELECT c.key, coalesce(c.value, '') \
        FROM pg_catalog.pg_replication_slots s, pg_catalog.json_each_text(pg_catalog.row_to_json(s)) c \
        WHERE s.slot_name = $1::text";
    let rows = client.run(DOING, client.sql().query(SQL, &[&slot])).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Everything read in this session since the stream began then concerns the stream's server.
/// Errors: [`ControlError::OtherServer`], [`ControlError::SlotTaken`]; both are temporary.
pub async fn held_sample(
    client: &Client,
    slot: &str,
    stream: ServerProcess,
) -> Result<SlotSample, ControlError> {
    match sample(client, slot).await? {
        Some(sample) if sample.is_held_by(stream) => Ok(sample),
        Some(sample) if sample.server_started_us != stream.server_started_us => {
            Err(ControlError::OtherServer)
        }
        other => {
            let is_held = other.is_some_and(|other| other.active_pid.is_some());
            Err(ControlError::SlotTaken { slot: slot.to_owned(), is_held })
        }
    }
}

/// Target of `run --once`. Commits with `synchronous_commit=off` are streamed only once they are on
/// disk, so this synchronously writes a small message into the log. Without that right it warns. A
/// standby contains only WAL that was on the primary's disk.
pub async fn current_flush_lsn(client: &Client) -> Result<Lsn, ControlError> {
    const DOING: &str = "asking for the end of the log";
    const PUSH: &str = "\
        SET LOCAL synchronous_commit = local; \
        SELECT pg_catalog.pg_logical_emit_message(true, 'postrider', '')";
    const UNPUSHED: &str =
        "commits of the last seconds with synchronous_commit = off may be missed";
    const RECOVERY: &str = "SELECT pg_catalog.pg_is_in_recovery()";
    const SQL: &str = "\
        SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
            ELSE pg_current_wal_flush_lsn() END::text";
    let recovery = client.run(DOING, client.sql().query_one(RECOVERY, &[])).await?;
    if !get::<bool>(&recovery, 0)? {
        match client.run(DOING, client.sql().batch_execute(PUSH)).await {
            Err(error) if error.class().is_transient() => return Err(error),
            Err(error) => {
                let help = "run it again some seconds after the last commit";
                tracing::warn!(help, "{error}; {UNPUSHED}");
            }
            Ok(()) => {}
        }
    }
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    known(&row, 0)
}
