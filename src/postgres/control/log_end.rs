//! Reads the end of the server's log.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{get, known};
use crate::wal::WalError;
use postrider_core::lsn::Lsn;

const DOING: &str = "asking for the end of the log";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Flushed position of a primary, or replayed position of a standby.
    pub lsn: Lsn,
    /// `None` on a standby, which reports its timeline only to a replication connection.
    pub timeline: Option<u32>,
}

pub async fn log_end(client: &Client) -> Result<LogEnd, ControlError> {
    const SQL: &str = "\
        SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
                ELSE pg_catalog.pg_current_wal_flush_lsn() END::text, \
            CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN ('x' || left( \
                pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint END";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    let timeline = get::<Option<i64>>(&row, 1)?.map(u32::try_from).transpose();
    let timeline = timeline.map_err(|_| ControlError::Connection {
        doing: DOING,
        source: WalError::Protocol("a timeline that is none"),
    })?;
    Ok(LogEnd { lsn: known(&row, 0)?, timeline })
}
