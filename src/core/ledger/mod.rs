//! Counts which records the brokers have stored, and so how far Postgres may be acknowledged.
//!
//! Input: begin, commit, keepalive, `send` and `confirm`. Output: [`Ledger::settled`], the only
//! position to acknowledge; [`Ledger::has_room`], whether the [`Budget`] allows another record.
//!
//! # The argument
//!
//! Transactions arrive in commit order. The ring holds each one that has something unconfirmed
//! before it or in it:
//!
//! ```text
//!   settled |  T7 end 90, 3 of 5 confirmed  |  T8 end 140, 2 of 2  |  T9 open, 0 of 1
//!      80   |  <- front: holds everything   |  complete, must wait |  no end yet
//! ```
//!
//! * `settled` moves only over a committed front whose every record is confirmed (G1).
//! * A keepalive at K says that everything below K was sent, like an empty transaction. It raises
//!   the predecessor's end, or `settled` if the ring is empty (G5). While a transaction is open, it
//!   proves nothing and is ignored.
//! * A commit that goes backwards is an error, because its position may already be promised.
//! * Every slot except the open one holds a record, so the record budget bounds the ring (G3).

mod error;
mod ticket;

use std::collections::VecDeque;

use crate::lsn::Lsn;
use crate::mutants::{self, Mutant};

pub use error::LedgerError;
pub use ticket::Ticket;

const RING_SLOTS_INITIAL: usize = 64;

/// Limits on unconfirmed records, and so on memory (G3).
///
/// Each limit is soft by one item, so that a huge record does not block forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Records; at least 1.
    pub records: u64,
    /// Bytes; at least 1.
    pub bytes: u64,
    /// Unsettled transactions; at least 1.
    pub transactions: usize,
}

impl Budget {
    /// The budget for sinks that confirm at commit. The sink's queue bounds memory, and a stored
    /// record takes only about 40 bytes, so four times as much may wait.
    #[must_use]
    pub const fn in_transactions(self) -> Self {
        let Self { records, bytes, transactions } = self;
        Self { records: records.saturating_mul(4), bytes: bytes.saturating_mul(4), transactions }
    }
}

impl Default for Budget {
    /// 50,000 small records feed 150 partitions over a 20 ms round trip.
    fn default() -> Self {
        Self { records: 50_000, bytes: 32 << 20, transactions: 50_000 }
    }
}

/// What is unconfirmed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Transactions, including the open one.
    pub transactions: usize,
}

/// Progress of the oldest unsettled transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerProgress {
    /// Settled position.
    pub settled: Lsn,
    /// Confirmed records after that.
    pub confirmed: u64,
}

/// Invariant: `confirmed <= expected`.
#[derive(Debug, Clone, Copy)]
struct Slot {
    end: Lsn,
    /// Not moved by later empty transactions; zero while open.
    own_end: Lsn,
    commit_lsn: Lsn,
    commit_time: i64,
    expected: u64,
    confirmed: u64,
}

impl Slot {
    fn is_confirmed(&self) -> bool {
        self.confirmed == self.expected
            || mutants::is(Mutant::SettlesUnconfirmed)
            || mutants::is(Mutant::CountsOneTooFew) && self.confirmed + 1 == self.expected
    }
}

/// The ring of unsettled transactions; see the module documentation.
#[derive(Debug)]
pub struct Ledger {
    budget: Budget,
    ring: VecDeque<Slot>,
    front: u32,
    open: bool,
    settled: Lsn,
    /// Everything at or below this end was received.
    horizon: Lsn,
    in_flight: InFlight,
    settled_times: Vec<i64>,
}

impl Ledger {
    /// Creates the ledger of a new session.
    pub fn new(budget: Budget) -> Self {
        let slots = RING_SLOTS_INITIAL.min(budget.transactions.saturating_add(1));
        Self {
            budget,
            ring: VecDeque::with_capacity(slots),
            front: 0,
            open: false,
            settled: Lsn::ZERO,
            horizon: Lsn::ZERO,
            in_flight: InFlight::default(),
            settled_times: Vec::new(),
        }
    }

    /// Starts a transaction; `commit_time` is in the caller's unit.
    pub fn begin(&mut self, commit_lsn: Lsn, commit_time: i64) -> Result<(), LedgerError> {
        if self.open {
            return Err(LedgerError::AlreadyOpen);
        }
        self.ring.push_back(Slot {
            end: Lsn::ZERO,
            own_end: Lsn::ZERO,
            commit_lsn,
            commit_time,
            expected: 0,
            confirmed: 0,
        });
        self.open = true;
        Ok(())
    }

    /// Passes the open transaction's next record (`weight` bytes) to `send`. An accepted record
    /// must be confirmed. A refusal changes nothing, and the next call uses the same ticket.
    #[inline]
    pub fn send<T, E>(
        &mut self,
        weight: usize,
        send: impl FnOnce(Ticket) -> Result<T, E>,
    ) -> Result<Result<T, E>, LedgerError> {
        // The ring is far shorter than 2^32.
        let number = self.front.wrapping_add(truncated(self.ring.len()).wrapping_sub(1));
        let newest = self.ring.back_mut().filter(|_| self.open).ok_or(LedgerError::NotOpen)?;
        let ticket = Ticket::new(number, u32::try_from(weight).unwrap_or(u32::MAX));
        let taken = send(ticket);
        if taken.is_ok() {
            newest.expected += 1;
            self.in_flight.records += 1;
            self.in_flight.bytes += ticket.weight();
        }
        Ok(taken)
    }

    /// Commits the open transaction. `end` is `end_lsn`: acknowledging `commit_lsn` would repeat
    /// the transaction.
    pub fn commit(&mut self, end: Lsn) -> Result<(), LedgerError> {
        let newest = self.ring.back_mut().filter(|_| self.open).ok_or(LedgerError::NotOpen)?;
        // Upholds G1: `end` may already have been promised for an earlier transaction.
        if end <= self.horizon {
            return Err(LedgerError::Backwards { end, horizon: self.horizon });
        }
        (newest.end, newest.own_end) = (end, end);
        let is_empty = newest.expected == 0;
        self.open = false;
        self.horizon = end;
        if is_empty {
            self.ring.pop_back();
            self.extend_to(end);
        } else {
            self.settle_front();
        }
        Ok(())
    }

    /// Handles a keepalive like an empty transaction.
    pub fn keepalive(&mut self, end: Lsn) {
        if mutants::is(Mutant::IgnoresKeepalives) {
            return;
        }
        if mutants::is(Mutant::SettlesKeepalives) {
            self.settled = self.settled.max(end);
        }
        // Upholds G1: rows of the open transaction may still arrive below `end`.
        if !self.open && end > self.horizon {
            self.horizon = end;
            self.extend_to(end);
        }
    }

    /// Commit time of a ticket's transaction, in the unit of `begin`.
    pub fn commit_time(&self, ticket: Ticket) -> Result<i64, LedgerError> {
        Ok(self.slot(ticket)?.commit_time)
    }

    /// Commit position of a ticket's transaction.
    pub fn commit_lsn(&self, ticket: Ticket) -> Result<Lsn, LedgerError> {
        Ok(self.slot(ticket)?.commit_lsn)
    }

    /// The transaction's own end, once read.
    pub fn end(&self, ticket: Ticket) -> Result<Option<Lsn>, LedgerError> {
        Ok(Some(self.slot(ticket)?.own_end).filter(|end| *end != Lsn::ZERO))
    }

    fn slot(&self, ticket: Ticket) -> Result<&Slot, LedgerError> {
        let age = ticket.transaction().wrapping_sub(self.front);
        let slot = usize::try_from(age).ok().and_then(|age| self.ring.get(age));
        slot.ok_or(LedgerError::UnknownTicket { transaction: ticket.transaction() })
    }

    /// Books that the brokers stored a record.
    pub fn confirm(&mut self, ticket: Ticket) -> Result<(), LedgerError> {
        let age = ticket.transaction().wrapping_sub(self.front);
        let unknown = LedgerError::UnknownTicket { transaction: ticket.transaction() };
        let slot = usize::try_from(age).ok().and_then(|age| self.ring.get_mut(age));
        let slot = slot.ok_or(unknown)?;
        if slot.confirmed == slot.expected || self.in_flight.bytes < ticket.weight() {
            return Err(LedgerError::ConfirmedTwice { transaction: ticket.transaction() });
        }
        slot.confirmed += 1;
        self.in_flight.records -= 1;
        self.in_flight.bytes -= ticket.weight();
        if age == 0 {
            self.settle_front();
        }
        Ok(())
    }

    /// The only position to acknowledge; never decreases.
    pub const fn settled(&self) -> Lsn {
        self.settled
    }

    /// End of the newest completely read transaction, or of a later keepalive.
    pub const fn horizon(&self) -> Lsn {
        self.horizon
    }

    /// True if the budget allows another frame. Upholds G3.
    pub fn has_room(&self) -> bool {
        let closed = self.ring.len() - usize::from(self.open);
        if mutants::is(Mutant::IgnoresBudget) {
            return true;
        }
        self.in_flight.records < self.budget.records
            && self.in_flight.bytes < self.budget.bytes
            && closed < self.budget.transactions
    }

    /// What is unconfirmed now.
    pub fn in_flight(&self) -> InFlight {
        InFlight { transactions: self.ring.len(), ..self.in_flight }
    }

    /// Progress of the oldest transaction.
    pub fn progress(&self) -> LedgerProgress {
        let confirmed = self.ring.front().map_or(0, |slot| slot.confirmed);
        LedgerProgress { settled: self.settled, confirmed }
    }

    /// True if no transaction is open, or if the open one has sent no record.
    pub fn open_is_empty(&self) -> bool {
        !self.open || self.ring.back().is_none_or(|newest| newest.expected == 0)
    }

    /// Commit time of the oldest unsettled transaction.
    pub fn oldest_commit_time(&self) -> Option<i64> {
        self.ring.front().map(|slot| slot.commit_time)
    }

    /// Commit times of newly settled transactions. A caller that does not drain loses samples, not
    /// memory.
    pub fn drain_settled_times(&mut self) -> std::vec::Drain<'_, i64> {
        self.settled_times.drain(..)
    }

    /// Extends the newest commit to `end`. No records lie between, so both settle together.
    /// Upholds G5.
    fn extend_to(&mut self, end: Lsn) {
        match self.ring.back_mut() {
            Some(newest) => newest.end = end,
            None => self.settled = end,
        }
    }

    /// Upholds G1: only this function moves the watermark over a transaction with records.
    fn settle_front(&mut self) {
        let closed = self.ring.len() - usize::from(self.open);
        for _ in 0..closed {
            let Some(slot) = self.ring.front().filter(|slot| slot.is_confirmed()) else { break };
            assert!(slot.end > self.settled, "commits are in the order of their ends");
            self.settled = slot.end;
            if self.settled_times.len() < self.budget.transactions {
                self.settled_times.push(slot.commit_time);
            }
            self.ring.pop_front();
            self.front = self.front.wrapping_add(1);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "ring positions are far below 2^32")]
const fn truncated(slots: usize) -> u32 {
    slots as u32
}

#[cfg(test)]
mod tests;
