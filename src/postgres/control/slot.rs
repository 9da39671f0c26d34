//! Reads one replication slot from `pg_replication_slots`; `None` if it does not exist.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{get, position};
use postrider_core::lsn::Lsn;

const DOING: &str = "looking at the replication slot";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFacts {
    /// `None` for a physical slot.
    pub plugin: Option<String>,
    pub database: Option<String>,
    /// Server process that streams from it.
    pub active_pid: Option<i32>,
    /// That session's application name and address, if visible.
    pub holder: String,
    /// Everything before it is acknowledged.
    pub confirmed_flush: Option<Lsn>,
    /// WAL from here on is kept for the slot.
    pub restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost` (13 and later).
    pub wal_status: Option<String>,
    /// Why the server invalidated it, if it did.
    pub invalidation: Option<String>,
    /// True if a standby synchronises it with the primary's slot (17 and later).
    pub synced: bool,
    /// True if it sends prepared transactions (14 and later).
    pub two_phase: bool,
    /// What its creation waits for, if the server shows it.
    pub waits_for: Option<String>,
}

impl SlotFacts {
    pub fn is_lost(&self) -> bool {
        self.wal_status.as_deref() == Some("lost") || self.invalidation.is_some()
    }

    /// True during creation: a logical slot has no confirmed position until the transactions that
    /// were open at its start have ended.
    pub fn is_unfinished(&self) -> bool {
        self.plugin.is_some() && self.confirmed_flush.is_none() && !self.is_lost()
    }

    pub fn unfinished(&self, name: &str) -> Option<ControlError> {
        self.is_unfinished().then(|| ControlError::SlotUnfinished {
            slot: name.to_owned(),
            pid: self.active_pid,
            waits_for: self.waits_for.clone(),
        })
    }
}

pub async fn slot(client: &Client, name: &str) -> Result<Option<SlotFacts>, ControlError> {
    const SQL: &str = "\
        SELECT s.plugin::text, s.database::text, s.active_pid, \
            concat_ws(' from ', nullif(a.application_name, ''), host(a.client_addr)), \
            s.confirmed_flush_lsn::text, s.restart_lsn::text, to_jsonb(s)->>'wal_status', \
            coalesce(to_jsonb(s)->>'invalidation_reason', \
                CASE WHEN to_jsonb(s)->>'conflicting' = 'true' THEN 'conflict with recovery' END), \
            coalesce((to_jsonb(s)->>'synced')::bool, false) AND pg_is_in_recovery(), \
            coalesce((to_jsonb(s)->>'two_phase')::bool, false), \
            CASE WHEN s.confirmed_flush_lsn IS NULL THEN (\
                SELECT 'transaction ' || l.transactionid || coalesce(' of process ' || nullif(\
                    (pg_catalog.pg_blocking_pids(s.active_pid))[1], 0), '') \
                FROM pg_catalog.pg_locks l WHERE l.pid = s.active_pid AND NOT l.granted \
                    AND l.locktype = 'transactionid' LIMIT 1) END \
        FROM pg_catalog.pg_replication_slots s \
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid \
        WHERE s.slot_name = $1::text";
    let row = client.run(DOING, client.sql().query_opt(SQL, &[&name])).await?;
    row.map(|row| {
        Ok(SlotFacts {
            plugin: get(&row, 0)?,
            database: get(&row, 1)?,
            active_pid: get(&row, 2)?,
            holder: get(&row, 3)?,
            confirmed_flush: position(&row, 4)?,
            restart: position(&row, 5)?,
            wal_status: get(&row, 6)?,
            invalidation: get(&row, 7)?,
            synced: get(&row, 8)?,
            two_phase: get(&row, 9)?,
            waits_for: get(&row, 10)?,
        })
    })
    .transpose()
}
