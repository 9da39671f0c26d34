//! Why a slot cannot be created because of a standby; a standby's replay state.
//!
//! Invariant: only a slot is ever created on a standby, and only on request (`source.standby`). A
//! list of hosts may lead to a standby by accident, whose slot would keep the primary's from being
//! copied to it.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{NewSlot, Requirements, STANDBY_STREAMS_SINCE, ServerFacts, get, position};
use crate::wal::Class;
use postrider_core::lsn::Lsn;

/// Replay state of a standby; empty for a primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    pub replayed: Option<Lsn>,
    /// True if an operator or Postgres itself has paused the replay.
    pub is_paused: bool,
    /// True without a connection to the primary and without an archive.
    pub is_cut_off: bool,
}

pub async fn replay(client: &Client) -> Result<Replay, ControlError> {
    const DOING: &str = "asking how far the standby has replayed";
    const SQL: &str = "\
        SELECT pg_catalog.pg_last_wal_replay_lsn()::text, \
            CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_is_wal_replay_paused() ELSE false END, \
            pg_catalog.pg_is_in_recovery() AND coalesce(current_setting('restore_command', true), '') = '' \
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver)";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    Ok(Replay { replayed: position(&row, 0)?, is_paused: get(&row, 1)?, is_cut_off: get(&row, 2)? })
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StandbyError {
    /// Publications must be created on the primary, and slots too unless a standby's own is
    /// requested.
    #[error("the server is a standby and cannot create `{object}`")]
    ReadOnly { object: String, wanted: bool },
    #[error(
        "the server is not a standby, and `source.standby` requires slot `{slot}` on a standby"
    )]
    NoStandby { slot: String },
    /// A standby can start decoding only where the primary has logged its running transactions.
    #[error(
        "replication slot `{slot}` is not made yet: the standby waits until the primary writes into the WAL \
         which transactions are open, and these have ended"
    )]
    AwaitsSnapshot { slot: String },
}

impl StandbyError {
    pub(super) const fn class(&self) -> Class {
        match self {
            Self::AwaitsSnapshot { .. } => Class::Transient,
            Self::ReadOnly { .. } | Self::NoStandby { .. } => Class::Configuration,
        }
    }

    pub(super) fn hint(&self) -> String {
        let hint = match self {
            Self::ReadOnly { wanted: true, .. } => {
                "only the slot is made on a standby, from PostgreSQL 16 on: at the primary `postrider setup --no-slot` \
                 makes the rest, which comes to the standby by itself; then run this again"
            }
            Self::ReadOnly { wanted: false, .. } => {
                "connect to the primary: add target_session_attrs=primary; to stream from this standby by a slot of its \
                 own (PostgreSQL 16 and later): source.standby = true"
            }
            Self::NoStandby { .. } => {
                "name the standby alone in source.url; or set source.standby = false to have the slot on the primary; \
                 if this was the standby and was promoted, and its slot is gone: `postrider repair`"
            }
            Self::AwaitsSnapshot { .. } => {
                "at the primary, while this runs again: SELECT pg_log_standby_snapshot(); which an idle primary does \
                 not do by itself; and end the write transactions there that stay open. A role that is no superuser needs: \
                 GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO ROLE;"
            }
        };
        hint.to_owned()
    }
}

impl Requirements {
    pub(super) fn wants_standby(&self) -> bool {
        self.new_slot == NewSlot::OfStandby
    }

    pub(super) fn refuses_slot_on(&self, server: &ServerFacts) -> Option<StandbyError> {
        let slot = || self.slot.clone();
        let can_stream = server.version_num >= STANDBY_STREAMS_SINCE;
        match (server.in_recovery, self.wants_standby()) {
            (true, true) if can_stream => None,
            (true, wanted) => Some(StandbyError::ReadOnly { object: slot(), wanted }),
            (false, true) => Some(StandbyError::NoStandby { slot: slot() }),
            (false, false) => None,
        }
    }
}
