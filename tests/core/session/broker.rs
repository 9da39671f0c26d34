//! A model of Kafka's idempotent producer, for delivery at least once.
//!
//! Modelled: records of a partition are appended in the order they were sent; partitions proceed
//! independently; a report comes back some time after the append, in order per partition only; the
//! queue fills up; a record can be refused at once or by the broker; the producer can die with
//! records appended and not reported; a dead session's records may still be appended later.

use std::collections::VecDeque;

use postrider::ledger::Ticket;
use postrider::pipeline::{Confirmation, Outcome, Outgoing, Refused};
use postrider::route::{OwnedRecord, Record, Rejection, RejectionCode};
use postrider::sink::{SendError, Sink};
use postrider::time::Instant;

use crate::session::judge::Judge;
use support::chance::Chance;

/// Keys spread over this many partitions, whatever their topic: partitions of different topics
/// are independent anyway, so sharing them only makes the model stricter about nothing.
pub(crate) const PARTITIONS: usize = 3;

pub(crate) const DEAD_LETTERS: &str = "dead";

/// Payloads that begin so are refused by the producer, or by the broker.
const REFUSED_AT_SEND: &[u8] = b"RefusedAtSend";
const REFUSED_BY_BROKER: &[u8] = b"RefusedByBroker";

/// Why a model sink is no longer usable.
#[derive(Debug)]
pub(crate) enum Died {
    /// For no record's sake.
    Fatally,
    /// The brokers refused this record, and with it the Kafka transaction that it was in.
    Refused(Box<postrider::pipeline::Blame>),
}

/// One producer: what it took, by partition, and what it has not yet reported.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    queues: [VecDeque<(OwnedRecord, Ticket)>; PARTITIONS],
    reports: [VecDeque<Confirmation>; PARTITIONS],
    /// Reports that have come back and wait for `poll`.
    arrived: Vec<Confirmation>,
    /// How many records the queue may hold now.
    pub(crate) capacity: usize,
    /// Partitions that make no progress now.
    pub(crate) held: [bool; PARTITIONS],
    pub(crate) is_dead: bool,
    round_robin: usize,
    /// Records and bytes taken and not handed back by `poll`.
    pub(crate) in_flight: (u64, u64),
}

impl Producer {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// The broker appends the next record of a partition, and the report sets out.
    pub(crate) fn append(&mut self, partition: usize, judge: &mut Judge) {
        if self.held[partition] {
            return;
        }
        let Some((record, ticket)) = self.queues[partition].pop_front() else { return };
        let outcome = if is_refused_by_broker(&record.as_record()) {
            let rejection = rejection("the model broker refuses it");
            Outcome::Refused(Box::new(Refused { record, rejection }))
        } else {
            judge.appended(&record);
            Outcome::Stored
        };
        self.reports[partition].push_back(Confirmation { ticket, outcome });
    }

    /// A report comes back.
    pub(crate) fn report(&mut self, partition: usize) {
        self.arrived.extend(self.reports[partition].pop_front());
    }

    /// A dead session's producer: keeps appending, reports to nobody.
    pub(crate) fn haunt(&mut self, chance: &mut Chance, judge: &mut Judge) {
        self.append(chance.below(PARTITIONS), judge);
    }

    fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}

impl Sink for Producer {
    type Error = Died;

    fn send(&mut self, _now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError<Died>> {
        if self.is_dead {
            return Err(Died::Fatally.into());
        }
        refuse_at_send(&outgoing.record)?;
        if self.queued() >= self.capacity {
            return Err(SendError::Full);
        }
        let partition = partition(&outgoing.record, &mut self.round_robin);
        self.queues[partition].push_back((outgoing.record.to_owned(), outgoing.ticket));
        self.in_flight.0 += 1;
        self.in_flight.1 += outgoing.ticket.weight();
        Ok(())
    }

    fn poll(&mut self, _now: Instant, confirmations: &mut Vec<Confirmation>) -> Result<(), Died> {
        if self.is_dead {
            return Err(Died::Fatally);
        }
        for confirmation in self.arrived.drain(..) {
            self.in_flight.0 -= 1;
            self.in_flight.1 -= confirmation.ticket.weight();
            confirmations.push(confirmation);
        }
        Ok(())
    }
}

/// Where a record goes.
pub(crate) fn partition(record: &Record<'_>, round_robin: &mut usize) -> usize {
    let sum = |key: &[u8]| key.iter().map(|byte| usize::from(*byte)).sum();
    let partition: usize = record.key.map_or(*round_robin, sum);
    *round_robin += 1;
    partition % PARTITIONS
}

/// Refuses what is marked for it.
pub(crate) fn refuse_at_send(record: &Record<'_>) -> Result<(), SendError<Died>> {
    if is_marked(record, REFUSED_AT_SEND) {
        return Err(SendError::Refused(rejection("the model producer refuses it")));
    }
    Ok(())
}

/// Whether the brokers refuse it.
pub(crate) fn is_refused_by_broker(record: &Record<'_>) -> bool {
    is_marked(record, REFUSED_BY_BROKER)
}

/// Dead letters carry the payload too, and are taken.
fn is_marked(record: &Record<'_>, mark: &[u8]) -> bool {
    record.topic != DEAD_LETTERS && record.value.is_some_and(|value| value.starts_with(mark))
}

pub(crate) fn rejection(reason: &str) -> Rejection {
    Rejection { code: RejectionCode::Refused, reason: reason.to_owned() }
}
