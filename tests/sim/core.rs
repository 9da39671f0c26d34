//! The seam for mutants: what the simulated relay drives.
//!
//! The product knows no such trait. `()` is the product as it ships: it changes nothing. A mutant
//! is the real pipeline with one mistake wrapped around it.

use postrider::ledger::{LedgerError, Ticket};
use postrider::lsn::Lsn;
use postrider::pgoutput::{Message, decode};
use postrider::pipeline::{Answer, Confirmation, Outcome, Pipeline, PipelineError};
use postrider::wal::Frame;

/// Stands beside the pipeline and may falsify what passes.
pub(crate) trait Mutation: Default {
    /// The pipeline is done with a frame.
    fn consumed(&mut self, _frame: Frame<'_>) {}

    /// The sink took a record.
    fn sent(&mut self, pipeline: &mut Pipeline, _ticket: Ticket) -> Result<(), PipelineError> {
        pipeline.sent()
    }

    /// The brokers answered.
    fn confirm(
        &mut self,
        pipeline: &mut Pipeline,
        confirmation: Confirmation,
    ) -> Result<Answer, PipelineError> {
        pipeline.confirm(confirmation)
    }

    /// What Postgres will be told.
    fn settled(&self, pipeline: &Pipeline) -> Lsn {
        pipeline.settled()
    }

    /// Whether the books still say how much is in flight.
    fn keeps_books(&self) -> bool {
        true
    }
}

impl Mutation for () {}

/// Acknowledges a transaction when it was sent instead of when it was stored.
#[derive(Default)]
pub(crate) struct AcknowledgesWithoutWaiting {
    sent: Lsn,
}

impl Mutation for AcknowledgesWithoutWaiting {
    fn consumed(&mut self, frame: Frame<'_>) {
        let Frame::Wal { data, .. } = frame else { return };
        if let Ok(Message::Commit(commit)) = decode(data) {
            self.sent = commit.end_lsn;
        }
    }

    fn settled(&self, pipeline: &Pipeline) -> Lsn {
        self.sent.max(pipeline.settled())
    }
}

/// Waits for one record fewer than each transaction has: the first is booked as confirmed when it
/// is sent, and the surplus confirmation that comes of it is overlooked.
#[derive(Default)]
pub(crate) struct CountsOneTooFew {
    last: Option<u32>,
}

impl Mutation for CountsOneTooFew {
    fn sent(&mut self, pipeline: &mut Pipeline, ticket: Ticket) -> Result<(), PipelineError> {
        pipeline.sent()?;
        if self.last.replace(ticket.transaction()) != Some(ticket.transaction()) {
            pipeline.confirm(Confirmation { ticket, outcome: Outcome::Stored })?;
        }
        Ok(())
    }

    fn confirm(
        &mut self,
        pipeline: &mut Pipeline,
        confirmation: Confirmation,
    ) -> Result<Answer, PipelineError> {
        match pipeline.confirm(confirmation) {
            Err(PipelineError::Ledger(
                LedgerError::ConfirmedTwice { .. } | LedgerError::UnknownTicket { .. },
            )) => Ok(Answer::Stored),
            answer => answer,
        }
    }

    fn keeps_books(&self) -> bool {
        false
    }
}

/// Acknowledges every keepalive at once, as several relays in the field have done.
#[derive(Default)]
pub(crate) struct AcknowledgesKeepalives {
    alive: Lsn,
}

impl Mutation for AcknowledgesKeepalives {
    fn consumed(&mut self, frame: Frame<'_>) {
        if let Frame::Keepalive { end, .. } = frame {
            self.alive = end;
        }
    }

    fn settled(&self, pipeline: &Pipeline) -> Lsn {
        self.alive.max(pipeline.settled())
    }
}

/// Books a refused record as stored instead of sending its dead letter.
#[derive(Default)]
pub(crate) struct ForgetsRefused;

impl Mutation for ForgetsRefused {
    fn confirm(
        &mut self,
        pipeline: &mut Pipeline,
        confirmation: Confirmation,
    ) -> Result<Answer, PipelineError> {
        let Confirmation { ticket, .. } = confirmation;
        pipeline.confirm(Confirmation { ticket, outcome: Outcome::Stored })
    }
}

/// Never acknowledges what carries no row: the log of an idle outbox grows for ever.
#[derive(Default)]
pub(crate) struct IgnoresKeepalives {
    committed: Lsn,
}

impl Mutation for IgnoresKeepalives {
    fn consumed(&mut self, frame: Frame<'_>) {
        let Frame::Wal { data, .. } = frame else { return };
        if let Ok(Message::Commit(commit)) = decode(data) {
            self.committed = commit.end_lsn;
        }
    }

    fn settled(&self, pipeline: &Pipeline) -> Lsn {
        self.committed.min(pipeline.settled())
    }
}
