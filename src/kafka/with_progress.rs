//! At-least-once delivery that also stores progress in Kafka. A server that returns from a crash
//! with an older position then causes no repeats of rows that progress covers.
//!
//! Invariant: progress names only confirmed positions, and only positions in progress are
//! acknowledged to Postgres. Records confirmed after the last progress are repeated after a crash.

use std::time::Duration;

use super::{
    Confirmation, KafkaSink, KafkaSpec, Outcome, Producer, SendError, Sink, SinkError,
    progress_topic,
};
use postrider_core::ledger::Ticket;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::{Mark, Outgoing};
use postrider_core::progress::{BackfillProgress, Lineage, Progress, RowCursor, Since};
use postrider_core::sink::{CommitPlace, Reached};
use postrider_core::time::Instant;
use postrider_core::transaction::PROGRESS_TICKET;

pub struct AtLeastOnceWithProgress {
    producer: Producer,
    lineage: Lineage,
    topic: String,
    every: Duration,
    found: Option<Progress>,
    kept: Lsn,
    /// Sent mark, written once it is settled.
    next: Option<(Mark, Option<BackfillProgress>)>,
    backfill: Option<BackfillProgress>,
    under_way: Option<Lsn>,
    sent_at: Option<Instant>,
}

impl AtLeastOnceWithProgress {
    /// May block for seconds. `every`: minimum interval of progress while rows flow.
    pub fn open(spec: &KafkaSpec, lineage: &Lineage, every: Duration) -> Result<Self, SinkError> {
        let producer = Producer::open(spec)?;
        let topic = spec.progress_topic.clone();
        let found = progress_topic::newest_progress(spec, &lineage.key())?;
        let kept = found.as_ref().map_or(Lsn::ZERO, |progress| progress.mark.end);
        let lineage = lineage.clone();
        let (next, backfill, under_way, sent_at) = (None, None, None, None);
        Ok(Self {
            producer,
            lineage,
            topic,
            every,
            found,
            kept,
            next,
            backfill,
            under_way,
            sent_at,
        })
    }
}

impl Sink for AtLeastOnceWithProgress {
    type Error = SinkError;

    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        Sink::send(&mut self.producer, now, outgoing)
    }

    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), SinkError> {
        let before = confirmations.len();
        Sink::poll(&mut self.producer, now, confirmations)?;
        let Some(end) = self.under_way else { return Ok(()) };
        let (_, fresh) = confirmations.split_at(before);
        let Some(at) = fresh.iter().position(|one| one.ticket == PROGRESS_TICKET) else {
            return Ok(());
        };
        self.under_way = None;
        match confirmations.remove(before + at).outcome {
            Outcome::Stored => self.kept = end,
            Outcome::Refused(refused) => {
                let reason = refused.rejection.reason;
                return Err(SinkError::Delivery { topic: self.topic.clone(), reason });
            }
        }
        Ok(())
    }

    fn begin_at(&mut self, mark: Mark) {
        self.kept = mark.end;
    }

    fn whole_since(&mut self, since: Since) {
        self.lineage.since = Some(since);
    }

    fn reached(&mut self, now: Instant, reached: Reached) -> Result<(), SinkError> {
        // Unlike a settled position, a mark names the last commit before it, without an open
        // transaction's rows. The mark is written once everything before it is settled.
        let next = || (Mark { part: None, ..reached.mark }, self.backfill.clone());
        let &mut (mark, ref backfill) = self.next.get_or_insert_with(next);
        let end = mark.end;
        if end <= self.kept {
            self.next = None;
            return Ok(());
        }
        let rested = self.sent_at.is_none_or(|at| now - at >= self.every);
        if reached.settled < end || self.under_way.is_some() || !(rested || reached.ending) {
            return Ok(());
        }
        let (lineage, backfill) = (self.lineage.clone(), backfill.clone());
        let progress = Progress { lineage, mark, backfill };
        let record = progress.record(&self.topic);
        let outgoing = Outgoing::new(record.as_record(), PROGRESS_TICKET);
        match Sink::send(&mut self.producer, now, &outgoing) {
            Ok(()) => {
                (self.under_way, self.sent_at) = (Some(end), Some(now));
                self.next = None;
                Ok(())
            }
            Err(SendError::Full) => Ok(()),
            Err(SendError::Refused(rejection)) => {
                Err(SinkError::of_progress(&self.topic, rejection))
            }
            Err(SendError::Broken(error)) => Err(error),
        }
    }

    fn kept(&self) -> Option<Lsn> {
        Some(self.kept)
    }

    fn is_observed(&self) -> bool {
        self.producer.is_observed()
    }

    fn confirmed(&mut self, ticket: Ticket, commit: CommitPlace) {
        self.producer.confirmed(ticket, commit);
    }
}

impl KafkaSink for AtLeastOnceWithProgress {
    fn reading(&mut self, row: u64, received: u64) {
        self.producer.reading(row, received);
    }

    fn is_connected(&self) -> bool {
        self.producer.is_connected()
    }

    fn outage_reason(&self) -> Option<String> {
        self.producer.outage_reason()
    }

    fn found(&self) -> Option<&Progress> {
        self.found.as_ref()
    }

    fn begin_backfill(&mut self, backfill: BackfillProgress) {
        self.backfill = Some(backfill);
    }

    fn reaches(&mut self, reached: Mark, cursor: &dyn Fn(Mark) -> Option<RowCursor>) {
        let reached = Mark { part: None, ..reached };
        let Some(before) = self.backfill.take() else { return };
        let since = before.since();
        self.backfill = before.at(reached, cursor(reached));
        if self.backfill.is_none() {
            self.lineage.since = since;
        }
    }
}
