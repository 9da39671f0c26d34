//! Tracks which transaction of the stream is open, and numbers its rows.
//!
//! Input: logical messages, and rows that are done; `note` sets the position at begin and commit. Output:
//! the position of the next row, and how much of the open transaction is done. Invariant: rows get the same
//! numbers when their transaction is sent again; a non-transactional logical message counts as a
//! transaction of its own, which ends where the message ends (G1).

use super::counters::Counters;
use super::error::PipelineError;
use super::mark::PartialTransaction;
use crate::ledger::{Ledger, LedgerError};
use crate::lsn::Lsn;
use crate::outbox::Position;
use crate::pgoutput::{LogicalMessage, PgTime};

#[derive(Debug, Default)]
pub(super) struct StreamPosition {
    /// Where the open transaction's next row stands; `None` between transactions.
    pub(super) next: Option<Position>,
    /// The end of the message that is a transaction of its own, while it is in hand.
    lone_end: Option<Lsn>,
}

impl StreamPosition {
    /// Where the open transaction's next row stands.
    pub(super) fn open(&self) -> Result<Position, PipelineError> {
        Ok(self.next.ok_or(LedgerError::NotOpen)?)
    }

    /// The position of a logical message; the same one when it is handed in again. `sent_us` is the
    /// server's clock when it sent it: a message of its own has no commit time.
    pub(super) fn message(
        &mut self,
        message: &LogicalMessage<'_>,
        sent_us: i64,
        ledger: &mut Ledger,
    ) -> Result<Position, PipelineError> {
        if let Some(position) = self.next {
            return Ok(position);
        }
        if message.transactional {
            return Err(LedgerError::NotOpen.into());
        }
        let commit_time = PgTime(sent_us);
        let commit_lsn = lone_place(message.lsn);
        ledger.begin(commit_lsn, commit_time.unix_us())?;
        let position = Position { commit_lsn, index: 0, commit_time };
        (self.next, self.lone_end) = (Some(position), Some(message.lsn));
        Ok(position)
    }

    /// Whether a transaction that committed and ends there is a message outside of all transactions.
    pub(super) fn is_lone(commit_lsn: Lsn, end: Option<Lsn>) -> bool {
        // A commit record takes more than a byte.
        end.is_some_and(|end| commit_lsn == lone_place(end))
    }

    /// Where the message in hand has its place that is a transaction of its own.
    pub(super) fn lone(&self) -> Option<Lsn> {
        self.lone_end.map(lone_place)
    }

    /// How much of the open transaction is done, if any of it is.
    pub(super) fn part(&self) -> Option<PartialTransaction> {
        let Position { commit_lsn, index: rows, .. } = self.next?;
        (rows > 0).then_some(PartialTransaction { commit_lsn, rows })
    }

    /// A row was sent, skipped or dropped: the next one stands after it.
    pub(super) fn row_done(
        &mut self,
        counters: &mut Counters,
        ledger: &mut Ledger,
    ) -> Result<(), PipelineError> {
        counters.rows += 1;
        if let Some(end) = self.lone_end.take() {
            self.next = None;
            ledger.commit(end)?;
        } else if let Some(position) = &mut self.next {
            position.index += 1;
        }
        Ok(())
    }
}

/// Where a message that ends there has its place. The message's position is its end (`DecodeLogicalMsg`
/// in `replication/logical/decode.c`), where the next commit record may begin: one before it, positions
/// stay distinct.
fn lone_place(end: Lsn) -> Lsn {
    Lsn::new(end.get().saturating_sub(1))
}
