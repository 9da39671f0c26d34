//! Waiting for a slot that another relay holds.
//!
//! Enters: the refusal of a session. Leaves: the end of the wait, once nobody streams from the slot or the
//! relay is told to stop. What always holds: the server is asked one small question at a time, over one
//! connection; what the other relay acknowledges meanwhile is learned.

use std::time::Duration;

use super::Supervisor;
use crate::error::RelayError;
use crate::report::Reporter;
use crate::session_mode::SessionMode;
use crate::telemetry::State;
use crate::watch;
use postrider_postgres::control::{self, Client, ControlError, SlotSample};

/// How often a standby looks whether the slot is free: fast enough to take over well within a second.
const EVERY: Duration = Duration::from_millis(200);

impl Supervisor {
    /// The slot is held: says so once, and waits until it is free.
    pub(super) async fn standby_or(&mut self, error: RelayError) -> Result<(), RelayError> {
        // Once it has streamed, what holds the slot is most likely what is left of its own session.
        let has_streamed = self.reporter.as_ref().is_some_and(Reporter::has_streamed);
        if !self.options.wait_for_slot && !has_streamed {
            return Err(RelayError::SlotHeld { slot: self.plan.config.source.slot.clone() });
        }
        if self.telemetry.view().snapshot.state != State::Standby {
            tracing::info!(slot = self.plan.config.source.slot, "standby: {error}");
            self.set_state(State::Standby);
        }
        // What cannot be asked, the next session finds out and tells. A server that does not answer keeps
        // no signal waiting.
        let told = self.told_to_end();
        let client = tokio::select! {
            client = Box::pin(control::connect(&self.plan.config.source.connect)) => client.ok(),
            () = told => return Ok(()),
        };
        loop {
            self.telemetry.tick();
            if tokio::time::timeout(EVERY, self.told_to_end()).await.is_ok() {
                break;
            }
            let Some(client) = &client else { break };
            let told = self.told_to_end();
            let slot = tokio::select! {
                slot = Box::pin(self.look_at_slot(client)) => slot,
                () = told => break,
            };
            if !matches!(slot, Ok(Some(SlotSample { active_pid: Some(_), .. }))) {
                break;
            }
        }
        self.last_progress = std::time::Instant::now();
        Ok(())
    }

    /// Learns where the log ends and what another relay has acknowledged in the meantime, and sends larger
    /// batches while there is much to catch up with. What an end of a session asks for has precedence.
    pub(super) async fn look_at_slot(
        &mut self,
        client: &Client,
    ) -> Result<Option<SlotSample>, ControlError> {
        let slot = control::sample(client, &self.plan.config.source.slot).await?;
        watch::publish(&self.telemetry, slot.as_ref());
        if let (Some(slot), Some(reporter)) = (&slot, &mut self.reporter) {
            reporter.slot_reaches(slot.confirmed_flush, slot.current);
        }
        // What acknowledges nothing would begin anew behind every mode.
        if self.options.acknowledge && !self.mode.is_some_and(SessionMode::is_for_an_end) {
            let place = slot.as_ref().map(|at| (at.confirmed_flush, at.current));
            self.mode = place.and_then(|(from, to)| SessionMode::of_backlog(from, to));
        }
        Ok(slot)
    }
}
