//! Standby: waits for a slot that another relay holds, to take over when it is free.
//!
//! Input: samples of the slot over SQL. Output: the end of the wait, once nobody streams from the slot, the
//! server does not answer, or the relay is told to stop. Each sample also updates the metrics, and the
//! position that the other relay has acknowledged. Invariant: one small query at a time, over one
//! connection.

use std::time::Duration;

use super::Relay;
use crate::error::RelayError;
use crate::telemetry::RelayState;
use crate::watch;
use postrider_postgres::control::{self, Client, ControlError, SlotSample};

impl Relay {
    /// The slot is held: says so, once.
    pub(super) fn tell_standby(&mut self, error: &RelayError) {
        if self.sessions.telemetry.view().snapshot.state != RelayState::Standby {
            tracing::info!(slot = self.sessions.plan.config.source.slot, "standby: {error}");
            self.sessions.set_state(RelayState::Standby);
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
            if !matches!(slot, Ok(Some(SlotSample { active_pid: Some(_), .. }))) {
                break;
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
        watch::publish(&self.sessions.telemetry, slot.as_ref());
        if let (Some(slot), Some(reporter)) = (&slot, &mut self.sessions.reporter) {
            reporter.slot_reaches(slot.confirmed_flush, slot.current);
        }
        self.sessions
            .supervisor
            .slot_reaches(slot.as_ref().map(|at| (at.confirmed_flush, at.current)));
        Ok(slot)
    }
}
