//! Replication slots, and the snapshots that belong to them, over a replication connection.

use super::Connection;
use crate::wal::error::WalError;
use crate::wal::quote::identifier;
use crate::wal::transport::Transport;
use postrider_core::lsn::Lsn;

impl<T: Transport> Connection<T> {
    /// Creates a slot for pgoutput. The open transaction, which must be REPEATABLE READ and have done nothing yet,
    /// sees from now on what had committed where the slot begins, which is returned, and nothing else. Waits for
    /// transactions that are open; 25001 or so if the transaction is not of that kind.
    pub fn create_slot_with_snapshot(&mut self, slot: &str) -> Result<Lsn, WalError> {
        // The form that every supported version takes.
        let slot = identifier(slot);
        let rows = self.patient_query(&format!(
            "CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput USE_SNAPSHOT"
        ))?;
        let position = rows.first().and_then(|row| row.get(1)).and_then(Option::as_deref);
        let position = position.and_then(|text| text.parse().ok());
        position.ok_or(WalError::Protocol("a malformed answer to CREATE_REPLICATION_SLOT"))
    }

    /// Creates a slot that goes with the connection, and drops it. Waits for transactions that are open.
    pub fn try_slot(&mut self, slot: &str) -> Result<(), WalError> {
        let name = identifier(slot);
        self.patient_query(&format!(
            "CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
        ))?;
        self.drop_slot(slot)
    }

    /// Drops a slot, once nobody uses it.
    pub fn drop_slot(&mut self, slot: &str) -> Result<(), WalError> {
        let slot = identifier(slot);
        self.simple_query(&format!("DROP_REPLICATION_SLOT {slot} WAIT")).map(|_| ())
    }

    /// Which transactions had committed for the open one, as `txid_current_snapshot` writes it.
    pub fn snapshot(&mut self) -> Result<String, WalError> {
        let rows = self.simple_query("SELECT pg_catalog.txid_current_snapshot()")?;
        match rows.into_iter().next().and_then(|row| row.into_iter().next()) {
            Some(Some(snapshot)) => Ok(snapshot),
            _ => Err(WalError::Protocol("a malformed answer about a snapshot")),
        }
    }
}
