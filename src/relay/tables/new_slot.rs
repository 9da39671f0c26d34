//! Makes the slot of a backfill, and does not wait without end for it.
//!
//! Input: a connection in its first transaction, and requests to stop. Output: where the slot begins; or which open
//! transactions Postgres waits for. Invariant: after so long as `setup` waits, or when a stop is asked for, the server
//! gives up, and with it the slot that is half made: a replication command has no time limit of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::TableRun;
use super::session::{BEGIN, Found};
use crate::error::RelayError;
use crate::stop::StopSignal;
use postrider_core::lsn::Lsn;
use postrider_core::session::ControlRequest;
use postrider_postgres::control::{
    self, Client, ControlError, SLOT_LIMIT_MS, no_free_slot, slot_blocked,
};
use postrider_postgres::wal::{Connection, WalError};

/// Before the number of the server process that makes a slot for a moment.
const TEMPORARY: &str = "postrider_temporary_";
/// How soon a request to stop is noticed.
const TICK: Duration = Duration::from_millis(100);

/// A slot that goes with its connection, whose open transaction sees what had committed where it begins.
#[derive(Debug)]
pub(super) struct TemporarySlot {
    name: String,
    /// Whether the one that stays follows a failover; no temporary one does.
    failover: bool,
    pub(super) begins: Lsn,
}

impl TemporarySlot {
    /// Makes the slot that stays, in the same place, once no other one has its name.
    pub(super) fn keep_as(self, connection: &mut Connection, slot: &str) -> Result<Lsn, WalError> {
        let begins = connection.copy_slot(&self.name, slot)?;
        assert_eq!(begins, self.begins, "a copy begins where the copied slot does");
        connection.drop_slot(&self.name)?;
        if self.failover {
            connection.follow_failover(slot)?;
        }
        Ok(begins)
    }
}

impl TableRun {
    /// See the module's documentation.
    pub(super) fn make_slot(
        &self,
        connection: &mut Connection,
        found: &Found,
    ) -> Result<Lsn, RelayError> {
        let slot = found.plan.config.source.slot.as_str();
        let failover = found.makes_failover_slot();
        self.patiently(connection, found, |connection| {
            connection.create_slot_with_snapshot(slot, failover)
        })
    }

    /// Begins the transaction, with a slot that goes with the connection. `None`: the server has no room for two, and no
    /// transaction is open.
    pub(super) fn make_temporary(
        &self,
        connection: &mut Connection,
        found: &Found,
    ) -> Result<Option<TemporarySlot>, RelayError> {
        let name = format!("{TEMPORARY}{}", connection.backend_pid());
        connection.simple_query(BEGIN)?;
        let made = self.patiently(connection, found, |connection| {
            connection.create_temporary_slot_with_snapshot(&name)
        });
        match made {
            Ok(begins) => {
                let failover = found.makes_failover_slot();
                Ok(Some(TemporarySlot { name, failover, begins }))
            }
            Err(RelayError::Control(ControlError::NoFreeSlot { .. })) => {
                connection.simple_query("ROLLBACK")?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn patiently<T>(
        &self,
        connection: &mut Connection,
        found: &Found,
        create: impl FnOnce(&mut Connection) -> Result<T, WalError>,
    ) -> Result<T, RelayError> {
        let source = &found.plan.config.source;
        let client = Arc::new(self.runtime.block_on(control::connect(&source.connect))?);
        let watch = cancel(Arc::clone(&client), connection.backend_pid(), self.stop.clone());
        let watch = self.runtime.spawn(watch);
        let made = create(connection);
        watch.abort();
        match made {
            // query_canceled
            Err(WalError::Server(message)) if message.code == "57014" => {
                Err(self.runtime.block_on(slot_blocked(&client, &source.slot))?.into())
            }
            // configuration_limit_exceeded
            Err(WalError::Server(message)) if message.code == "53400" => {
                Err(self.runtime.block_on(no_free_slot(&client, &source.slot))?.into())
            }
            made => Ok(made?),
        }
    }
}

/// Cancels what that server process does, once it is time.
async fn cancel(client: Arc<Client>, pid: i32, stop: StopSignal) {
    let limit = Instant::now() + Duration::from_millis(SLOT_LIMIT_MS);
    while Instant::now() < limit && stop.most_urgent() == ControlRequest::Run {
        sleep(TICK).await;
    }
    let canceled =
        client.sql().execute("SELECT pg_catalog.pg_cancel_backend($1::int4)", &[&pid]).await;
    if let Err(error) = canceled {
        tracing::warn!("cannot cancel the creation of the slot: {error}");
    }
}
