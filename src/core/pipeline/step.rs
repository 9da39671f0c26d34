//! Defines the inputs and outputs of the pipeline's steps.
//!
//! [`Outgoing`] and [`OwnedOutgoing`]: a record or dead letter to send, with its ticket.
//! [`Handled`]: the result of a frame, above all whether to consume or resubmit it. [`Answer`]:
//! what to do after a confirmation. [`DeadLetter`] and [`Skipped`]: what the caller must write to
//! the log.

use super::confirmation::Refused;
use crate::ledger::Ticket;
use crate::outbox::{Position, TableName};
use crate::route::{OwnedRecord, Record, Rejection, RejectionCode};

/// Result of a frame.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// Consume the frame.
    Done,
    /// Consume the frame and log the dead letter of its row.
    DeadLetter(Box<SentDeadLetter>),
    /// Consume the frame and log that the policy skipped its row.
    Skipped(Box<Skipped>),
    /// There was no room for the record: do not consume the frame, and submit it again later.
    Full,
}

/// A record for the sink, under a ticket that must be confirmed.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The row's record, or its dead letter.
    pub record: Record<'a>,
    /// Travels with the record and returns in its confirmation.
    pub ticket: Ticket,
    /// Why `record` is a dead letter; `None` for the row's own record.
    pub rejection: Option<RejectionCode>,
    /// True if nothing else may be in flight with it, because the brokers refused its batch.
    pub alone: bool,
    /// The row's place in history, if the record is sent together with its row.
    pub position: Option<Position>,
}

impl<'a> Outgoing<'a> {
    /// A record that is not a dead letter and has no special needs.
    pub const fn new(record: Record<'a>, ticket: Ticket) -> Self {
        Self { record, ticket, rejection: None, alone: false, position: None }
    }
}

/// An owned [`Outgoing`]: the dead letter of a refused record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedOutgoing {
    /// The dead letter.
    pub record: OwnedRecord,
    /// Ticket of the refused record, which stays open.
    pub ticket: Ticket,
    /// The reason.
    pub rejection: RejectionCode,
}

impl OwnedOutgoing {
    /// Borrows it for sending.
    pub fn as_outgoing(&self) -> Outgoing<'_> {
        let (record, rejection) = (self.record.as_record(), Some(self.rejection));
        Outgoing { record, ticket: self.ticket, rejection, alone: false, position: None }
    }

    /// The dead letter without its body, for the log.
    pub fn without_body(self) -> SentDeadLetter {
        let record = OwnedRecord { value: None, ..self.record };
        SentDeadLetter { record, code: self.rejection }
    }
}

/// A dead letter that the sink took. The caller must log it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentDeadLetter {
    /// The dead letter.
    pub record: OwnedRecord,
    /// The reason why the row became one.
    pub code: RejectionCode,
}

/// A row skipped by policy. The caller must write an audit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The outbox table.
    pub table: TableName,
    /// The row's id as in its header, up to 1 KiB; `None` without one.
    pub id: Option<String>,
    /// The row's place in history.
    pub position: Position,
    /// Why it could not be delivered.
    pub rejection: Rejection,
}

/// Result of a confirmation.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Booked.
    Stored,
    /// The brokers refused the record. Send its dead letter as soon as there is room; until its
    /// confirmation the row counts as unconfirmed. If the sink refuses the letter at once, report
    /// that as a confirmation with `Outcome::Refused`.
    Send(Box<OwnedOutgoing>),
    /// The brokers refused the record and the policy skips it: log it.
    Skipped(Box<Refused>),
}
