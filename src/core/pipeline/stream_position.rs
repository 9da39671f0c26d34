//! Tracks the open transaction, and numbers its rows.
//!
//! Numbers do not change when a transaction is sent again. A non-transactional message is a
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
    /// `None` between transactions.
    pub(super) next: Option<Position>,
    lone_end: Option<Lsn>,
}

impl StreamPosition {
    pub(super) fn open(&self) -> Result<Position, PipelineError> {
        Ok(self.next.ok_or(LedgerError::NotOpen)?)
    }

    /// `sent_us` replaces the commit time of a non-transactional message.
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

    /// True for a non-transactional message.
    pub(super) fn is_lone(commit_lsn: Lsn, end: Option<Lsn>) -> bool {
        // A commit record is longer than one byte.
        end.is_some_and(|end| commit_lsn == lone_place(end))
    }

    pub(super) fn lone(&self) -> Option<Lsn> {
        self.lone_end.map(lone_place)
    }

    pub(super) fn part(&self) -> Option<PartialTransaction> {
        let Position { commit_lsn, index: rows, .. } = self.next?;
        (rows > 0).then_some(PartialTransaction { commit_lsn, rows })
    }

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

/// A message's log position is its end (`DecodeLogicalMsg` in `replication/logical/decode.c`),
/// where the next commit record may start. One byte before it is distinct.
fn lone_place(end: Lsn) -> Lsn {
    Lsn::new(end.get().saturating_sub(1))
}
