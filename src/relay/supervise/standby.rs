//! Standby: waits for a slot that another relay holds, to take over when it is free.
//!
//! Input: samples of the slot over SQL. Output: the end of the wait, once nobody streams from the slot, the
//! server does not answer, or the relay is told to stop. Each sample also updates the metrics, and the
//! position that the other relay has acknowledged. Invariant: one small query at a time, over one
//! connection; a slot that the server process of this relay's own earlier session still holds is read by nobody, so
//! that the relay is no standby, which would be ready.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Relay;
use crate::error::RelayError;
use crate::telemetry::RelayState;
use crate::watch;
use postrider_core::supervisor::SlotPosition;
use postrider_postgres::control::{self, Client, ControlError, SlotSample};
use postrider_postgres::wal::ServerProcess;

/// What is known of who holds the slot.
#[derive(Debug, Default)]
pub(super) struct Holder {
    /// Who streamed to this relay last.
    ours: Mutex<Option<ServerProcess>>,
    /// Why the slot cannot be read.
    why: String,
}

impl Holder {
    /// This process of the server streams to us now.
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
    /// The slot is held: says so, once. After an earlier session of ours the first sample tells by whom.
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

    /// What holds the slot: another relay, or what is left of our own session.
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

    /// Looks at the slot `every` so often, until it is free or the relay is told to stop.
    pub(super) async fn stand_by(&mut self, every: Duration) {
        // What cannot be asked, the next session finds out and tells. A server that does not answer keeps
        // no signal waiting.
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

    /// Learns where the log ends and what another relay has acknowledged in the meantime.
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
            // A slot without it is lost, and no session begins there.
            restart: slot.restart.unwrap_or(slot.confirmed_flush),
            confirmed: slot.confirmed_flush,
            log_end: slot.current,
        }));
        Ok(slot)
    }
}
