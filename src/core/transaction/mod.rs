//! Exactly-once delivery: the state machine of Kafka transactions.
//!
//! Input: records with tickets, how far the session has come, and the reports of a [`TransactionApi`].
//! Output: calls of that client; confirmations once the transaction of the records is committed; or an
//! error that ends the session. No I/O and no clock: the client and `now` are arguments.
//!
//! One Kafka transaction holds the records of whole Postgres transactions and, as its last record, the
//! progress that covers them. So "the rows are in Kafka" and "a later session skips them" are one atomic
//! event. Upholds G6. Invariants:
//! * there is one transaction at a time; while it ends nothing is accepted, and the session keeps reading
//!   into its buffer;
//! * a transaction is committed when every record of it was reported stored, never before;
//! * `Stored` is reported, and [`Sink::kept`] raised, after the commit (G1);
//! * nothing is aborted: a session that cannot go on leaves its transaction to be fenced by the next one;
//! * nothing follows a commit whose outcome is uncertain: the producer is dropped, and a later one with the
//!   same transactional id fences it before it reads the progress. An EndTxn that reaches the brokers late
//!   then has an old epoch and is refused.
//!
//! ```text
//!          first record        place to end        all stored         committed
//!   Idle ---------------> Open -----------> Closing/Settling ---> Ending ----> Pausing ---> Idle
//! ```
//!
//! # Why certainty is in question
//!
//! librdkafka sends EndTxn again by itself, below its API, when a connection ends or an answer does
//! not come in time; Kafka before KIP-890's second part, which librdkafka 2.12 does not speak, takes
//! a late EndTxn of one transaction for the end of the next. The library logs either event before it
//! sends again ([`TransactionApi::disturbances`]): a commit during which one was logged is uncertain, though it
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

/// How often progress is written for its own sake, while an idle slot advances (G5).
const IDLE_PROGRESS: Duration = Duration::from_secs(10);
/// A transaction that begins this soon after the last may meet it on its way out.
const FOLLOWS: Duration = Duration::from_millis(100);
/// The ticket of progress records; the ledger gives none with that weight.
pub const PROGRESS_TICKET: Ticket = Ticket::from_opaque(u64::MAX);

/// A transactional producer that has fenced its predecessors. No call waits for the brokers.
pub trait TransactionApi {
    /// Why it is no longer usable.
    type Error;

    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Self::Error>;

    /// Whether a record would be taken now, as far as its topic and partition are concerned.
    fn admits(&mut self, record: &Record<'_>) -> Result<(), SendError<Self::Error>>;

    /// Hands over one record of the open transaction; see [`Sink::send`].
    fn send(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError<Self::Error>>;

    /// Hands over the record that says how far the stream has come, under [`PROGRESS_TICKET`].
    fn send_progress(&mut self, mark: Mark) -> Result<(), SendError<Self::Error>>;

    /// Appends every delivery report that has arrived.
    fn poll(&mut self, reports: &mut Vec<Confirmation>) -> Result<(), Self::Error>;

    /// Asks for the commit of the open transaction, all of whose records were reported stored.
    fn commit(&mut self) -> Result<(), Self::Error>;

    /// What became of the commit, once that is known. An error says nothing about the transaction.
    fn outcome(&mut self) -> Option<Result<(), Self::Error>>;

    /// How often something has happened so far after which the library may send EndTxn again by itself.
    fn disturbances(&self) -> u64;

    /// The error where no record may hold progress.
    fn progress_refused(&self, rejection: Rejection) -> Self::Error;

    /// The error of a commit that returned well, though something happened meanwhile.
    fn ambiguous(&self) -> Self::Error;
}

/// A sink that delivers in transactions.
#[derive(Debug)]
pub struct Transactional<C> {
    client: C,
    limits: BatchLimits,
    state: TransactionState,
    batch: Batch,
    /// A record waits for a transaction of its own, or has it.
    alone: bool,
    /// It ends where the transaction of Postgres ends that is open.
    is_due: bool,
    /// Sent and reported in the open transaction, its progress record included.
    sent: u64,
    stored: u64,
    /// Of the records that are reported stored.
    tickets: Vec<Ticket>,
    reports: Vec<Confirmation>,
    /// The last mark whose transaction is committed.
    kept: Mark,
    kept_at: Option<Instant>,
    /// When the open transaction was told to end.
    ends_since: Instant,
    /// How long the last one took to end.
    last_end: Duration,
    /// Whether it had many records for the time that it was open.
    was_many: bool,
    backoff: CommitBackoff,
    /// When it was begun, until its first record is reported.
    begun: Option<Instant>,
    timings: Timings,
}

/// Where the open transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionState {
    /// There is none.
    Idle,
    /// It takes records.
    Open {
        /// When it was begun, or what is in it came.
        since: Instant,
    },
    /// It is to end at this mark, which has still to be sent.
    Closing {
        /// How far the stream has come.
        mark: Mark,
    },
    /// Everything was sent; not everything is reported.
    Settling {
        /// How far the stream has come.
        mark: Mark,
    },
    /// Its end was asked for, after so many disturbances.
    Ending {
        /// How far the stream has come.
        mark: Mark,
        /// See [`TransactionApi::disturbances`].
        disturbances: u64,
    },
    /// There is none, and the next one would begin too soon.
    Pausing {
        /// When it may begin.
        until: Instant,
    },
}

impl<C: TransactionApi> Transactional<C> {
    /// Sends through a client that has just fenced its predecessors, and goes on behind `kept`, which
    /// the newest committed progress holds. A record waits for its batch as long as `linger`.
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
            // What waits for company is flushed when its transaction ends.
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

    /// Where the open transaction stands.
    pub const fn state(&self) -> TransactionState {
        self.state
    }

    /// Where the time went until now.
    pub fn timings(&self, now: Instant) -> Timings {
        self.timings.clone().until(now)
    }

    fn begin(&mut self, now: Instant) -> Result<(), C::Error> {
        self.client.begin()?;
        (self.batch, self.sent, self.stored) = (Batch::default(), 0, 0);
        self.is_due = false;
        let follows = self.kept_at.is_some_and(|at| now - at < FOLLOWS);
        // In a full queue a record takes longer than markers do.
        self.begun = (follows && !self.was_many).then_some(now);
        // What has come during the pause has waited as long.
        let pause = if self.begun.is_some() { self.backoff.pause() } else { Duration::ZERO };
        self.enter(TransactionState::Open { since: now.before(pause) }, now);
        if !self.alone {
            self.send_progress_first()?;
        }
        Ok(())
    }

    /// Says again how far the last transaction came. It is not news, but the partition of progress then
    /// joins the transaction with the first records, and not when everything waits for it.
    fn send_progress_first(&mut self) -> Result<(), C::Error> {
        match self.client.send_progress(self.kept) {
            Ok(()) => self.sent += 1,
            Err(SendError::Full | SendError::Refused(_)) => {}
            Err(SendError::Broken(error)) => return Err(error),
        }
        Ok(())
    }

    /// Sends the progress record, or leaves it for the next call if there is no room.
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

    /// Books the delivery reports of the open transaction.
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

    /// Goes as far as the brokers' answers allow.
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

    /// A commit has returned well. It is certain to have ended this transaction, and no request to end it
    /// to be under way, if nothing happened meanwhile. Upholds G6.
    fn committed(&mut self, mark: Mark, before: u64, now: Instant) -> Result<(), C::Error> {
        if self.client.disturbances() > before && !mutants::is(Mutant::TrustsDisturbedCommit) {
            return Err(self.client.ambiguous());
        }
        self.alone = false;
        // Of many, the next ones fill the client's queue while their transaction is put off.
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

    /// Whether progress should be written though no record waits for it.
    fn wants_progress(&self, now: Instant, reached: Reached) -> bool {
        let rested = self.kept_at.is_none_or(|at| now - at >= IDLE_PROGRESS);
        reached.mark > self.kept && (rested || reached.ending)
    }

    /// Takes a record that needs a transaction of its own.
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
                // It ends at the next place that is reached.
                self.alone = true;
                return Err(SendError::Full);
            }
            _ => return Err(SendError::Full),
        }
        self.alone = true;
        let sent = self.client.send(outgoing);
        if let Err(SendError::Refused(_)) = &sent {
            // What goes in its place need not be alone.
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
                    // No transaction stays open for a topic that is waited for.
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
            // One that may be refused is waited for: what else is in its transaction would be lost.
            TransactionState::Open { .. } if self.alone && self.stored < self.sent => Ok(()),
            // Its only row was passed over: it ends for the sake of progress, as if none were open.
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
