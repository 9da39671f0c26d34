//! Reads what waits in a slot, consuming nothing, for `postrider peek`.
//!
//! Input: a [`Client`], slot and publication. Output: messages as the stream would send them, from the first one that is
//! not acknowledged. Invariant: what the slot has confirmed stays (of the log before it Postgres may let go); Postgres decodes without sending anything to a reader
//! (`pg_logical_slot_peek_binary_changes`), and refuses a slot that is read just now: then a temporary copy of it is read.

use tokio_postgres::types::ToSql;

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{get, known};
use super::preflight::no_free_slot;
use crate::wal::WalError;
use postrider_core::lsn::Lsn;

const DOING: &str = "looking into the slot";

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekedMessage {
    /// Its position.
    pub lsn: Lsn,
    /// As pgoutput writes it.
    pub data: Vec<u8>,
}

/// What is looked into.
#[derive(Debug, Clone, Copy)]
pub struct PeekRequest<'a> {
    /// The slot.
    pub slot: &'a str,
    /// Its publication.
    pub publication: &'a str,
    /// Whether logical messages are read.
    pub messages: bool,
    /// Only transactions that committed before this.
    pub before: Option<Lsn>,
    /// Messages, at most; Postgres decodes the transaction that reaches it to its end.
    pub limit: u32,
}

/// Makes a copy of a slot that is read just now: temporary, so that it ends with this session. Its name is the result.
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

/// Reads the first messages.
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
