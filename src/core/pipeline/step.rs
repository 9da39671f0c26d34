//! Defines what goes into and comes out of the pipeline's steps.
//!
//! [`Outgoing`] and [`OwnedOutgoing`]: a record or dead letter to send, with its ticket. [`Handled`]: what
//! became of a frame, above all whether to consume it or to submit it again. [`Answer`]: what to do after a
//! confirmation. [`DeadLetter`] and [`Skipped`]: what the caller must write to the log.

use super::confirmation::Refused;
use crate::ledger::Ticket;
use crate::outbox::{Position, TableName};
use crate::route::{OwnedRecord, Record, Rejection, RejectionCode};

/// What became of a frame.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// It is done with: consume it.
    Done,
    /// It is done with; its row left as a dead letter: write that down.
    DeadLetter(Box<SentDeadLetter>),
    /// It is done with; the policy left its row out: write that down.
    Skipped(Box<Skipped>),
    /// There was no room for its record: do not consume it, and hand in the same frame again later.
    Full,
}

/// A record for the sink, under the ticket that must be confirmed.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The row's record, or its dead letter.
    pub record: Record<'a>,
    /// Travels with the record and comes back in its confirmation.
    pub ticket: Ticket,
    /// Why `record` is a dead letter; `None` for the row's own record.
    pub rejection: Option<RejectionCode>,
    /// Nothing else may be under way with it: the brokers refused a batch that it was in.
    pub alone: bool,
    /// Where its row stands in history, if it is handed over with its row.
    pub position: Option<Position>,
}

impl<'a> Outgoing<'a> {
    /// A record that is no dead letter and needs nothing for itself.
    pub const fn new(record: Record<'a>, ticket: Ticket) -> Self {
        Self { record, ticket, rejection: None, alone: false, position: None }
    }
}

/// An [`Outgoing`] that owns its bytes: the dead letter of a record the brokers refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedOutgoing {
    /// The dead letter.
    pub record: OwnedRecord,
    /// The ticket of the refused record, which is still waiting.
    pub ticket: Ticket,
    /// Why.
    pub rejection: RejectionCode,
}

impl OwnedOutgoing {
    /// Lends it to the send path.
    pub fn as_outgoing(&self) -> Outgoing<'_> {
        let (record, rejection) = (self.record.as_record(), Some(self.rejection));
        Outgoing { record, ticket: self.ticket, rejection, alone: false, position: None }
    }

    /// What the log needs of it once it was sent.
    pub fn without_body(self) -> SentDeadLetter {
        let record = OwnedRecord { value: None, ..self.record };
        SentDeadLetter { record, code: self.rejection }
    }
}

/// A dead letter that the sink took. Whoever gets it owes the operator a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentDeadLetter {
    /// The dead letter.
    pub record: OwnedRecord,
    /// Why the row became one.
    pub code: RejectionCode,
}

/// A row left out by policy. Whoever gets it owes the operator an audit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The outbox table.
    pub table: TableName,
    /// The row's id as its header would have had it, up to a kilobyte; `None` where it has none.
    pub id: Option<String>,
    /// Where the row stands in history.
    pub position: Position,
    /// Why it could not be delivered.
    pub rejection: Rejection,
}

/// What became of a confirmation.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Booked.
    Stored,
    /// The brokers refused the record. Hand its dead letter to the sink, now or as soon as there
    /// is room; until it is confirmed the row counts as unconfirmed. If the sink refuses it at
    /// once, report that as a confirmation with `Outcome::Refused`.
    Send(Box<OwnedOutgoing>),
    /// The brokers refused the record and the policy says to leave it out: write it down.
    Skipped(Box<Refused>),
}
