//! The transactional producer: exactly-once delivery.
//!
//! Enters: records with tickets, and how far the session has come. Leaves: confirmations once the
//! transaction is committed that holds the records, or a [`SinkError`] and with it the end of the
//! session. Called by the relay, on the thread that reads the replication stream.
//!
//! One Kafka transaction holds the records of whole transactions of Postgres and, as its last
//! record, the [`Progress`] that covers them. So "the rows are in Kafka" and "a later session leaves
//! them out" are one event. Upholds G6. What always holds:
//! * there is one transaction at a time; while one ends nothing is taken, and the session reads on
//!   into its buffer meanwhile;
//! * a transaction is committed when every record of it was reported stored, never before;
//! * `Stored` is said, and [`Sink::kept`] raised, after the commit (G1);
//! * nothing is aborted: a session that cannot go on leaves its transaction to the next one's fencing;
//! * nothing follows a commit whose outcome is not certain: this producer is dropped, and a later
//!   one with the same transactional id fences it before it reads progress. A request to end a
//!   transaction that the brokers get late then meets an epoch that is over.
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
//! sends again ([`Watch::disturbances`](super::watch::Watch::disturbances)): a commit during which
//! one was logged is uncertain, though it returned without an error.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::batch::{BatchLimits, Heap};
use super::breath::Breath;
use super::committer::Committer;
use super::fence::fence;
use super::progress::{Lineage, Progress};
use super::settings::KafkaSpec;
use super::sink::Reached;
use super::spent::{Doing, Spent};
use super::verdict::is_fencing;
use super::{Confirmation, Outcome, Producer, SendError, Sink, SinkError, progress_topic};
use crate::failpoint;
use crate::ledger::Ticket;
use crate::lsn::Lsn;
use crate::pipeline::Mark;
use crate::route::Record;

/// How often progress is written for its own sake, while an idle slot advances (G5).
const IDLE_PROGRESS: Duration = Duration::from_secs(10);
/// A transaction that begins this soon after the last may meet it on its way out.
const FOLLOWS: Duration = Duration::from_millis(100);
/// The ticket of progress records; the ledger gives none with that weight.
pub(super) const PROGRESS_TICKET: Ticket = Ticket::from_opaque(u64::MAX);

/// A producer of transactions.
pub struct Transactional {
    producer: Producer,
    committer: Committer,
    limits: BatchLimits,
    lineage: Lineage,
    topic: String,
    found: Option<Progress>,
    state: State,
    heap: Heap,
    /// A record waits for a transaction of its own, or has it.
    alone: bool,
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
    breath: Breath,
    /// When it was begun, until its first record is reported.
    begun: Option<Instant>,
    spent: Spent,
}

/// Where the open transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is none.
    Idle,
    /// It takes records.
    Open { since: Instant },
    /// It is to end at this mark, which has still to be sent.
    Closing { mark: Mark },
    /// Everything was sent; not everything is reported.
    Settling { mark: Mark },
    /// Its end was asked for, after so many disturbances.
    Ending { mark: Mark, disturbances: u64 },
    /// There is none, and the next one would begin too soon.
    Pausing { until: Instant },
}

impl Transactional {
    /// Fences every earlier producer of this stream, waits for the end of its transactions, and reads
    /// progress. Blocks for seconds at most.
    pub fn open(spec: &KafkaSpec, lineage: &Lineage) -> Result<Self, SinkError> {
        let topic = spec.progress_topic.clone();
        let mut reader = progress_topic::Reader::open(spec, &topic)?;
        // Refusals end the session, whatever they name.
        let producer = fence(&KafkaSpec { cautious: false, ..spec.clone() }, lineage)?;
        let found = reader.newest(&lineage.key())?;
        let committer = Committer::start(producer.client())
            .map_err(|error| SinkError::NotReady(error.to_string()))?;
        let kept = found.as_ref().map_or_else(Mark::default, |progress| progress.mark);
        Ok(Self {
            producer,
            committer,
            limits: BatchLimits::new(spec.transaction_age, spec.cautious),
            lineage: lineage.clone(),
            topic,
            found,
            state: State::Idle,
            heap: Heap::default(),
            alone: false,
            sent: 0,
            stored: 0,
            tickets: Vec::new(),
            reports: Vec::new(),
            kept,
            kept_at: None,
            ends_since: Instant::now(),
            last_end: Duration::ZERO,
            breath: Breath::new(Duration::from_millis(spec.linger_ms.into())),
            begun: None,
            spent: Spent::new(),
        })
    }

    fn begin(&mut self) -> Result<(), SinkError> {
        self.producer.client().begin_transaction().map_err(|error| self.broken(&error))?;
        (self.heap, self.sent, self.stored) = (Heap::default(), 0, 0);
        let now = Instant::now();
        self.begun = self.kept_at.is_some_and(|at| now - at < FOLLOWS).then_some(now);
        // What has come during the pause has waited as long.
        let pause = if self.begun.is_some() { self.breath.pause() } else { Duration::ZERO };
        let since = now.checked_sub(pause).unwrap_or(now);
        self.enter(State::Open { since });
        if !self.alone {
            self.introduce_progress()?;
        }
        failpoint::pass("transaction_begun");
        Ok(())
    }

    /// Says again how far the last transaction came. It is not news, but the partition of progress then
    /// joins the transaction with the first records, and not when everything waits for it.
    fn introduce_progress(&mut self) -> Result<(), SinkError> {
        let progress = Progress { lineage: self.lineage.clone(), mark: self.kept };
        match self.producer.send(&progress.record(&self.topic).as_record(), PROGRESS_TICKET) {
            Ok(()) => self.sent += 1,
            Err(SendError::Full | SendError::Refused(_)) => {}
            Err(SendError::Broken(error)) => return Err(error),
        }
        Ok(())
    }

    /// Sends the progress record, or leaves it for the next call if there is no room.
    fn close(&mut self, mark: Mark) -> Result<(), SinkError> {
        if !matches!(self.state, State::Closing { .. }) {
            self.ends_since = Instant::now();
        }
        let progress = Progress { lineage: self.lineage.clone(), mark };
        let record = progress.record(&self.topic);
        match self.producer.send(&record.as_record(), PROGRESS_TICKET) {
            Ok(()) => {
                self.sent += 1;
                self.enter(State::Settling { mark });
                failpoint::pass("progress_sent");
                Ok(())
            }
            Err(SendError::Full) => {
                self.enter(State::Closing { mark });
                Ok(())
            }
            Err(SendError::Refused(rejection)) => {
                Err(SinkError::of_progress(&self.topic, rejection))
            }
            Err(SendError::Broken(error)) => Err(error),
        }
    }

    /// Books the delivery reports of the open transaction.
    fn book(&mut self) {
        if let (Some(begun), false) = (self.begun, self.reports.is_empty()) {
            self.breath.learn(begun.elapsed());
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
        failpoint::pass("record_sent");
        self.sent += 1;
        self.heap.records += 1;
        self.heap.bytes += ticket.weight();
    }

    /// Goes as far as the brokers' answers allow.
    fn advance(&mut self, confirmations: &mut Vec<Confirmation>) -> Result<(), SinkError> {
        match self.state {
            State::Closing { mark } => self.close(mark),
            State::Settling { mark } if self.stored == self.sent => self.commit(mark),
            State::Ending { mark, disturbances } => match self.committer.outcome() {
                None => Ok(()),
                Some(outcome) => {
                    self.ended(&outcome, disturbances)?;
                    failpoint::pass("committed");
                    self.alone = false;
                    self.enter(State::Pausing { until: Instant::now() + self.breath.pause() });
                    self.spent.ended(self.heap.records);
                    (self.kept, self.kept_at) = (mark, Some(Instant::now()));
                    self.last_end = self.ends_since.elapsed();
                    let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
                    confirmations.extend(self.tickets.drain(..).map(stored));
                    Ok(())
                }
            },
            State::Pausing { until } if Instant::now() >= until => {
                self.enter(State::Idle);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn commit(&mut self, mark: Mark) -> Result<(), SinkError> {
        let disturbances = self.disturbances();
        failpoint::pass("commit_due");
        self.committer.commit().map_err(|error| self.broken(&error))?;
        failpoint::pass("commit_asked");
        self.enter(State::Ending { mark, disturbances });
        Ok(())
    }

    /// Whether the transaction is certain to have ended as wanted, and no request to end it to be
    /// under way. Upholds G6.
    fn ended(&self, outcome: &KafkaResult<()>, before: u64) -> Result<(), SinkError> {
        // What was logged before the call returned has been waiting in this queue since.
        self.producer.serve();
        outcome.as_ref().map_err(|error| self.uncertain(error))?;
        match self.disturbances() - before {
            0 => Ok(()),
            _ => Err(SinkError::Ambiguous("a connection was disturbed meanwhile".to_owned())),
        }
    }

    fn enter(&mut self, state: State) {
        self.spent.turn_to(match state {
            State::Idle | State::Pausing { .. } => Doing::Resting,
            State::Open { .. } => Doing::Taking,
            State::Closing { .. } | State::Settling { .. } => Doing::Settling,
            State::Ending { .. } => Doing::Ending,
        });
        self.state = state;
    }

    fn disturbances(&self) -> u64 {
        self.producer.disturbances()
    }

    fn uncertain(&self, error: &KafkaError) -> SinkError {
        match self.broken(error) {
            SinkError::Fatal(reason) => SinkError::Ambiguous(reason),
            error => error,
        }
    }

    fn broken(&self, error: &KafkaError) -> SinkError {
        match code(error) {
            Some(code) if is_fencing(code) => SinkError::Fenced(error.to_string()),
            _ => self.fenced().unwrap_or_else(|| SinkError::Fatal(error.to_string())),
        }
    }

    fn fenced(&self) -> Option<SinkError> {
        let (code, reason) = self.producer.client().client().fatal_error()?;
        is_fencing(code).then_some(SinkError::Fenced(reason))
    }

    /// Whether progress should be written though no record waits for it.
    fn wants_progress(&self, reached: Reached) -> bool {
        let rested = self.kept_at.is_none_or(|at| at.elapsed() >= IDLE_PROGRESS);
        reached.mark > self.kept && (rested || reached.ending)
    }
}

impl Sink for Transactional {
    fn reading(&mut self, row: u64, received: u64) {
        self.producer.reading(row, received);
    }

    fn send(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), SendError> {
        if self.limits.is_alone() {
            return self.send_alone(record, ticket);
        }
        match self.state {
            State::Idle => {
                // No transaction stays open for a topic that is waited for.
                self.producer.admits(record)?;
                self.begin()?;
            }
            State::Open { .. } if !self.alone && !self.heap.is_huge(self.limits) => {}
            _ => return Err(SendError::Full),
        }
        self.producer.send(record, ticket)?;
        self.took(ticket);
        Ok(())
    }

    fn send_alone(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), SendError> {
        match self.state {
            State::Idle => {
                self.producer.admits(record)?;
                self.alone = true;
                self.begin()?;
            }
            State::Open { .. } if self.heap.records == 0 => {}
            State::Open { .. } => {
                // It ends at the next place that is reached.
                self.alone = true;
                return Err(SendError::Full);
            }
            _ => return Err(SendError::Full),
        }
        self.alone = true;
        let sent = self.producer.send_alone(record, ticket);
        if let Err(SendError::Refused(_)) = &sent {
            // What goes in its place need not be alone.
            self.alone = false;
        }
        sent?;
        self.took(ticket);
        Ok(())
    }

    fn poll(&mut self, confirmations: &mut Vec<Confirmation>) -> Result<(), SinkError> {
        let polled = self.producer.poll(&mut self.reports);
        polled.map_err(|error| self.fenced().unwrap_or(error))?;
        self.book();
        self.advance(confirmations)
    }

    fn is_connected(&self) -> bool {
        self.producer.is_connected()
    }

    fn found(&self) -> Option<&Progress> {
        self.found.as_ref()
    }

    fn begin_at(&mut self, mark: Mark) {
        self.kept = mark;
    }

    fn reached(&mut self, reached: Reached) -> Result<(), SinkError> {
        match self.state {
            // One that may be refused is waited for: what else is in its transaction would be lost.
            State::Open { .. } if self.alone && self.stored < self.sent => Ok(()),
            // Its only row was passed over: it ends for the sake of progress, as if none were open.
            State::Open { .. } if self.heap.records == 0 => {
                if self.wants_progress(reached) {
                    self.close(reached.mark)?;
                }
                Ok(())
            }
            State::Open { since }
                if self.alone
                    || self.heap.ends(self.limits, since.elapsed(), self.last_end, reached) =>
            {
                self.close(reached.mark)
            }
            State::Idle if self.wants_progress(reached) => {
                self.begin()?;
                self.close(reached.mark)
            }
            _ => Ok(()),
        }
    }

    fn takes_records(&self) -> bool {
        matches!(self.state, State::Idle | State::Open { .. })
    }

    fn has_enough(&self) -> bool {
        self.heap.is_large(self.limits) && matches!(self.state, State::Open { .. })
    }

    fn may_end_within(&self) -> bool {
        self.kept.part.is_some()
    }

    fn kept(&self) -> Option<Lsn> {
        Some(self.kept.end)
    }
}

pub(super) fn code(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::Transaction(error) => Some(error.code()),
        other => other.rdkafka_error_code(),
    }
}
