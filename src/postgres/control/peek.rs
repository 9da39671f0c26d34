//! Reads a slot's pending messages without consuming them, for `postrider peek`.
//!
//! Invariant: the slot's confirmed position stays (Postgres may release the WAL before it).
//! `pg_logical_slot_peek_binary_changes` refuses a slot in use; a temporary copy is then read.

use tokio_postgres::types::ToSql;

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{get, known};
use super::preflight::no_free_slot;
use crate::wal::WalError;
use postrider_core::lsn::Lsn;

const DOING: &str = "looking into the slot";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekedMessage {
    pub lsn: Lsn,
    /// Message in pgoutput's format.
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
pub struct PeekRequest<'a> {
    pub slot: &'a str,
    pub publication: &'a str,
    pub messages: bool,
    /// Upper limit for the commits of transactions.
    pub before: Option<Lsn>,
    /// Maximum number of messages; Postgres still decodes the current transaction to its end.
    pub limit: u32,
}

/// Copies a slot that is in use, until this session ends. Returns the copy's name.
pub async fn copy_to_peek(client: &Client, slot: &str) -> Result<String, ControlError> {
    const SQL: &str = "\
        SELECT slot_name::text FROM pg_catalog.pg_copy_logical_replication_slot( \
            $1::text::name, ('postrider_peek_' || pg_catalog.pg_backend_pid())::name, true)";
    match client.run(DOING, client.sql().query_one(SQL, &[&slot])).await {
        // configuration_limit_exceeded
        Err(error) if error.is_of(&["53400"]) => {
            Err(no_free_slot(client, &format!("a copy of {slot}")).await?)
        }
        row => get(&row?, 0),
    }
}

pub async fn peek(
    client: &Client,
    request: PeekRequest<'_>,
) -> Result<Vec<PeekedMessage>, ControlError> {
    let messages = if request.messages { ", 'messages', 'true'" } else { "" };
    let sql = format!(
        "SELECT lsn::text, data FROM pg_catalog.pg_logical_slot_peek_binary_changes( \
             $1::text::name, $4::text::pg_lsn, $3::int4, 'proto_version', '1', 'publication_names', $2::text{messages}) \
         LIMIT $3::int4"
    );
    let limit = i32::try_from(request.limit).unwrap_or(i32::MAX);
    let publication = crate::wal::quote::identifier(request.publication);
    let before = request.before.map(|before| before.to_string());
    let parameters: [&(dyn ToSql + Sync); 4] = [&request.slot, &publication, &limit, &before];
    match client.run(DOING, client.sql().query(&sql, &parameters)).await {
        // object_in_use
        Err(ControlError::Connection { source: WalError::Server(error), .. })
            if error.code == "55006" =>
        {
            let slot = super::slot::slot(client, request.slot).await?;
            let (pid, holder) =
                slot.map_or((None, String::new()), |slot| (slot.active_pid, slot.holder));
            Err(ControlError::SlotHeld {
                slot: request.slot.to_owned(),
                pid: pid.unwrap_or_default(),
                holder,
            })
        }
        found => {
            let message = |row| Ok(PeekedMessage { lsn: known(row, 0)?, data: get(row, 1)? });
            found?.iter().map(message).collect()
        }
    }
}
