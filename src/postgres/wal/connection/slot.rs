//! Replication slots and their snapshots, over a replication connection.

use super::{Connection, TextRow};
use crate::wal::error::WalError;
use crate::wal::quote::{identifier, literal};
use crate::wal::transport::Transport;
use postrider_core::lsn::Lsn;

impl<T: Transport> Connection<T> {
    /// Creates a pgoutput slot and returns its start. The open transaction then sees exactly the
    /// commits before it; it must be REPEATABLE READ and not have run anything. Waits for open
    /// transactions. `failover` requires PostgreSQL 17.
    pub fn create_slot_with_snapshot(
        &mut self,
        slot: &str,
        failover: bool,
    ) -> Result<Lsn, WalError> {
        let options = if failover { "(SNAPSHOT 'use', FAILOVER true)" } else { "USE_SNAPSHOT" };
        self.create_slot(slot, "", options)
    }

    /// The slot ends with the connection.
    pub fn create_temporary_slot_with_snapshot(&mut self, slot: &str) -> Result<Lsn, WalError> {
        // Every supported version accepts this form.
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

    /// Copies the connection's own temporary slot.
    pub fn copy_slot(&mut self, from: &str, to: &str) -> Result<Lsn, WalError> {
        let rows = self.copy(from, to, false)?;
        let position = rows.first().and_then(|row| row.first()).cloned().flatten();
        let position = position.and_then(|text| text.parse().ok());
        position.ok_or(WalError::Protocol("a malformed answer about a copied slot"))
    }

    /// Copies any slot; the copy ends with the connection.
    pub fn copy_slot_for_session(&mut self, from: &str, to: &str) -> Result<(), WalError> {
        self.copy(from, to, true).map(|_| ())
    }

    fn copy(&mut self, from: &str, to: &str, temporary: bool) -> Result<Vec<TextRow>, WalError> {
        let (from, to) = (literal(from), literal(to));
        self.simple_query(&format!(
            "SELECT lsn::text FROM pg_catalog.pg_copy_logical_replication_slot({from}, {to}, {temporary})"
        ))
    }

    /// Makes a slot follow a failover, which a copy initially does not (17 and later).
    pub fn follow_failover(&mut self, slot: &str) -> Result<(), WalError> {
        let slot = identifier(slot);
        self.simple_query(&format!("ALTER_REPLICATION_SLOT {slot} (FAILOVER true)")).map(|_| ())
    }

    /// Drops a slot once it is unused.
    pub fn drop_slot(&mut self, slot: &str) -> Result<(), WalError> {
        let slot = identifier(slot);
        self.simple_query(&format!("DROP_REPLICATION_SLOT {slot} WAIT")).map(|_| ())
    }

    /// Transactions that the open one sees as committed, in the format of `txid_current_snapshot`.
    pub fn snapshot(&mut self) -> Result<String, WalError> {
        let rows = self.simple_query("SELECT pg_catalog.txid_current_snapshot()")?;
        match rows.into_iter().next().and_then(|row| row.into_iter().next()) {
            Some(Some(snapshot)) => Ok(snapshot),
            _ => Err(WalError::Protocol("a malformed answer about a snapshot")),
        }
    }
}
