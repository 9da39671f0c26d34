//! The seam for mutants: what the simulated relay drives.
//!
//! The product knows no such trait. `()` is the product as it ships: it changes nothing. A mutant
//! is the real pipeline with one mistake wrapped around it.

use postrider::ledger::Ticket;
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

/// Waits for one record fewer than each transaction has.
#[derive(Default)]
pub(crate) struct CountsOneTooFew {
    transactions: Vec<Counted>,
}

struct Counted {
    number: u32,
    unconfirmed: usize,
    end: Option<Lsn>,
}

impl Mutation for CountsOneTooFew {
    fn consumed(&mut self, frame: Frame<'_>) {
        let Frame::Wal { data, .. } = frame else { return };
        let open = self.transactions.last_mut().filter(|newest| newest.end.is_none());
        if let (Ok(Message::Commit(commit)), Some(open)) = (decode(data), open) {
            open.end = Some(commit.end_lsn);
        }
    }

    fn sent(&mut self, pipeline: &mut Pipeline, ticket: Ticket) -> Result<(), PipelineError> {
        let number = ticket.transaction();
        match self.transactions.last_mut().filter(|newest| newest.number == number) {
            Some(open) => open.unconfirmed += 1,
            None => self.transactions.push(Counted { number, unconfirmed: 1, end: None }),
        }
        pipeline.sent()
    }

    fn confirm(
        &mut self,
        pipeline: &mut Pipeline,
        confirmation: Confirmation,
    ) -> Result<Answer, PipelineError> {
        let number = confirmation.ticket.transaction();
        let answer = pipeline.confirm(confirmation)?;
        if let Some(known) = self.transactions.iter_mut().find(|known| known.number == number)
            && answer == Answer::Stored
        {
            known.unconfirmed -= 1;
        }
        Ok(answer)
    }

    fn settled(&self, pipeline: &Pipeline) -> Lsn {
        let settled = self.transactions.iter().take_while(|known| known.unconfirmed <= 1);
        settled.filter_map(|known| known.end).fold(pipeline.settled(), Lsn::max)
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
