//! What the pipeline asks its caller to do.
//!
//! Enters: nothing; this is a vocabulary. Leaves: the answers to a frame ([`Step`]) and to a
//! confirmation ([`Answer`]).

use super::confirmation::Refused;
use crate::ledger::Ticket;
use crate::outbox::{Position, TableName};
use crate::route::{OwnedRecord, Record, Rejection, RejectionCode};

/// The answer to a frame. All but `Send` mean that the frame is done with and may be consumed.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate for every row")]
pub enum Step<'a> {
    /// Nothing to send.
    Nothing,
    /// Hand this to the sink. Taken: call `sent` and consume the frame. `Full`: do neither, offer
    /// the same frame again later. Refused: call `reject` with the same frame.
    Send(Outgoing<'a>),
    /// The policy says to leave this row out: write it down.
    Skipped(Skipped<'a>),
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

/// A row left out by policy. Whoever gets it owes the operator an audit record.
#[derive(Debug)]
pub struct Skipped<'a> {
    /// The outbox table.
    pub table: &'a TableName,
    /// The row's id as its header would have had it, up to a kilobyte; `None` where it has none.
    pub id: Option<String>,
    /// Where the row stands in history.
    pub position: Position,
    /// Why it could not be delivered.
    pub rejection: Rejection,
}

/// The answer to a confirmation.
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
