//! Replication slots, and the snapshots that belong to them, over a replication connection.

use super::{Connection, TextRow};
use crate::wal::error::WalError;
use crate::wal::quote::{identifier, literal};
use crate::wal::transport::Transport;
use postrider_core::lsn::Lsn;

impl<T: Transport> Connection<T> {
    /// Creates a slot for pgoutput. The open transaction, which must be REPEATABLE READ and have done nothing yet,
    /// sees from now on what had committed where the slot begins, which is returned, and nothing else. Waits for
    /// transactions that are open; 25001 or so if the transaction is not of that kind. One for `failover` needs
    /// PostgreSQL 17.
    pub fn create_slot_with_snapshot(
        &mut self,
        slot: &str,
        failover: bool,
    ) -> Result<Lsn, WalError> {
        let options = if failover { "(SNAPSHOT 'use', FAILOVER true)" } else { "USE_SNAPSHOT" };
        self.create_slot(slot, "", options)
    }

    /// The same of a slot that goes with the connection.
    pub fn create_temporary_slot_with_snapshot(&mut self, slot: &str) -> Result<Lsn, WalError> {
        // The form that every supported version takes.
        self.create_slot(slot, "TEMPORARY ", "USE_SNAPSHOT")
    }

    fn create_slot(&mut self, slot: &str, kind: &str, options: &str) -> Result<Lsn, WalError> {
        let slot = identifier(slot);
        let rows = self.patient_query(&format!(
            "CREATE_REPLICATION_SLOT {slot} {kind}LOGICAL pgoutput {options}"
        ))?;
        let position = rows.first().and_then(|row| row.get(1)).and_then(Option::as_deref);
        let position = position.and_then(|text| text.parse().ok());
        position.ok_or(WalError::Protocol("a malformed answer to CREATE_REPLICATION_SLOT"))
    }

    /// Makes a slot that begins where another one does, which is the connection's own temporary one.
    pub fn copy_slot(&mut self, from: &str, to: &str) -> Result<Lsn, WalError> {
        let rows = self.copy(from, to, false)?;
        let position = rows.first().and_then(|row| row.first()).cloned().flatten();
        let position = position.and_then(|text| text.parse().ok());
        position.ok_or(WalError::Protocol("a malformed answer about a copied slot"))
    }

    /// Makes a slot where any other one is, which goes with the connection.
    pub fn copy_slot_for_session(&mut self, from: &str, to: &str) -> Result<(), WalError> {
        self.copy(from, to, true).map(|_| ())
    }

    fn copy(&mut self, from: &str, to: &str, temporary: bool) -> Result<Vec<TextRow>, WalError> {
        let (from, to) = (literal(from), literal(to));
        self.simple_query(&format!(
            "SELECT lsn::text FROM pg_catalog.pg_copy_logical_replication_slot({from}, {to}, {temporary})"
        ))
    }

    /// Makes a slot follow a failover, which a copy does not from the beginning (17 and later).
    pub fn follow_failover(&mut self, slot: &str) -> Result<(), WalError> {
        let slot = identifier(slot);
        self.simple_query(&format!("ALTER_REPLICATION_SLOT {slot} (FAILOVER true)")).map(|_| ())
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
