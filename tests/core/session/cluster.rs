//! A model of Kafka's transactions, and of the producer that uses them, for delivery exactly once.
//!
//! Modelled: epochs and fencing; a commit is decided when EndTxn is handled, and its markers are written
//! some time later, until which nothing of the next transaction is appended; EndTxn that is delayed, or sent
//! again by the library behind the caller's back, also beyond the end of the session, and that is then taken
//! for the end of another transaction of the same epoch; the coordinator that gives up a transaction; a
//! record that the brokers refuse, which ends the producer. `tests/core/exactly_once` explores the same protocol to its
//! last state, in a smaller world.

use std::collections::VecDeque;

use postrider::ledger::Ticket;
use postrider::pipeline::{Blame, Confirmation, Mark, Outcome, Outgoing, RefusalCause};
use postrider::route::{OwnedRecord, Record, Rejection, content_of};
use postrider::sink::SendError;
use postrider::transaction::{PROGRESS_TICKET, TransactionApi};

use crate::session::broker::{
    self, Died, PARTITIONS, is_refused_by_broker, refuse_at_send, rejection,
};
use crate::session::judge::Judge;

/// The partition of progress lies behind those of the rows.
const PROGRESS: usize = PARTITIONS;
/// All of them.
pub(crate) const ALL: usize = PARTITIONS + 1;

/// Where the coordinator stands with the one transactional id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Empty,
    Ongoing,
    /// Decided; markers are still to be written.
    Prepared,
    Complete,
}

/// The brokers.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    epoch: u64,
    phase: Phase,
    /// Appended in the ongoing transaction, by partition.
    pending: [Vec<OwnedRecord>; PARTITIONS],
    pending_progress: Option<Mark>,
    /// What a reader of committed records finds.
    progress: Option<Mark>,
    /// Requests to end a transaction that are under way, by the epoch of their sender.
    end_txns: Vec<u64>,
    /// Those that were sent again behind the sender's back, and may come at any time.
    late: Vec<u64>,
}

impl Cluster {
    /// InitProducerId, waited for until the last transaction has ended. Returns the new epoch, and the
    /// progress that is read behind it.
    pub(crate) fn fence(&mut self) -> (u64, Option<Mark>) {
        if self.phase == Phase::Ongoing {
            self.abort();
        }
        (self.epoch, self.phase) = (self.epoch + 1, Phase::Empty);
        (self.epoch, self.progress)
    }

    /// The coordinator gives up the ongoing transaction.
    pub(crate) fn expire(&mut self) {
        if self.phase == Phase::Ongoing {
            self.epoch += 1;
            self.abort();
        }
    }

    fn abort(&mut self) {
        self.pending.iter_mut().for_each(Vec::clear);
        self.pending_progress = None;
        self.phase = Phase::Complete;
    }

    /// The markers are written.
    pub(crate) fn mark(&mut self) {
        if self.phase == Phase::Prepared {
            self.phase = Phase::Complete;
        }
    }

    /// A late request catches up with the others.
    pub(crate) fn catch_up(&mut self) {
        self.end_txns.extend(self.late.pop());
    }

    /// One of the requests to end a transaction is handled.
    pub(crate) fn handle_end(
        &mut self,
        index: usize,
        producer: Option<&mut TransactionalProducer>,
        judge: &mut Judge,
    ) {
        if index >= self.end_txns.len() || self.phase == Phase::Prepared {
            return;
        }
        let epoch = self.end_txns.remove(index);
        let is_done = epoch == self.epoch && self.phase != Phase::Empty;
        if is_done && self.phase == Phase::Ongoing {
            for partition in &mut self.pending {
                partition.drain(..).for_each(|record| judge.appended(&record));
            }
            self.progress = self.pending_progress.take().or(self.progress);
            self.phase = Phase::Prepared;
        }
        if let Some(producer) = producer.filter(|producer| producer.epoch == epoch) {
            producer.answer(is_done);
        }
    }

    /// How many requests to end a transaction are under way.
    pub(crate) fn end_txns(&self) -> usize {
        self.end_txns.len()
    }
}

/// What is sent.
#[derive(Debug)]
enum Sent {
    Record(OwnedRecord),
    Progress(Mark),
}

/// A transactional producer.
#[derive(Debug, Default)]
pub(crate) struct TransactionalProducer {
    epoch: u64,
    queues: [VecDeque<(Sent, Ticket, bool)>; ALL],
    reports: [VecDeque<Ticket>; ALL],
    arrived: Vec<Ticket>,
    pub(crate) capacity: usize,
    pub(crate) held: [bool; PARTITIONS],
    pub(crate) died: Option<Died>,
    round_robin: usize,
    /// Requests to end the transaction that the network has not taken yet; of these, sent again.
    end_txns: usize,
    again: usize,
    commits: bool,
    outcome: Option<bool>,
    disturbances: u64,
}

impl TransactionalProducer {
    pub(crate) fn new(epoch: u64, capacity: usize) -> Self {
        Self { epoch, capacity, ..Self::default() }
    }

    /// What it has to say to the coordinator goes out.
    pub(crate) fn flush(&mut self, cluster: &mut Cluster) {
        let epoch = self.epoch;
        cluster.end_txns.extend(std::iter::repeat_n(epoch, std::mem::take(&mut self.end_txns)));
        cluster.late.extend(std::iter::repeat_n(epoch, std::mem::take(&mut self.again)));
    }

    /// The next record of a partition reaches its leader.
    pub(crate) fn append(&mut self, partition: usize, cluster: &mut Cluster) {
        let is_held = self.held.get(partition).is_some_and(|held| *held);
        if is_held || cluster.phase == Phase::Prepared || self.queues[partition].is_empty() {
            return;
        }
        if self.epoch != cluster.epoch {
            self.died = Some(Died::Fatally);
            return;
        }
        let Some((sent, ticket, alone)) = self.queues[partition].pop_front() else { return };
        match sent {
            Sent::Record(record) if is_refused_by_broker(&record.as_record()) => {
                self.died = Some(Died::Refused(Box::new(blame(&record, ticket, alone))));
                return;
            }
            Sent::Record(record) => cluster.pending[partition].push(record),
            Sent::Progress(mark) => cluster.pending_progress = Some(mark),
        }
        cluster.phase = Phase::Ongoing;
        self.reports[partition].push_back(ticket);
    }

    /// A report comes back.
    pub(crate) fn report(&mut self, partition: usize) {
        self.arrived.extend(self.reports[partition].pop_front());
    }

    /// A connection breaks, or an answer is late: the library sends EndTxn again by itself. It says so
    /// first.
    pub(crate) fn disturb(&mut self) {
        if self.commits && self.outcome.is_none() {
            self.disturbances += 1;
            self.again += 1;
        }
    }

    fn answer(&mut self, is_done: bool) {
        if self.commits {
            self.outcome.get_or_insert(is_done);
        }
    }

    fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    fn check(&mut self) -> Result<(), Died> {
        match self.died.take() {
            None => Ok(()),
            Some(died) => {
                self.died = Some(Died::Fatally);
                Err(died)
            }
        }
    }

    fn room(&mut self) -> Result<(), SendError<Died>> {
        self.check()?;
        if self.queued() >= self.capacity { Err(SendError::Full) } else { Ok(()) }
    }
}

impl TransactionApi for TransactionalProducer {
    type Error = Died;

    fn begin(&mut self) -> Result<(), Died> {
        self.check()
    }

    fn admits(&mut self, _record: &Record<'_>) -> Result<(), SendError<Died>> {
        Ok(())
    }

    fn send(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError<Died>> {
        self.check()?;
        refuse_at_send(&outgoing.record)?;
        self.room()?;
        let partition = broker::partition(&outgoing.record, &mut self.round_robin);
        let sent = Sent::Record(outgoing.record.to_owned());
        self.queues[partition].push_back((sent, outgoing.ticket, outgoing.alone));
        Ok(())
    }

    fn send_progress(&mut self, mark: Mark) -> Result<(), SendError<Died>> {
        self.room()?;
        self.queues[PROGRESS].push_back((Sent::Progress(mark), PROGRESS_TICKET, false));
        Ok(())
    }

    fn poll(&mut self, reports: &mut Vec<Confirmation>) -> Result<(), Died> {
        self.check()?;
        let stored = |ticket| Confirmation { ticket, outcome: Outcome::Stored };
        reports.extend(self.arrived.drain(..).map(stored));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Died> {
        self.check()?;
        self.end_txns += 1;
        (self.commits, self.outcome) = (true, None);
        Ok(())
    }

    fn outcome(&mut self) -> Option<Result<(), Died>> {
        let is_done = self.outcome.take()?;
        self.commits = false;
        Some(if is_done { Ok(()) } else { Err(Died::Fatally) })
    }

    fn disturbances(&self) -> u64 {
        self.disturbances
    }

    fn progress_refused(&self, _rejection: Rejection) -> Died {
        unreachable!("the model takes all progress")
    }

    fn ambiguous(&self) -> Died {
        Died::Fatally
    }
}

fn blame(record: &OwnedRecord, ticket: Ticket, alone: bool) -> Blame {
    let rejection = rejection("the model broker refuses it");
    Blame {
        ticket,
        topic: record.topic.clone(),
        content: content_of(&record.topic, record.key.as_deref(), record.value.as_deref()),
        alone,
        cause: RefusalCause::Unknown,
        at_ms: 0,
        reason: rejection.reason.clone(),
        rejection: Some(rejection),
    }
}
