//! The client library as the machine sees it: it takes orders, and answers what the model has answered.
//!
//! Input: the machine's calls; from the trace, what the model's brokers have done and what goes wrong with
//! the connection. Output: the orders, in their sequence. Invariant: an order is passed on once, and
//! nothing is answered that the trace has not answered.

use std::collections::VecDeque;

use postrider::ledger::Ticket;
use postrider::pipeline::{Confirmation, Mark, Outcome, Outgoing};
use postrider::route::{Record, Rejection};
use postrider::sink::SendError;
use postrider::transaction::{PROGRESS_TICKET, TransactionApi};

use crate::exactly_once::stream::Place;

/// An order of the machine that maps to a step of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// A row's record is to be sent.
    Row(Place, Ticket),
    /// A place was passed that has no row; no order, but it has its turn among them.
    NoRow,
    /// Progress is to be sent, as the last record.
    Progress(Mark),
    /// EndTxn is to be sent.
    Commit,
    /// The answer to EndTxn was taken.
    Hear,
}

/// The producer is not usable any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone;

/// See the module.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each may be so whatever the others are")]
pub struct Library {
    pub orders: VecDeque<Order>,
    /// Delivery reports that the machine has not polled.
    pub arrived: Vec<Ticket>,
    /// Copies of the last progress whose report has not arrived.
    pub copies: usize,
    /// A transaction was begun, and nothing was sent into it: progress that comes first is a copy.
    is_new: bool,
    /// EndTxn was answered.
    pub is_answered: bool,
    pub disturbances: u64,
    /// Its queue has no room.
    pub is_full: bool,
    pub is_gone: bool,
}

impl Library {
    fn room(&self) -> Result<(), SendError<Gone>> {
        if self.is_gone {
            return Err(Gone.into());
        }
        if self.is_full { Err(SendError::Full) } else { Ok(()) }
    }

    fn check(&self) -> Result<(), Gone> {
        if self.is_gone { Err(Gone) } else { Ok(()) }
    }

    /// What was copied is reported.
    pub fn report_copies(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        self.arrived.extend(std::iter::repeat_n(PROGRESS_TICKET, copies));
    }
}

impl TransactionApi for Library {
    type Error = Gone;

    fn begin(&mut self) -> Result<(), Gone> {
        self.is_new = true;
        self.check()
    }

    fn admits(&mut self, _record: &Record<'_>) -> Result<(), SendError<Gone>> {
        self.room()
    }

    fn send(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError<Gone>> {
        // A transaction for one record alone begins without a copy.
        self.is_new = false;
        self.room()?;
        let value = outgoing.record.value.expect("a row has a payload");
        let place = std::str::from_utf8(value).ok().and_then(|place| place.parse().ok());
        self.orders.push_back(Order::Row(place.expect("a place"), outgoing.ticket));
        Ok(())
    }

    fn send_progress(&mut self, mark: Mark) -> Result<(), SendError<Gone>> {
        let is_copy = std::mem::take(&mut self.is_new);
        self.room()?;
        if is_copy {
            self.copies += 1;
        } else {
            self.orders.push_back(Order::Progress(mark));
        }
        Ok(())
    }

    fn poll(&mut self, reports: &mut Vec<Confirmation>) -> Result<(), Gone> {
        self.check()?;
        let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
        reports.extend(self.arrived.drain(..).map(stored));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Gone> {
        self.check()?;
        self.orders.push_back(Order::Commit);
        Ok(())
    }

    fn outcome(&mut self) -> Option<Result<(), Gone>> {
        if self.is_gone {
            return Some(Err(Gone));
        }
        std::mem::take(&mut self.is_answered).then(|| {
            self.orders.push_back(Order::Hear);
            Ok(())
        })
    }

    fn disturbances(&self) -> u64 {
        self.disturbances
    }

    fn progress_refused(&self, _rejection: Rejection) -> Gone {
        unreachable!("all progress is taken")
    }

    fn ambiguous(&self) -> Gone {
        Gone
    }
}
