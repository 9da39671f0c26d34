//! A sink that stores nothing, for measuring what lies before it.
//!
//! Enters: records. Leaves: `Stored` for each ticket at the next poll. Called by the benches.

use super::{Confirmation, Outcome, SendError, Sink, SinkError};
use crate::ledger::Ticket;
use crate::route::Record;

/// Confirms everything, stores nothing.
#[derive(Debug, Default)]
pub struct Null {
    taken: Vec<Ticket>,
}

impl Sink for Null {
    fn send(&mut self, _record: &Record<'_>, ticket: Ticket) -> Result<(), SendError> {
        self.taken.push(ticket);
        Ok(())
    }

    fn poll(&mut self, confirmations: &mut Vec<Confirmation>) -> Result<(), SinkError> {
        let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
        confirmations.extend(self.taken.drain(..).map(stored));
        Ok(())
    }

    fn is_connected(&self) -> bool {
        true
    }
}
