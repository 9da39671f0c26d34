//! The transactional producer: exactly-once delivery. Connects [`postrider_core::transaction`] to
//! librdkafka.
//!
//! Invariant: earlier producers of the stream are fenced before the progress is read; only
//! [`ExactlyOnce::open`] waits for the brokers.

use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::committer::Committer;
use super::delivery_failure::is_fencing;
use super::fence::fence;
use super::settings::KafkaSpec;
use super::{Confirmation, KafkaSink, Producer, SendError, Sink, SinkError, progress_topic};
use crate::failpoint;
use postrider_core::ledger::Ticket;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::{Mark, Outgoing};
use postrider_core::progress::{BackfillProgress, Lineage, Progress, RowCursor, Since};
use postrider_core::route::{Record, Rejection};
use postrider_core::sink::{CommitPlace, Reached};
use postrider_core::time::Instant;
use postrider_core::transaction::{
    Activity, BatchLimits, PROGRESS_TICKET, TransactionApi, TransactionState, Transactional,
};

pub struct ExactlyOnce {
    machine: Transactional<TransactionClient>,
    found: Option<Progress>,
}

struct TransactionClient {
    producer: Producer,
    committer: Committer,
    lineage: Lineage,
    topic: String,
    backfill: Option<BackfillProgress>,
    lingers: bool,
    now: Instant,
}

impl ExactlyOnce {
    /// Fences earlier producers, waits for the end of their transactions, and reads progress. May
    /// block for seconds. `now`: the session's clock.
    pub fn open(spec: &KafkaSpec, lineage: &Lineage, now: Instant) -> Result<Self, SinkError> {
        let topic = spec.progress_topic.clone();
        let mut reader = progress_topic::ProgressReader::open(spec, &topic)?;
        // Refusals end the session, whatever they name.
        let producer = fence(&KafkaSpec { cautious: false, ..spec.clone() }, lineage)?;
        producer.await_commits();
        let found = reader.newest(&lineage.key())?;
        let linger = Duration::from_millis(spec.linger_ms.into());
        let committer = Committer::start(producer.client(), linger)
            .map_err(|error| SinkError::NotReady(error.to_string()))?;
        let kept = found.as_ref().map_or_else(Mark::default, |progress| progress.mark);
        let (lineage, backfill) = (lineage.clone(), None);
        let lingers = !linger.is_zero();
        let client =
            TransactionClient { producer, committer, lineage, topic, backfill, lingers, now };
        let limits = BatchLimits::new(spec.transaction_age, spec.cautious);
        let machine = Transactional::new(client, limits, linger, kept, now);
        Ok(Self { machine, found })
    }

    /// A completed transaction, with its progress record, does not linger.
    fn flush_if_closed(&mut self, before: TransactionState) -> Result<(), SinkError> {
        let is_closed = |state| matches!(state, TransactionState::Settling { .. });
        if !is_closed(self.machine.state()) || is_closed(before) {
            return Ok(());
        }
        failpoint::pass("progress_sent");
        let client = self.machine.client_mut();
        if !client.lingers {
            return Ok(());
        }
        client.producer.flushed();
        client.committer.flush().map_err(|error| client.broken(&error))
    }
}

impl Sink for ExactlyOnce {
    type Error = SinkError;

    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        self.machine.client_mut().now = now;
        self.machine.send(now, outgoing)
    }

    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), SinkError> {
        self.machine.client_mut().now = now;
        let before = self.machine.state();
        self.machine.poll(now, confirmations)?;
        self.flush_if_closed(before)
    }

    fn begin_at(&mut self, mark: Mark) {
        self.machine.begin_at(mark);
    }

    fn whole_since(&mut self, since: Since) {
        self.machine.client_mut().lineage.since = Some(since);
    }

    fn reached(&mut self, now: Instant, reached: Reached) -> Result<(), SinkError> {
        let before = self.machine.state();
        self.machine.reached(now, reached)?;
        self.flush_if_closed(before)
    }

    fn takes_records(&self) -> bool {
        self.machine.takes_records()
    }

    fn has_enough(&self) -> bool {
        self.machine.has_enough()
    }

    fn may_end_within(&self) -> bool {
        self.machine.may_end_within()
    }

    fn kept(&self) -> Option<Lsn> {
        self.machine.kept()
    }

    fn is_observed(&self) -> bool {
        self.machine.client().producer.is_observed()
    }

    fn confirmed(&mut self, ticket: Ticket, commit: CommitPlace) {
        self.machine.client_mut().producer.confirmed(ticket, commit);
    }
}

impl KafkaSink for ExactlyOnce {
    fn reading(&mut self, row: u64, received: u64) {
        self.machine.client_mut().producer.reading(row, received);
    }

    fn is_connected(&self) -> bool {
        self.machine.client().producer.is_connected()
    }

    fn outage_reason(&self) -> Option<String> {
        self.machine.client().producer.outage_reason()
    }

    fn found(&self) -> Option<&Progress> {
        self.found.as_ref()
    }

    fn begin_backfill(&mut self, backfill: BackfillProgress) {
        self.machine.client_mut().backfill = Some(backfill);
    }

    fn reaches(&mut self, reached: Mark, cursor: &dyn Fn(Mark) -> Option<RowCursor>) {
        use TransactionState::{Idle, Open, Pausing};
        // The content of an ending transaction is fixed.
        if !matches!(self.machine.state(), Idle | Open { .. } | Pausing { .. }) {
            return;
        }
        let client = self.machine.client_mut();
        let Some(before) = client.backfill.take() else { return };
        let since = before.since();
        client.backfill = before.at(reached, cursor(reached));
        if client.backfill.is_none() {
            client.lineage.since = since;
        }
    }
}

impl Drop for ExactlyOnce {
    fn drop(&mut self) {
        let timings = self.machine.timings(self.machine.client().now);
        let ms = |activity| timings.spent(activity).as_millis();
        tracing::debug!(
            transactions = timings.transactions,
            records = timings.records,
            idle_ms = ms(Activity::Idle),
            taking_ms = ms(Activity::Taking),
            settling_ms = ms(Activity::Settling),
            ending_ms = ms(Activity::Ending),
            "transactions of this session"
        );
    }
}

impl TransactionClient {
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
}

impl TransactionApi for TransactionClient {
    type Error = SinkError;

    fn begin(&mut self) -> Result<(), SinkError> {
        let begun = self.producer.client().begin_transaction();
        begun.map_err(|error| self.broken(&error))?;
        failpoint::pass("transaction_begun");
        Ok(())
    }

    fn admits(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        self.producer.admits(record)
    }

    fn send(&mut self, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        Sink::send(&mut self.producer, self.now, outgoing)?;
        failpoint::pass("record_sent");
        Ok(())
    }

    fn send_progress(&mut self, mark: Mark) -> Result<(), SendError> {
        let (lineage, backfill) = (self.lineage.clone(), self.backfill.clone());
        let progress = Progress { lineage, mark, backfill };
        let record = progress.record(&self.topic);
        Sink::send(
            &mut self.producer,
            self.now,
            &Outgoing::new(record.as_record(), PROGRESS_TICKET),
        )
    }

    fn poll(&mut self, reports: &mut Vec<Confirmation>) -> Result<(), SinkError> {
        Sink::poll(&mut self.producer, self.now, reports)
            .map_err(|error| self.fenced().unwrap_or(error))
    }

    fn commit(&mut self) -> Result<(), SinkError> {
        failpoint::pass("commit_due");
        self.committer.commit().map_err(|error| self.broken(&error))?;
        failpoint::pass("commit_asked");
        Ok(())
    }

    fn outcome(&mut self) -> Option<Result<(), SinkError>> {
        let outcome = self.committer.outcome()?;
        // Serves lines logged before the call returned.
        self.producer.serve();
        let outcome = outcome.map_err(|error| self.uncertain(&error));
        if outcome.is_ok() {
            self.producer.committed();
            failpoint::pass("committed");
        }
        Some(outcome)
    }

    fn disturbances(&self) -> u64 {
        self.producer.disturbances()
    }

    fn progress_refused(&self, rejection: Rejection) -> SinkError {
        SinkError::of_progress(&self.topic, rejection)
    }

    fn ambiguous(&self) -> SinkError {
        SinkError::Ambiguous("a connection to the brokers broke in the meantime".to_owned())
    }
}

pub(super) fn code(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::Transaction(error) => Some(error.code()),
        other => other.rdkafka_error_code(),
    }
}
