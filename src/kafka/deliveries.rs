//! The rdkafka context of producers: turns delivery reports into confirmations, on the polling
//! thread.
//!
//! Invariant: only a delivery report with an offset confirms a record as stored (G1); no allocation
//! and no log line per stored record.

use std::collections::HashMap;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::Message;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::client_events::{AddPartitionError, ClientEvents};
use super::delivered_tap::{self, Waiting};
use super::delivery_failure::{
    DeliveryFailure, FailedRecord, is_a_rule, is_of_the_broker, judge, words,
};
use super::first_write_gate::{FirstWriteGate, Report};
use super::offered_requests::OfferedRequests;
use super::refused_batch::{self, BatchFault, Refusal};
use super::settings::KafkaSpec;
use super::token_login::{next_token, note_refusal};
use super::traces::TracedRows;
use super::{Confirmation, DeliveredTap, Outcome, Refused, SinkError, TopicBook};
use postrider_core::ledger::Ticket;
use postrider_core::pipeline::{Blame, RefusalCause};
use postrider_core::route::{OwnedRecord, Rejection, RejectionCode, content_of};
use postrider_core::sink::CommitPlace;
use postrider_core::transaction::PROGRESS_TICKET;
use postrider_credentials::TokenKeeper;

/// The library reports a producer's death first, and the reason shortly after.
const REASON_GRACE: Duration = Duration::from_secs(1);

/// Wait for records in flight after a refused batch: more known refusals mean fewer sessions.
const GATHER_LIMIT: Duration = Duration::from_secs(1);

/// A ticket travels in a pointer.
const _: () = assert!(usize::BITS == 64, "tickets need 64-bit pointers");

/// The locks are never contended: the library calls back only from `poll`.
pub(super) struct Deliveries {
    cautious: bool,
    topics: TopicBook,
    tap: DeliveredTap,
    tokens: Option<TokenKeeper>,
    codec: String,
    served: AtomicU64,
    /// Events taken from the library's queue; one per batch of reports.
    reports: AtomicU64,
    events: Mutex<ClientEvents>,
    gathered: Mutex<Gathered>,
}

#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Per partition in the order of sending.
    pub(super) confirmations: Vec<Confirmation>,
    /// Timestamps by key, in milliseconds since the Unix epoch: a failure report lacks them. Only
    /// in cautious mode.
    pub(super) keys_under_way: HashMap<u64, i64>,
    pub(super) first_writes: FirstWriteGate,
    pub(super) answered: u64,
    pub(super) answered_bytes: u64,
    pub(super) alone: Option<Alone>,
    pub(super) traced: TracedRows,
    tapped: Waiting,
    refusals: Vec<Refusal>,
    broken: Option<Broken>,
}

#[derive(Debug)]
struct Broken {
    error: SinkError,
    since: Instant,
}

enum Standing {
    Sound,
    /// Over, but records in flight may reveal more.
    Gathering,
    Over(SinkError),
}

#[derive(Debug, Clone)]
pub(super) struct Alone {
    pub(super) ticket: Ticket,
    pub(super) topic: String,
    pub(super) content: u64,
}

impl Gathered {
    fn standing(&self, sent: u64, topics: &TopicBook) -> Standing {
        let Some(Broken { error, since }) = &self.broken else { return Standing::Sound };
        let SinkError::BatchRefused { topic, reason, .. } = error else {
            return Standing::Over(error.clone());
        };
        if self.answered < sent && since.elapsed() < GATHER_LIMIT {
            return Standing::Gathering;
        }
        let demands_keys = |topic: &str| topics.demands_keys(topic);
        let about = (topic.clone(), reason.clone());
        Standing::Over(refused_batch::verdict(&self.refusals, about, demands_keys))
    }

    fn end(&mut self, error: SinkError) {
        self.broken.get_or_insert_with(|| Broken { error, since: Instant::now() });
    }
}

impl Deliveries {
    pub(super) fn new(spec: &KafkaSpec) -> Self {
        let first_writes = FirstWriteGate::new(spec.partitioner);
        let traced = TracedRows::new(spec.traces.clone());
        let mut events = ClientEvents::default();
        events.offered = OfferedRequests::of_codec(&spec.compression);
        Self {
            cautious: spec.cautious,
            topics: spec.topics.clone(),
            tap: spec.tap.clone(),
            tokens: spec.secrets.tokens.clone(),
            codec: spec.compression.clone(),
            served: AtomicU64::new(0),
            reports: AtomicU64::new(0),
            events: Mutex::new(events),
            gathered: Mutex::new(Gathered { first_writes, traced, ..Gathered::default() }),
        }
    }

    pub(super) fn codec(&self) -> &str {
        &self.codec
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    pub(super) fn gathered(&self) -> MutexGuard<'_, Gathered> {
        // After a panic in a callback the plain data is still usable.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn events(&self) -> MutexGuard<'_, ClientEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if someone watches, and waits for confirmations.
    pub(super) fn is_observed(&self) -> bool {
        !self.gathered().tapped.is_empty()
    }

    pub(super) fn confirmed(&self, ticket: Ticket, commit: CommitPlace) {
        self.tap.confirmed(&mut self.gathered().tapped, ticket, commit);
    }

    pub(super) fn next_event(&self) {
        self.reports.fetch_add(1, Ordering::Relaxed);
    }

    /// True once an event ended the session. After a refused batch [`Deliveries::check`] waits for
    /// records in flight.
    pub(super) fn is_over(&self) -> bool {
        self.gathered().broken.is_some()
    }

    pub(super) fn check(&self, sent: u64) -> Result<(), SinkError> {
        match self.gathered().standing(sent, &self.topics) {
            Standing::Sound => {}
            Standing::Gathering => return Ok(()),
            Standing::Over(error) => return Err(error),
        }
        let mut events = self.events();
        if events.ever_let_in() {
            self.topics.let_in();
        } else if let Some(error) = events.authentication_error() {
            return Err(error.clone());
        }
        if let Some(AddPartitionError { topic, reason, denied }) =
            events.add_partition_error().cloned()
        {
            drop(events);
            return Err(if denied { self.denied(topic) } else { self.cannot_add(topic, reason) });
        }
        events.tell_outage();
        match events.fatal() {
            Some(fatal) if fatal.since.elapsed() >= REASON_GRACE => {
                events.fatal_reason().map_or(Ok(()), Err)
            }
            _ => Ok(()),
        }
    }

    /// Counts a report. Returns true for a record sent alone.
    fn answered(&self, result: &DeliveryResult<'_>, ticket: Ticket) -> bool {
        let mut gathered = self.gathered();
        gathered.answered += 1;
        gathered.answered_bytes += weight_of(ticket);
        // Other reports at this time were answered before.
        let was_alone = gathered.alone.take_if(|alone| alone.ticket == ticket).is_some();
        let (Ok(message) | Err((_, message))) = result;
        gathered.traced.answered(ticket, message, result.is_ok() && message.offset() >= 0);
        if gathered.first_writes.are_settled() {
            return was_alone;
        }
        let report = Report {
            topic: message.topic(),
            key: message.key(),
            partition: message.partition(),
            // `delivery` handles reports without an offset.
            stored: result.is_ok() && message.offset() >= 0,
        };
        gathered.first_writes.reported(ticket, report);
        was_alone
    }

    fn denied(&self, topic: String) -> SinkError {
        self.topics.denied(&topic);
        SinkError::Unauthorised { topic }
    }

    /// A row may have chosen the topic, unless it is the relay's own.
    fn cannot_add(&self, topic: String, reason: String) -> SinkError {
        if self.topics.is_exempt(&topic) {
            return SinkError::Delivery { topic, reason };
        }
        let alone = self.gathered().alone.clone().filter(|alone| alone.topic == topic);
        let blame = |Alone { ticket, topic, content }| {
            let (alone, cause, rejection) = (true, RefusalCause::Unknown, None);
            let (at_ms, reason) = (now_ms(), reason.clone());
            Blame { ticket, topic, content, alone, cause, at_ms, reason, rejection }
        };
        let records = alone.into_iter().map(blame).collect();
        SinkError::BatchRefused { topic, reason, records, batch_bytes: None }
    }

    fn refused(
        &self,
        message: &BorrowedMessage<'_>,
        (ticket, alone): (Ticket, bool),
        (code, fault): (Code, BatchFault),
    ) {
        let topic = message.topic().to_owned();
        let refusal = Refusal {
            content: content_of(&topic, message.key(), message.payload()),
            topic,
            batch: self.reports.load(Ordering::Relaxed),
            ticket,
            bytes: ticket.weight(),
            has_key: message.key().is_some(),
            alone: alone || self.cautious,
            at_ms: now_ms(),
            reason: words(code),
            fault,
        };
        self.gathered().refusals.push(refusal);
    }

    /// `timestamp_ms` is known in cautious mode. `alone` marks a record sent alone in another mode.
    fn failed(
        &self,
        error: &KafkaError,
        message: &BorrowedMessage<'_>,
        ticket: Ticket,
        (timestamp_ms, alone): (Option<i64>, bool),
    ) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
        let case = FailedRecord {
            codec: &self.codec,
            topic: message.topic(),
            // A missing chosen partition is refused before sending. This one disappeared with its
            // topic.
            partition: None,
            // Includes headers; tickets outside of a ledger have no weight.
            size: usize::try_from(ticket.weight())
                .unwrap_or(usize::MAX)
                .max(message.key_len() + message.payload_len()),
            has_key: message.key().is_some(),
        };
        let broken = match (judge(code, case), timestamp_ms) {
            (DeliveryFailure::Refuse(rejection), _) if ticket == PROGRESS_TICKET => {
                let topic = message.topic().to_owned();
                SinkError::Delivery { topic, reason: rejection.reason }
            }
            (DeliveryFailure::Refuse(rejection), Some(timestamp_ms)) => {
                let outcome = refused(message, rejection, timestamp_ms);
                self.gathered().confirmations.push(Confirmation { ticket, outcome });
                return;
            }
            (DeliveryFailure::Refuse(rejection), None) => {
                self.refused(message, (ticket, alone), (code, fault(code, rejection)));
                batch_refused(message.topic().to_owned(), words(code))
            }
            (DeliveryFailure::Break(SinkError::Unauthorised { topic }), _) => self.denied(topic),
            // The gap causes refusals after a refused batch.
            (DeliveryFailure::Break(SinkError::Delivery { .. }), _)
                if self.has_refused_another() =>
            {
                return;
            }
            (DeliveryFailure::Break(SinkError::Delivery { topic, reason }), _)
                if is_of_the_broker(code) && !self.topics.is_exempt(&topic) =>
            {
                let fault = if is_a_rule(code) { BatchFault::Unclear } else { BatchFault::Theirs };
                self.refused(message, (ticket, alone), (code, fault));
                batch_refused(topic, reason)
            }
            // A dead-letter topic that refuses records needs a human.
            (DeliveryFailure::Break(SinkError::Delivery { topic, reason }), _)
                if is_a_rule(code) && ticket != PROGRESS_TICKET =>
            {
                let rejection = Rejection { code: RejectionCode::Refused, reason: reason.clone() };
                let fault = BatchFault::Content(rejection, RefusalCause::Unknown);
                self.refused(message, (ticket, alone), (code, fault));
                batch_refused(topic, reason)
            }
            (DeliveryFailure::Break(error), _) => error,
            (DeliveryFailure::Consequence, _) => return self.events().died(&code.to_string()),
        };
        self.gathered().end(broken);
    }

    fn has_refused_another(&self) -> bool {
        let event = self.reports.load(Ordering::Relaxed);
        self.gathered().refusals.first().is_some_and(|first| first.batch != event)
    }
}

pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn now_ms() -> i64 {
    now_us().div_euclid(1_000)
}

fn fault(code: Code, rejection: Rejection) -> BatchFault {
    match code {
        Code::InvalidDifferentRecord => BatchFault::Others,
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => BatchFault::Size(rejection),
        Code::InvalidTimestamp => BatchFault::Content(rejection, RefusalCause::Time),
        _ => BatchFault::Content(rejection, RefusalCause::Unknown),
    }
}

fn batch_refused(topic: String, reason: String) -> SinkError {
    SinkError::BatchRefused { topic, reason, records: Vec::new(), batch_bytes: None }
}

pub(super) fn weight_of(ticket: Ticket) -> u64 {
    if ticket == PROGRESS_TICKET { 0 } else { ticket.weight() }
}

/// Colliding keys only wait for each other.
pub(super) fn key_id(topic: &str, key: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (topic, key).hash(&mut hasher);
    hasher.finish()
}

fn refused(message: &BorrowedMessage<'_>, rejection: Rejection, timestamp_ms: i64) -> Outcome {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        let owned = |header: rdkafka::message::Header<'_, &[u8]>| {
            (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
        };
        headers.iter().map(owned).collect()
    });
    let record = OwnedRecord {
        topic: message.topic().to_owned(),
        // The record may not have chosen its partition.
        partition: None,
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        timestamp_ms,
    };
    Outcome::Refused(Box::new(Refused { record, rejection }))
}

impl ClientContext for Deliveries {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        next_token(self.tokens.as_ref())
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.served.fetch_add(1, Ordering::Relaxed);
        self.events().log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.served.fetch_add(1, Ordering::Relaxed);
        note_refusal(self.tokens.as_ref(), &error, reason);
        self.events().error(&error, reason);
    }

    fn stats(&self, _statistics: Statistics) {}
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        self.served.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket::from_opaque(opaque as u64);
        let timestamp_ms = self.cautious.then(|| {
            let (Ok(message) | Err((_, message))) = result;
            let id = key_id(message.topic(), message.key());
            self.gathered().keys_under_way.remove(&id)
        });
        let alone = self.answered(result, ticket);
        match result {
            // The library calls a record stored once a later batch is. A partition that does not
            // know this producer accepts a later batch first, and the record is lost, without an
            // offset.
            Ok(message) if message.offset() < 0 => {
                let topic = message.topic().to_owned();
                let reason = "it was reported stored without an offset".to_owned();
                self.gathered().end(SinkError::Delivery { topic, reason });
            }
            // Upholds G1: the only place at which a record becomes confirmed.
            Ok(message) => {
                self.topics.stored(message.topic());
                let (outcome, copy) = (Outcome::Stored, self.tap.stored(ticket, message));
                let mut gathered = self.gathered();
                gathered.confirmations.push(Confirmation { ticket, outcome });
                if let Some(copy) = copy {
                    delivered_tap::wait(&mut gathered.tapped, ticket, copy);
                }
                drop(gathered);
                if message.key().is_none() {
                    self.topics.stored_without_key(message.topic());
                }
            }
            Err((error, message)) => {
                self.failed(error, message, ticket, (timestamp_ms.flatten(), alone));
            }
        }
    }
}
