//! Creates the slot of a backfill within a time limit.
//!
//! Invariant: after the time limit of `setup`, or on a request to stop, the server cancels the
//! command and removes the unfinished slot. Replication commands have no time limit.

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

const TEMPORARY: &str = "postrider_temporary_";
const TICK: Duration = Duration::from_millis(100);

/// Ends with its connection, whose transaction sees all rows committed before the slot's start.
#[derive(Debug)]
pub(super) struct TemporarySlot {
    name: String,
    /// The permanent slot follows a failover. A temporary slot cannot.
    failover: bool,
    pub(super) begins: Lsn,
}

impl TemporarySlot {
    /// No other slot may have the name.
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

    /// `None`: the server has no room for two slots, and no transaction is open.
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
