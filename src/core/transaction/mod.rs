//! Exactly-once delivery with Kafka transactions.
//!
//! Input: records, progress, and the reports of a [`TransactionApi`]. Output: calls of that client,
//! and confirmations after the commit.
//!
//! A Kafka transaction holds the records of whole Postgres transactions and, last, the progress
//! that covers them: one atomic event.
//! Upholds G6. Invariants:
//! * there is one transaction at a time; while it ends, the sink accepts nothing;
//! * a transaction is committed only after all its records were reported stored;
//! * `Stored` is reported, and [`Sink::kept`] raised, after the commit (G1);
//! * nothing is aborted: the next session fences the transaction;
//! * nothing follows a commit whose outcome is uncertain. A later producer with this transactional
//!   id fences the dropped one before it reads the progress. A late EndTxn then has an old epoch
//!   and is refused.
//!
//! ```text
//!          first record        place to end        all stored         committed
//!   Idle ---------------> Open -----------> Closing/Settling ---> Ending ----> Pausing ---> Idle
//! ```
//!
//! # Why certainty is in question
//!
//! librdkafka repeats EndTxn below its API if a connection ends or an answer is late. Kafka before
//! KIP-890's second part, which librdkafka 2.12 does not support, takes a late EndTxn for the end
//! of the next transaction. The library logs either event before it sends again
//! ([`TransactionApi::disturbances`]). A commit with such an event is uncertain, although it
//! returned without an error.

mod backoff;
mod batch;
#[cfg(test)]
mod tests;
mod timings;

use std::time::Duration;

use crate::ledger::Ticket;
use crate::lsn::Lsn;
use crate::mutants::{self, Mutant};
use crate::pipeline::{Confirmation, Mark, Outcome, Outgoing};
use crate::route::{Record, Rejection};
use crate::sink::{Reached, SendError, Sink};
use crate::time::Instant;
use backoff::CommitBackoff;
use batch::{Batch, Ends};

pub use batch::BatchLimits;
pub use timings::{Activity, Timings};

/// Interval of progress records while idle (G5).
const IDLE_PROGRESS: Duration = Duration::from_secs(10);
/// Time in which the last transaction's markers may be pending.
const FOLLOWS: Duration = Duration::from_millis(100);
/// Ticket of progress records, which the ledger never issues.
pub const PROGRESS_TICKET: Ticket = Ticket::from_opaque(u64::MAX);

/// A transactional producer that has fenced its predecessors. Calls do not wait for the brokers.
pub trait TransactionApi {
    /// Why the producer is no longer usable.
    type Error;

    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Self::Error>;

    /// Whether the record's topic and partition accept records.
    fn admits(&mut self, record: &Record<'_>) -> Result<(), SendError<Self::Error>>;

    /// Sends a record; see [`Sink::send`].
    fn send(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError<Self::Error>>;

    /// Sends progress under [`PROGRESS_TICKET`].
    fn send_progress(&mut self, mark: Mark) -> Result<(), SendError<Self::Error>>;

    /// Appends the delivery reports that arrived.
    fn poll(&mut self, reports: &mut Vec<Confirmation>) -> Result<(), Self::Error>;

    /// Requests the commit; all records were reported stored.
    fn commit(&mut self) -> Result<(), Self::Error>;

    /// Result of the commit, once known. An error leaves the transaction's outcome unknown.
    fn outcome(&mut self) -> Option<Result<(), Self::Error>>;

    /// Events after which the library may repeat EndTxn.
    fn disturbances(&self) -> u64;

    /// Error if progress is refused.
    fn progress_refused(&self, rejection: Rejection) -> Self::Error;

    /// Error for a commit with a disturbance.
    fn ambiguous(&self) -> Self::Error;
}

/// A sink that delivers in Kafka transactions.
#[derive(Debug)]
pub struct Transactional<C> {
    client: C,
    limits: BatchLimits,
    state: TransactionState,
    batch: Batch,
    alone: bool,
    is_due: bool,
    /// Records, including progress.
    sent: u64,
    stored: u64,
    tickets: Vec<Ticket>,
    reports: Vec<Confirmation>,
    kept: Mark,
    kept_at: Option<Instant>,
    ends_since: Instant,
    last_end: Duration,
    was_many: bool,
    backoff: CommitBackoff,
    /// Start of the transaction, until its first report.
    begun: Option<Instant>,
    timings: Timings,
}

/// State of the Kafka transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionState {
    /// None is open.
    Idle,
    /// Takes records.
    Open {
        /// Start, or arrival of its records.
        since: Instant,
    },
    /// The mark must still be sent.
    Closing {
        /// Mark to store.
        mark: Mark,
    },
    /// Reports are outstanding.
    Settling {
        /// Mark to store.
        mark: Mark,
    },
    /// The commit was requested.
    Ending {
        /// Mark to store.
        mark: Mark,
        /// [`TransactionApi::disturbances`] then.
        disturbances: u64,
    },
    /// The next transaction would start too soon.
    Pausing {
        /// Earliest start.
        until: Instant,
    },
}

impl<C: TransactionApi> Transactional<C> {
    /// Creates a sink. `kept`: the mark in the newest committed progress. `linger`: a record's
    /// longest wait for its batch.
    pub fn new(client: C, limits: BatchLimits, linger: Duration, kept: Mark, now: Instant) -> Self {
        Self {
            client,
            limits,
            state: TransactionState::Idle,
            batch: Batch::default(),
            alone: false,
            is_due: false,
            sent: 0,
            stored: 0,
            tickets: Vec::new(),
            reports: Vec::new(),
            kept,
            kept_at: None,
            ends_since: now,
            last_end: Duration::ZERO,
            was_many: false,
            // The end of a transaction flushes lingering records.
            backoff: CommitBackoff::new(linger.min(limits.age)),
            begun: None,
            timings: Timings::new(now),
        }
    }

    /// The client.
    pub const fn client(&self) -> &C {
        &self.client
    }

    /// The client.
    pub const fn client_mut(&mut self) -> &mut C {
        &mut self.client
    }

    /// State of the Kafka transaction.
    pub const fn state(&self) -> TransactionState {
        self.state
    }

    /// Time spent per activity until now.
    pub fn timings(&self, now: Instant) -> Timings {
        self.timings.clone().until(now)
    }

    fn begin(&mut self, now: Instant) -> Result<(), C::Error> {
        self.client.begin()?;
        (self.batch, self.sent, self.stored) = (Batch::default(), 0, 0);
        self.is_due = false;
        let follows = self.kept_at.is_some_and(|at| now - at < FOLLOWS);
        // In a full queue a record takes longer than the markers.
        self.begun = (follows && !self.was_many).then_some(now);
        // Records that arrived during the pause have already waited.
        let pause = if self.begun.is_some() { self.backoff.pause() } else { Duration::ZERO };
        self.enter(TransactionState::Open { since: now.before(pause) }, now);
        if !self.alone {
            self.send_progress_first()?;
        }
        Ok(())
    }

    /// Repeats the last progress. The progress partition then joins the transaction with the first
    /// records, not when everything waits for it.
    fn send_progress_first(&mut self) -> Result<(), C::Error> {
        match self.client.send_progress(self.kept) {
            Ok(()) => self.sent += 1,
            Err(SendError::Full | SendError::Refused(_)) => {}
            Err(SendError::Broken(error)) => return Err(error),
        }
        Ok(())
    }

    /// If there is no room, the next call sends the progress.
    fn close(&mut self, mark: Mark, now: Instant) -> Result<(), C::Error> {
        let part = if mutants::is(Mutant::ForgetsPart) { None } else { mark.part };
        let mark = Mark { part, ..mark };
        if !matches!(self.state, TransactionState::Closing { .. }) {
            self.ends_since = now;
        }
        if let TransactionState::Open { since } = self.state {
            self.was_many = self.batch.is_many(now - since);
        }
        match self.client.send_progress(mark) {
            Ok(()) => {
                self.sent += 1;
                self.enter(TransactionState::Settling { mark }, now);
                Ok(())
            }
            Err(SendError::Full) => {
                self.enter(TransactionState::Closing { mark }, now);
                Ok(())
            }
            Err(SendError::Refused(rejection)) => Err(self.client.progress_refused(rejection)),
            Err(SendError::Broken(error)) => Err(error),
        }
    }

    fn book(&mut self, now: Instant) {
        if let (Some(begun), false) = (self.begun, self.reports.is_empty()) {
            self.backoff.learn(now - begun);
            self.begun = None;
        }
        for report in self.reports.drain(..) {
            match &report.outcome {
                Outcome::Stored => {
                    assert!(self.stored < self.sent, "a report for a record that was not sent");
                    self.stored += 1;
                    if report.ticket != PROGRESS_TICKET {
                        self.tickets.push(report.ticket);
                    }
                }
                Outcome::Refused(_) => unreachable!("only a cautious producer says so"),
            }
        }
    }

    fn took(&mut self, ticket: Ticket) {
        self.sent += 1;
        self.batch.records += 1;
        self.batch.bytes += ticket.weight();
    }

    fn advance(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), C::Error> {
        match self.state {
            TransactionState::Closing { mark } => self.close(mark, now),
            TransactionState::Settling { mark } if self.is_stored() => {
                let disturbances = self.client.disturbances();
                self.client.commit()?;
                self.enter(TransactionState::Ending { mark, disturbances }, now);
                Ok(())
            }
            TransactionState::Ending { mark, disturbances } => match self.client.outcome() {
                None => Ok(()),
                Some(outcome) => {
                    outcome?;
                    self.committed(mark, disturbances, now)?;
                    let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
                    confirmations.extend(self.tickets.drain(..).map(stored));
                    Ok(())
                }
            },
            TransactionState::Pausing { until } if now >= until => {
                self.enter(TransactionState::Idle, now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_stored(&self) -> bool {
        self.stored == self.sent || mutants::is(Mutant::CommitsBeforeReports)
    }

    /// Without a disturbance the commit certainly ended this transaction, and no EndTxn is still in
    /// flight. Upholds G6.
    fn committed(&mut self, mark: Mark, before: u64, now: Instant) -> Result<(), C::Error> {
        if self.client.disturbances() > before && !mutants::is(Mutant::TrustsDisturbedCommit) {
            return Err(self.client.ambiguous());
        }
        self.alone = false;
        // At a high rate the next records fill the client's queue during the wait.
        let pause = if self.was_many { Duration::ZERO } else { self.backoff.pause() };
        self.enter(TransactionState::Pausing { until: now + pause }, now);
        self.timings.ended(self.batch.records);
        (self.kept, self.kept_at) = (mark, Some(now));
        self.last_end = now - self.ends_since;
        Ok(())
    }

    fn enter(&mut self, state: TransactionState, now: Instant) {
        let activity = match state {
            TransactionState::Idle | TransactionState::Pausing { .. } => Activity::Idle,
            TransactionState::Open { .. } => Activity::Taking,
            TransactionState::Closing { .. } | TransactionState::Settling { .. } => {
                Activity::Settling
            }
            TransactionState::Ending { .. } => Activity::Ending,
        };
        self.timings.turn_to(activity, now);
        self.state = state;
    }

    fn wants_progress(&self, now: Instant, reached: Reached) -> bool {
        let rested = self.kept_at.is_none_or(|at| now - at >= IDLE_PROGRESS);
        reached.mark > self.kept && (rested || reached.ending)
    }

    fn send_alone(
        &mut self,
        now: Instant,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SendError<C::Error>> {
        match self.state {
            TransactionState::Idle => {
                self.client.admits(&outgoing.record)?;
                self.alone = true;
                self.begin(now)?;
            }
            TransactionState::Open { .. } if self.batch.records == 0 => {}
            TransactionState::Open { .. } => {
                self.alone = true;
                return Err(SendError::Full);
            }
            _ => return Err(SendError::Full),
        }
        self.alone = true;
        let sent = self.client.send(outgoing);
        if let Err(SendError::Refused(_)) = &sent {
            // The replacement record need not be alone.
            self.alone = false;
        }
        sent
    }
}

impl<C: TransactionApi> Sink for Transactional<C> {
    type Error = C::Error;

    fn send(
        &mut self,
        now: Instant,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SendError<Self::Error>> {
        if outgoing.alone || self.limits.is_alone() {
            let alone = Outgoing { record: outgoing.record.clone(), alone: true, ..*outgoing };
            self.send_alone(now, &alone)?;
        } else {
            match self.state {
                TransactionState::Idle => {
                    // No transaction stays open for a topic that the session waits for.
                    self.client.admits(&outgoing.record)?;
                    self.begin(now)?;
                }
                TransactionState::Open { .. }
                    if !self.alone && !self.batch.is_huge(self.limits) => {}
                TransactionState::Settling { .. } if mutants::is(Mutant::SendsBehindProgress) => {}
                _ => return Err(SendError::Full),
            }
            self.client.send(outgoing)?;
        }
        self.took(outgoing.ticket);
        Ok(())
    }

    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), Self::Error> {
        self.client.poll(&mut self.reports)?;
        self.book(now);
        if mutants::is(Mutant::ConfirmsBeforeCommit) {
            let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
            confirmations.extend(self.tickets.drain(..).map(stored));
        }
        self.advance(now, confirmations)
    }

    fn begin_at(&mut self, mark: Mark) {
        self.kept = mark;
    }

    fn reached(&mut self, now: Instant, reached: Reached) -> Result<(), Self::Error> {
        match self.state {
            // Wait for a record that may be refused, because the rest of its transaction would be
            // lost.
            TransactionState::Open { .. } if self.alone && self.stored < self.sent => Ok(()),
            // The only row was skipped. The transaction ends for the progress, as if none were
            // open.
            TransactionState::Open { .. } if self.batch.records == 0 => {
                if self.wants_progress(now, reached) {
                    self.close(reached.mark, now)?;
                }
                Ok(())
            }
            TransactionState::Open { .. } if self.alone => self.close(reached.mark, now),
            TransactionState::Open { since } => {
                let at = Reached { ending: reached.ending || self.is_due, ..reached };
                match self.batch.ends(self.limits, now - since, self.last_end, at) {
                    Ends::Here => self.close(reached.mark, now),
                    Ends::WithPostgres => {
                        self.is_due = true;
                        Ok(())
                    }
                    Ends::Later => Ok(()),
                }
            }
            TransactionState::Idle if self.wants_progress(now, reached) => {
                self.begin(now)?;
                self.close(reached.mark, now)
            }
            _ => Ok(()),
        }
    }

    fn takes_records(&self) -> bool {
        matches!(self.state, TransactionState::Idle | TransactionState::Open { .. })
            || mutants::is(Mutant::SendsBehindProgress)
    }

    fn has_enough(&self) -> bool {
        (self.is_due || self.batch.is_large(self.limits, self.last_end))
            && matches!(self.state, TransactionState::Open { .. })
    }

    fn may_end_within(&self) -> bool {
        self.kept.part.is_some()
    }

    fn kept(&self) -> Option<Lsn> {
        if mutants::is(Mutant::ConfirmsBeforeCommit) {
            return None;
        }
        Some(self.kept.end)
    }
}
