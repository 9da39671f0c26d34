//! A sink that discards records, for measuring everything before Kafka.

use super::{Confirmation, KafkaSink, Outcome, SendError, Sink, SinkError};
use postrider_core::ledger::Ticket;
use postrider_core::pipeline::Outgoing;
use postrider_core::time::Instant;

/// Confirms everything at the next poll, stores nothing.
#[derive(Debug, Default)]
pub struct NullSink {
    taken: Vec<Ticket>,
}

impl Sink for NullSink {
    type Error = SinkError;

    fn send(&mut self, _now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        self.taken.push(outgoing.ticket);
        Ok(())
    }

    fn poll(
        &mut self,
        _now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), SinkError> {
        let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
        confirmations.extend(self.taken.drain(..).map(stored));
        Ok(())
    }
}

impl KafkaSink for NullSink {
    fn is_connected(&self) -> bool {
        true
    }
}
