//! Results of the pipeline's steps.
//!
//! [`Handled`] says whether to consume or resubmit a frame. The caller must log each
//! [`SentDeadLetter`] and [`Skipped`].

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
    /// Consume the frame, log the dead letter.
    DeadLetter(Box<SentDeadLetter>),
    /// Consume the frame, log the skipped row.
    Skipped(Box<Skipped>),
    /// There was no room: submit the frame again later.
    Full,
}

/// A record under a ticket that must be confirmed.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The record or dead letter.
    pub record: Record<'a>,
    /// Returns in the confirmation.
    pub ticket: Ticket,
    /// Why `record` is a dead letter.
    pub rejection: Option<RejectionCode>,
    /// Whether it must be alone in flight.
    pub alone: bool,
    /// The row's place, if sent with its row.
    pub position: Option<Position>,
}

impl<'a> Outgoing<'a> {
    /// A record without special needs.
    pub const fn new(record: Record<'a>, ticket: Ticket) -> Self {
        Self { record, ticket, rejection: None, alone: false, position: None }
    }
}

/// The dead letter of a refused record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedOutgoing {
    /// The dead letter.
    pub record: OwnedRecord,
    /// Open ticket of the refused record.
    pub ticket: Ticket,
    /// Reason.
    pub rejection: RejectionCode,
}

impl OwnedOutgoing {
    /// Borrows it for sending.
    pub fn as_outgoing(&self) -> Outgoing<'_> {
        let (record, rejection) = (self.record.as_record(), Some(self.rejection));
        Outgoing { record, ticket: self.ticket, rejection, alone: false, position: None }
    }

    /// The dead letter for the log.
    pub fn without_body(self) -> SentDeadLetter {
        let record = OwnedRecord { value: None, ..self.record };
        SentDeadLetter { record, code: self.rejection }
    }
}

/// A dead letter that the sink took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentDeadLetter {
    /// The dead letter.
    pub record: OwnedRecord,
    /// Reason.
    pub code: RejectionCode,
}

/// A row skipped by policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Outbox table.
    pub table: TableName,
    /// Id, up to 1 KiB.
    pub id: Option<String>,
    /// Place in history.
    pub position: Position,
    /// Reason.
    pub rejection: Rejection,
}

/// Result of a confirmation.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Booked.
    Stored,
    /// Send this dead letter as soon as there is room. If the sink refuses it at once, confirm it
    /// with `Outcome::Refused`.
    Send(Box<OwnedOutgoing>),
    /// Log the refused record, which the policy skips.
    Skipped(Box<Refused>),
}
