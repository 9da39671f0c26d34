//! The idempotent producer: at-least-once delivery, and the sending part of the transactional
//! producer.
//!
//! Input: records with tickets. Output: a confirmation per ticket, or a [`SinkError`] that ends the
//! session.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::admissions::Admissions;
use super::bootstrap_servers::BootstrapServers;
use super::deliveries::{Alone, Deliveries, key_id, weight_of};
use super::delivery_failure::{DeliveryFailure, FailedRecord, judge, words};
use super::first_write_gate::{Admission, FirstWrite};
use super::queue_limit::QueueLimit;
use super::settings::{KafkaSpec, SettingsError};
use super::token_login::log_in;
use super::{Confirmation, KafkaSink, SendError, Sink, SinkError};
use postrider_core::ledger::Ticket;
use postrider_core::pipeline::Outgoing;
use postrider_core::route::{NO_TIMESTAMP, Record, Rejection, RejectionCode, content_of};
use postrider_core::sink::CommitPlace;
use postrider_core::time::Instant;

/// An event is the reports of one batch, so a call takes a few milliseconds.
const EVENTS_PER_POLL: u32 = 1_000;

/// `org.apache.kafka.common.internals.Topic`.
const TOPIC_NAME_BYTES_MAX: usize = 249;

/// The producer of one session. Dropping it forgets records that are not stored yet.
///
/// Invariant:
/// * `Stored` comes from a delivery report under `acks=all` (G1);
/// * each producer appends to each partition a run of records without gaps, in the order of `send`,
///   after one first record (`first_write_gate`) (G2). First occurrences therefore stay in order,
///   even with repeats after a crash;
/// * the library's queue is bounded by records and by bytes; beyond that `send` returns `Full`
///   (G3);
/// * during an outage records wait without a limit (`message.timeout.ms=0`).
///
/// # Batches the broker refuses
///
/// A single oversized record fails its whole batch, and librdkafka would store the partition's next
/// batch. `enable.gapless.guarantee` stops the producer instead: `poll` returns
/// [`SinkError::BatchRefused`] with the batch's records. The next session sends the suspects alone
/// ([`Outgoing::alone`]). If a suspect was stored alone, the batch was too large: later sessions
/// halve the batches ([`KafkaSpec::batch_bytes`]).
///
/// If the record at fault is not known, or no session follows, [`KafkaSpec::cautious`] applies:
/// batches of one, and at most one record per key in flight. A refused record then returns as
/// [`Outcome::Refused`] with its bytes. Gaplessness is off, because a refused record leaves an
/// intended gap. This costs one round trip per record of a key, and a new epoch after each refusal.
///
/// Measured with Apache Kafka 4.1 and librdkafka 2.12.1: without gaplessness all 2,499 records
/// after a refused one were stored, with it none. The library reports `_GAPLESS_GUARANTEE` before
/// `MSG_SIZE_TOO_LARGE`.
///
/// [`Outcome::Refused`]: super::Outcome::Refused
pub struct Producer {
    inner: Arc<BaseProducer<Deliveries>>,
    spec: KafkaSpec,
    bootstrap: BootstrapServers,
    admissions: Admissions,
    sent: u64,
    sent_bytes: u64,
    /// Number of `sent` records that were answered at the last check.
    answered: u64,
    answered_bytes: u64,
    limit: QueueLimit,
    alone: bool,
    is_over: bool,
}

impl Producer {
    /// Starts the client, which connects in the background: an unreachable broker is not an error
    /// here.
    pub fn open(spec: &KafkaSpec) -> Result<Self, SinkError> {
        Self::with(&spec.producer_config()?, spec)
    }

    pub(super) fn with(config: &ClientConfig, spec: &KafkaSpec) -> Result<Self, SinkError> {
        let inner: BaseProducer<Deliveries> = config
            .create_with_context(Deliveries::new(spec))
            .map_err(|error| SinkError::Settings(refused_settings(&error)))?;
        log_in(inner.client(), spec.secrets.tokens.as_ref())?;
        let inner = Arc::new(inner);
        let _ = spec.topics.take_gone();
        if spec.secrets.can_change() {
            inner.client().context().events().secret_can_change();
        }
        if spec.has_certificate_files() {
            inner.client().context().events().certificate_can_change();
        }
        Ok(Self {
            inner,
            spec: spec.clone(),
            bootstrap: BootstrapServers::new(spec.brokers.join(",")),
            admissions: Admissions::default(),
            sent: 0,
            sent_bytes: 0,
            answered: 0,
            answered_bytes: 0,
            limit: QueueLimit::new(
                spec.budget.records.max(1),
                Duration::from_millis(spec.linger_ms.into()),
            ),
            alone: false,
            is_over: false,
        })
    }

    pub(super) fn client(&self) -> Arc<BaseProducer<Deliveries>> {
        Arc::clone(&self.inner)
    }

    /// Checks settings without a broker: the library reports inconsistent ones only at the start.
    pub fn rehearse(spec: &KafkaSpec) -> Result<(), SettingsError> {
        let mut config = spec.as_read().producer_config()?;
        config.remove("bootstrap.servers");
        let started: Result<BaseProducer<Deliveries>, _> =
            config.create_with_context(Deliveries::new(spec));
        started.map(drop).map_err(|error| refused_settings(&error))
    }

    pub fn outstanding(&self) -> usize {
        let count = self.inner.in_flight_count();
        match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => unreachable!("the library has {count} records under way"),
        }
    }

    /// Serves all events. rdkafka's `poll(0)` serves one event, so the number of callbacks reveals
    /// an empty queue.
    pub(super) fn serve(&self) {
        let context = self.inner.client().context();
        for _ in 0..EVENTS_PER_POLL {
            let before = context.served();
            context.next_event();
            self.inner.poll(Duration::ZERO);
            if context.served() == before {
                return;
            }
        }
    }

    pub(super) fn admits(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        match self.admissions.admit(&self.inner, &self.spec, record)? {
            Admission::Free | Admission::First(_) => Ok(()),
            Admission::Wait | Admission::Count => Err(SendError::Full),
        }
    }

    /// Sent records no longer linger.
    pub(super) fn flushed(&mut self) {
        self.limit.flushed();
    }

    pub(super) fn await_commits(&self) {
        self.inner.client().context().gathered().traced.await_commits();
    }

    pub(super) fn committed(&self) {
        if self.spec.traces.is_on() {
            self.inner.client().context().gathered().traced.committed();
        }
    }

    pub(super) fn disturbances(&self) -> u64 {
        self.inner.client().context().events().disturbances()
    }

    pub(super) fn check(&self) -> Result<(), SinkError> {
        if let Some(topic) = self.spec.topics.take_gone() {
            return Err(SinkError::UnknownTopic { topic });
        }
        self.inner.client().context().check(self.sent)
    }

    fn not_sent(&self, error: &KafkaError, record: &Record<'_>) -> SendError {
        let code = match error {
            KafkaError::MessageProduction(code) => *code,
            KafkaError::Nul(_) => return invalid_topic(),
            other => return SinkError::Fatal(other.to_string()).into(),
        };
        match code {
            Code::QueueFull => return SendError::Full,
            // Also returned if a transaction has already failed.
            Code::Fatal | Code::State => {
                self.serve();
                let context = self.inner.client().context();
                context.events().died(&words(code));
                // The caller polls, which returns the reason once it is known.
                return context
                    .check(self.sent)
                    .map_or_else(SendError::Broken, |()| SendError::Full);
            }
            _ => {}
        }
        let (partition, has_key) = (record.partition, record.key.is_some());
        let codec = self.inner.client().context().codec();
        let (topic, size) = (record.topic, record.weight());
        let case = FailedRecord { codec, topic, partition, size, has_key };
        match judge(code, case) {
            DeliveryFailure::Refuse(rejection) => SendError::Refused(rejection),
            DeliveryFailure::Break(error) => error.into(),
            DeliveryFailure::Consequence => SinkError::Fatal(words(code)).into(),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Records in flight are dropped; the next session sends them again.
        self.inner.client().context().events().close();
        self.inner.purge(PurgeConfig::default().queue().inflight());
    }
}

impl Producer {
    pub fn send(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), SendError> {
        Sink::send(self, Instant::START, &Outgoing::new(record.clone(), ticket))
    }

    pub fn poll(&mut self, confirmations: &mut Vec<Confirmation>) -> Result<(), SinkError> {
        Sink::poll(self, Instant::START, confirmations)
    }

    pub fn is_connected(&self) -> bool {
        self.inner.client().context().events().answering()
    }

    fn must_wait(&self, outgoing: &Outgoing<'_>) -> bool {
        let context = self.inner.client().context();
        // A later record would be stored before the refused ones (G2).
        self.is_over
            || self.sent - self.answered >= self.limit.records()
            // The library's queue counts only values.
            || self.sent_bytes - self.answered_bytes >= self.spec.budget.bytes
            || self.alone && context.gathered().alone.is_some()
            || outgoing.alone && context.gathered().answered < self.sent
    }

    fn taken(
        &mut self,
        outgoing: &Outgoing<'_>,
        key_id: Option<u64>,
        first_write: Option<FirstWrite>,
    ) {
        self.sent += 1;
        self.sent_bytes += weight_of(outgoing.ticket);
        self.alone = outgoing.alone;
        let (record, ticket) = (&outgoing.record, outgoing.ticket);
        let is_traced = self.spec.traces.is_on();
        if key_id.is_none() && first_write.is_none() && !outgoing.alone && !is_traced {
            return;
        }
        let mut gathered = self.inner.client().context().gathered();
        if is_traced {
            gathered.traced.sent(outgoing);
        }
        if let Some(id) = key_id {
            gathered.keys_under_way.insert(id, record.timestamp_ms);
        }
        if let Some(first_write) = first_write {
            gathered.first_writes.begun(ticket, first_write);
        }
        if outgoing.alone {
            let content = content_of(record.topic, record.key, record.value);
            gathered.alone = Some(Alone { ticket, topic: record.topic.to_owned(), content });
        }
    }
}

impl Sink for Producer {
    type Error = SinkError;

    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let record = &outgoing.record;
        // The library accepts an empty name and waits for its metadata forever.
        if record.topic.is_empty() || record.topic.len() > TOPIC_NAME_BYTES_MAX {
            return Err(invalid_topic());
        }
        if self.must_wait(outgoing) {
            return Err(SendError::Full);
        }
        let first_write = match self.admissions.admit(&self.inner, &self.spec, record)? {
            Admission::Free => None,
            Admission::First(first_write) => Some(first_write),
            Admission::Wait | Admission::Count => return Err(SendError::Full),
        };
        let key_id = self.spec.cautious.then(|| key_id(record.topic, record.key));
        if key_id.is_some_and(|id| {
            let under_way = &self.inner.client().context().gathered().keys_under_way;
            under_way.contains_key(&id)
        }) {
            return Err(SendError::Full);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "pointers have 64 bits: see deliveries"
        )]
        let opaque = outgoing.ticket.to_opaque() as usize;
        let message = BaseRecord {
            topic: record.topic,
            partition: record.partition,
            payload: record.value,
            key: record.key,
            // The library treats 0 as "now".
            timestamp: Some(match record.timestamp_ms {
                NO_TIMESTAMP => NO_TIMESTAMP,
                ms => ms.max(1),
            }),
            headers: headers(record),
            delivery_opaque: opaque,
        };
        match self.inner.send(message) {
            Ok(()) => {
                self.taken(outgoing, key_id, first_write);
                self.limit.sent(now, self.sent);
                Ok(())
            }
            Err((KafkaError::MessageProduction(Code::UnknownPartition), _))
                if record.partition.is_some_and(|chosen| chosen >= 0)
                    && self.admissions.lacks_partition(&self.inner, record.topic) =>
            {
                Err(SendError::Full)
            }
            Err((error, _)) => Err(self.not_sent(&error, record)),
        }
    }

    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), SinkError> {
        let context = self.inner.client().context();
        std::mem::swap(confirmations, &mut context.gathered().confirmations);
        self.serve();
        if context.is_over() {
            self.is_over = true;
            // Records in flight are still answered.
            self.inner.purge(PurgeConfig::default().queue());
            self.serve();
        }
        let mut gathered = context.gathered();
        std::mem::swap(confirmations, &mut gathered.confirmations);
        confirmations.append(&mut gathered.confirmations);
        (self.answered, self.answered_bytes) = (gathered.answered, gathered.answered_bytes);
        self.limit.answered(now, self.answered, || gathered.first_writes.partitions());
        drop(gathered);
        self.limit.disturbed(self.disturbances());
        let has_connection = context.events().has_connection();
        if self.bootstrap.restore(self.inner.client(), has_connection) {
            context.events().lost();
        }
        self.check()
    }

    fn is_observed(&self) -> bool {
        self.inner.client().context().is_observed()
    }

    fn confirmed(&mut self, ticket: Ticket, commit: CommitPlace) {
        self.inner.client().context().confirmed(ticket, commit);
    }
}

impl KafkaSink for Producer {
    fn reading(&mut self, row: u64, received: u64) {
        self.admissions.reading(row, received);
    }

    fn is_connected(&self) -> bool {
        Self::is_connected(self)
    }

    fn outage_reason(&self) -> Option<String> {
        self.inner.client().context().events().outage_reason().map(str::to_owned)
    }
}

fn headers(record: &Record<'_>) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let empty = OwnedHeaders::new_with_capacity(record.headers.len());
    let add = |all: OwnedHeaders, &(key, value): &(&str, Option<&[u8]>)| {
        all.insert(Header { key, value })
    };
    Some(record.headers.iter().fold(empty, add))
}

pub(super) fn invalid_topic() -> SendError {
    SendError::Refused(Rejection {
        code: RejectionCode::InvalidTopic,
        reason: "the topic name is empty, too long, or contains a zero byte".into(),
    })
}

fn refused_settings(error: &KafkaError) -> SettingsError {
    match error {
        KafkaError::ClientCreation(reason) => SettingsError::Client(reason.clone()),
        other => SettingsError::Client(other.to_string()),
    }
}
