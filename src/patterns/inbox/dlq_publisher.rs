//! Publishes dead letters: messages that the consumer could not process.
//!
//! Input: a record and the reason. Output: a confirmed dead letter in the consumer's own topic, or why the topic
//! does not take it, after a few seconds; `prepare` waits at the start until that topic exists. Invariant: the caller keeps a
//! record whose dead letter is unconfirmed; a record too large for the topic is truncated: first its value, then
//! most headers, then its key, never its partition and offset.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::status::UnpublishedLetter;
use super::stop::ConsumerStop;
use crate::dead_letter::{create_command, kafka_of, now_ms, topic_of};
use postrider_core::ledger::Ticket;
use postrider_core::record::{ConsumerFailure, StoredRecord, Truncation};
use postrider_core::route::{OwnedRecord, RejectionCode};
use postrider_kafka::{
    Confirmation, KafkaSpec, Outcome, Producer, Reader, ReaderError, ReaderSpec, SendError,
    SinkError,
};
use postrider_service::backoff::{Backoff, draw};
use postrider_service::log_throttle::LogThrottle;

/// How soon a confirmation is noticed.
const TICK: Duration = Duration::from_millis(2);
/// How long the brokers may take to say whether the topic exists.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// No warning before this: the brokers may be starting, or creating the topic on demand.
const TOPIC_WAIT_QUIET: Duration = Duration::from_secs(10);
/// Maximum time to wait for a confirmation. All messages wait during that time. The next attempt waits for the same
/// confirmation.
const PUBLISH_LIMIT: Duration = Duration::from_secs(2);
/// A topic that refuses dead letters for this long is reported. The election of a leader takes less time.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// Result of an attempt to publish a dead letter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// The brokers have confirmed the dead letter.
    Stored,
    /// The brokers have not confirmed the dead letter, for this reason.
    Failed(String),
}

/// Topic, partition and offset of a record.
type Place = (String, i32, i64);

/// Failed attempts since the last confirmed dead letter.
struct Failing {
    letter: UnpublishedLetter,
    since: Instant,
    failures: u32,
    /// Time of the next attempt.
    next: Instant,
}

/// The producer of the dead-letter topic.
pub(super) struct DlqPublisher {
    producer: Producer,
    kafka: KafkaSpec,
    topic: String,
    backoff: Backoff,
    stop: ConsumerStop,
    /// The number of the last record.
    sent: u32,
    /// Dead letters without a confirmation, by the records that they are about.
    under_way: BTreeMap<Place, Ticket>,
    /// Outcomes that came after the end of an attempt.
    late: BTreeMap<Place, Outcome>,
    failing: Option<Failing>,
    throttle: LogThrottle,
}

impl DlqPublisher {
    /// Connects in the background.
    pub(super) fn new(
        consumer: &str,
        settings: &[(String, String)],
        backoff: Backoff,
        stop: ConsumerStop,
    ) -> Result<Self, SinkError> {
        let kafka = kafka_of(settings);
        let producer = Producer::open(&kafka)?;
        let throttle = LogThrottle::default();
        let topic = topic_of(consumer);
        let (under_way, late) = (BTreeMap::new(), BTreeMap::new());
        let (sent, failing) = (0, None);
        Ok(Self { producer, kafka, topic, backoff, stop, sent, under_way, late, failing, throttle })
    }

    /// Waits for the brokers, and until there is a topic: better now than when the first dead letter
    /// finds none. Ends early when the consumer is to stop.
    pub(super) async fn prepare(&self) {
        let (begin, mut throttle, mut failures) = (Instant::now(), LogThrottle::default(), 0);
        while let Err(error) = self.find_topic() {
            let text = error.to_string();
            if begin.elapsed() > TOPIC_WAIT_QUIET && throttle.is_due(&text) {
                let is_missing = matches!(error, ReaderError::UnknownTopic(_));
                let hint = is_missing.then(|| create_command(&self.topic));
                let topic = &self.topic;
                tracing::warn!(
                    error = text,
                    topic,
                    hint,
                    "the consumer is waiting for its dead-letter topic"
                );
            }
            failures += 1;
            if !self.stop.pause(self.backoff.wait(failures, draw())).await {
                return;
            }
        }
    }

    /// Brokers with auto.create.topics.enable create it now.
    fn find_topic(&self) -> Result<(), ReaderError> {
        let spec = ReaderSpec { may_create: true, ..ReaderSpec::whole(&[&self.topic]) };
        Reader::open(&self.kafka, spec, REQUEST_TIMEOUT).map(drop)
    }

    /// Publishes a dead letter with a code and a reason. After a failed attempt, none is made before the end of a pause.
    pub(super) async fn publish(
        &mut self,
        record: &StoredRecord,
        why: (&str, &str),
        failure: &ConsumerFailure,
    ) -> Published {
        if let Some(failing) = self.failing.as_ref().filter(|it| Instant::now() < it.next) {
            return Published::Failed(failing.letter.reason.clone());
        }
        let sending = self.send_truncated(record, why, failure);
        let reason = match tokio::time::timeout(PUBLISH_LIMIT, sending).await {
            Ok(Ok(())) => {
                let StoredRecord { topic, partition, offset, .. } = record;
                let ((code, reason), attempts) = (why, failure.attempts);
                tracing::warn!(
                    topic,
                    partition,
                    offset,
                    code,
                    reason,
                    attempts,
                    "message sent to the dead-letter topic"
                );
                self.failing = None;
                return Published::Stored;
            }
            Ok(Err(error)) => {
                if let SendError::Broken(_) = error {
                    self.renew();
                }
                error.to_string()
            }
            Err(_) => {
                format!("the brokers have not confirmed it within {} s", PUBLISH_LIMIT.as_secs())
            }
        };
        self.note_failure(&reason);
        Published::Failed(reason)
    }

    fn note_failure(&mut self, reason: &str) {
        let now = Instant::now();
        let failing = self.failing.get_or_insert_with(|| {
            let (topic, since_ms) = (self.topic.clone(), now_ms());
            let letter = UnpublishedLetter { topic, reason: String::new(), since_ms };
            Failing { letter, since: now, failures: 0, next: now }
        });
        failing.failures = failing.failures.saturating_add(1);
        failing.next = now + self.backoff.wait(failing.failures, draw());
        reason.clone_into(&mut failing.letter.reason);
        let is_old = now.duration_since(failing.since) >= REPORT_AFTER;
        if is_old && self.throttle.is_due(reason) {
            let topic = &self.topic;
            tracing::error!(error = reason, topic, "cannot publish a dead letter; retrying");
        }
    }

    /// The dead letter that the topic has refused for some seconds.
    pub(super) fn unpublished(&self) -> Option<UnpublishedLetter> {
        let failing = self.failing.as_ref()?;
        (failing.since.elapsed() >= REPORT_AFTER).then(|| failing.letter.clone())
    }

    /// Clears all state of failed attempts, because no dead letter waits to be published.
    pub(super) fn forget_failure(&mut self) {
        self.failing = None;
        self.under_way.clear();
        self.late.clear();
    }

    async fn send_truncated(
        &mut self,
        record: &StoredRecord,
        why: (&str, &str),
        failure: &ConsumerFailure,
    ) -> Result<(), SendError> {
        let mut cut = Truncation::Nothing;
        loop {
            let (key, value) = cut.rest(record);
            let letter = OwnedRecord {
                topic: self.topic.clone(),
                partition: None,
                key: key.map(<[u8]>::to_vec),
                value: value.map(<[u8]>::to_vec),
                headers: failure.headers(why, record, cut),
                timestamp_ms: now_ms(),
            };
            let place = (record.topic.clone(), record.partition, record.offset);
            let sent = self.send(&letter, place).await;
            let refusal =
                if let Err(SendError::Refused(refusal)) = &sent { Some(refusal) } else { None };
            let is_too_large = refusal.is_some_and(|it| it.code == RejectionCode::TooLarge);
            match cut.deeper().filter(|_| is_too_large) {
                Some(deeper) => cut = deeper,
                None => return sent,
            }
        }
    }

    /// A producer that failed fatally never sends again.
    fn renew(&mut self) {
        match Producer::open(&self.kafka) {
            Ok(producer) => self.producer = producer,
            Err(error) => tracing::error!(%error, "cannot create a new producer of dead letters"),
        }
        self.under_way.clear();
    }

    /// Sends, unless an earlier attempt did, and waits for the confirmation.
    async fn send(&mut self, letter: &OwnedRecord, place: Place) -> Result<(), SendError> {
        while !self.under_way.contains_key(&place) && !self.late.contains_key(&place) {
            let ticket = Ticket::new(self.sent.wrapping_add(1), 0);
            match self.producer.send(&letter.as_record(), ticket) {
                Err(SendError::Full) => self.poll().await?,
                outcome => {
                    outcome?;
                    self.sent = self.sent.wrapping_add(1);
                    self.under_way.insert(place.clone(), ticket);
                }
            }
        }
        loop {
            match self.late.remove(&place) {
                Some(Outcome::Stored) => return Ok(()),
                Some(Outcome::Refused(refused)) => {
                    return Err(SendError::Refused(refused.rejection));
                }
                None => self.poll().await?,
            }
        }
    }

    /// Takes in the confirmations that have come.
    async fn poll(&mut self) -> Result<(), SendError> {
        let mut confirmations = Vec::new();
        let polled = self.producer.poll(&mut confirmations);
        for Confirmation { ticket, outcome } in confirmations {
            let place =
                self.under_way.iter().find(|(_, of)| **of == ticket).map(|(it, _)| it.clone());
            if let Some(place) = place {
                self.under_way.remove(&place);
                self.late.insert(place, outcome);
            }
        }
        polled?;
        tokio::time::sleep(TICK).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::inbox::stop;

    #[test]
    fn a_client_that_failed_for_good_is_replaced_and_brokers_are_waited_for() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("payments.dead-letters", 1, 1).unwrap();
        // An idempotent producer that may not write is told so once, and then never asks again.
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refused]);
        let settings = [("bootstrap.servers".to_owned(), cluster.bootstrap_servers())];
        let (_asker, stop) = stop::channel();
        let mut publisher =
            DlqPublisher::new("payments", &settings, Backoff::default(), stop).unwrap();
        let failure = ConsumerFailure {
            consumer: "payments".into(),
            attempts: 1,
            first_failed_ms: 0,
            failed_ms: 0,
        };
        let record = StoredRecord { topic: "orders".into(), ..StoredRecord::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Duration::from_mins(1);
        let outcome = async {
            publisher.prepare().await;
            // Its first client has failed by now.
            while publisher.producer.poll(&mut Vec::new()).is_ok() {
                tokio::time::sleep(TICK).await;
            }
            let replaced = publish(&mut publisher, &record, &failure);
            tokio::time::timeout(limit, replaced).await.expect("it is confirmed");
            // Unavailable brokers are waited for.
            cluster.broker_down(1).unwrap();
            let back = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                cluster.broker_up(1).unwrap();
            };
            let waited = publish(&mut publisher, &record, &failure);
            tokio::time::timeout(limit, async { tokio::join!(waited, back).0 }).await
        };
        runtime.block_on(outcome).expect("it is confirmed");
    }

    async fn publish(
        publisher: &mut DlqPublisher,
        record: &StoredRecord,
        failure: &ConsumerFailure,
    ) {
        while publisher.publish(record, ("poison", ""), failure).await != Published::Stored {
            tokio::time::sleep(TICK).await;
        }
    }
}
