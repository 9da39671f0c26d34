//! Standby: waits for a slot that another relay holds, and takes over when the slot is free.
//!
//! Each sample also updates the metrics. A relay whose own earlier session still holds the slot is
//! not a standby, which would report itself as ready. The wait ends if the server does not answer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Relay;
use crate::error::RelayError;
use crate::telemetry::RelayState;
use crate::watch;
use postrider_core::supervisor::SlotPosition;
use postrider_postgres::control::{self, Client, ControlError, SlotSample};
use postrider_postgres::wal::ServerProcess;

#[derive(Debug, Default)]
pub(super) struct Holder {
    /// Server process that last streamed to this relay.
    ours: Mutex<Option<ServerProcess>>,
    why: String,
}

impl Holder {
    pub(super) fn streams(&self, stream: Option<ServerProcess>) {
        if stream.is_some() {
            *self.ours.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        }
    }

    fn ours(&self) -> Option<ServerProcess> {
        *self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// After an earlier session of this relay, the first sample identifies the holder.
    pub(super) fn tell_standby(&mut self, error: &RelayError) {
        self.holder.why = error.to_string();
        if self.holder.ours().is_none() {
            self.stands_by();
        }
    }

    fn stands_by(&mut self) {
        if self.sessions.telemetry.view().snapshot.state != RelayState::Standby {
            let slot = &self.sessions.plan.config.source.slot;
            tracing::info!(slot, "standby: {}", self.holder.why);
            self.sessions.set_state(RelayState::Standby);
        }
    }

    fn tell_holder(&mut self, slot: &SlotSample) {
        match self.holder.ours().filter(|ours| slot.is_held_by(*ours)) {
            None => self.stands_by(),
            Some(ours) => {
                if let Some(reporter) = &mut self.sessions.reporter {
                    reporter.left_behind(ours.pid);
                }
            }
        }
    }

    pub(super) async fn stand_by(&mut self, every: Duration) {
        // A silent server must not delay a signal. The next session reports errors.
        let told = self.sessions.told_to_end();
        let client = tokio::select! {
            client = Box::pin(control::connect(&self.sessions.plan.config.source.connect)) => client.ok(),
            () = told => return,
        };
        loop {
            self.sessions.telemetry.tick();
            if tokio::time::timeout(every, self.sessions.told_to_end()).await.is_ok() {
                break;
            }
            let Some(client) = &client else { break };
            let told = self.sessions.told_to_end();
            let slot = tokio::select! {
                slot = Box::pin(self.look_at_slot(client)) => slot,
                () = told => break,
            };
            match slot {
                Ok(Some(slot)) if slot.active_pid.is_some() => self.tell_holder(&slot),
                _ => break,
            }
        }
        self.sessions.supervisor.slot_is_free(self.sessions.clock.instant());
    }

    pub(super) async fn look_at_slot(
        &mut self,
        client: &Client,
    ) -> Result<Option<SlotSample>, ControlError> {
        let slot = control::sample(client, &self.sessions.plan.config.source.slot).await?;
        watch::publish(&self.sessions.telemetry, slot.as_ref(), None);
        if let (Some(slot), Some(reporter)) = (&slot, &mut self.sessions.reporter) {
            reporter.slot_reaches(slot.confirmed_flush, slot.current);
        }
        self.sessions.supervisor.slot_reaches(slot.as_ref().map(|slot| SlotPosition {
            // A slot without a restart position is lost, and no session starts there.
            restart: slot.restart.unwrap_or(slot.confirmed_flush),
            confirmed: slot.confirmed_flush,
            log_end: slot.current,
        }));
        Ok(slot)
    }
}
