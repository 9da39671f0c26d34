//! Publishes dead letters to the consumer's topic.
//!
//! Invariant: the caller keeps a record whose dead letter is unconfirmed. A letter does not wait
//! for another one. A record that is too large is truncated: first its value, then most headers,
//! then its key.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::assignments::RecordPosition;
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

const TICK: Duration = Duration::from_millis(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Brokers may be starting or creating the topic, so there is no warning before.
const TOPIC_WAIT_QUIET: Duration = Duration::from_secs(10);
/// All messages wait in this time. Later attempts only look for the confirmation.
const PUBLISH_LIMIT: Duration = Duration::from_secs(2);
/// With the full limit, many letters would stop all messages.
const PUBLISH_LIMIT_BESIDE: Duration = Duration::from_millis(200);
/// Time without a confirmation after which a dead letter is reported. The election of a leader
/// takes less time.
const REPORT_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Published {
    Stored,
    Failed(String),
}

struct UnconfirmedLetter {
    since: Instant,
    /// Milliseconds since the Unix epoch.
    since_ms: i64,
    /// Empty during the first attempt.
    reason: String,
    truncation: Truncation,
    delivery: Delivery,
}

enum Delivery {
    Unsent,
    UnderWay(Ticket),
    Answered(Outcome),
}

pub(super) struct DlqPublisher {
    producer: Producer,
    kafka: KafkaSpec,
    topic: String,
    backoff: Backoff,
    stop: ConsumerStop,
    sent: u32,
    letters: BTreeMap<RecordPosition, UnconfirmedLetter>,
    throttle: LogThrottle,
}

impl DlqPublisher {
    pub(super) fn new(
        consumer: &str,
        settings: &[(String, String)],
        backoff: Backoff,
        stop: ConsumerStop,
    ) -> Result<Self, SinkError> {
        let kafka = kafka_of(settings);
        let producer = Producer::open(&kafka)?;
        let throttle = LogThrottle::default();
        let (topic, letters) = (topic_of(consumer), BTreeMap::new());
        Ok(Self { producer, kafka, topic, backoff, stop, sent: 0, letters, throttle })
    }

    /// Waits for the topic, so that a missing one is noticed before the first dead letter.
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

    /// Brokers with auto.create.topics.enable create the topic now.
    fn find_topic(&self) -> Result<(), ReaderError> {
        let spec = ReaderSpec { may_create: true, ..ReaderSpec::whole(&[&self.topic]) };
        Reader::open(&self.kafka, spec, REQUEST_TIMEOUT).map(drop)
    }

    pub(super) async fn publish(
        &mut self,
        (record, position): (&StoredRecord, &RecordPosition),
        why: (&str, &str),
        failure: &ConsumerFailure,
    ) -> Published {
        let mut others = self.letters.values();
        let limit = if self.letters.get(position).is_some_and(UnconfirmedLetter::is_under_way) {
            Duration::ZERO
        } else if others.any(UnconfirmedLetter::is_under_way) {
            PUBLISH_LIMIT_BESIDE
        } else {
            PUBLISH_LIMIT
        };
        let sending = self.send_truncated((record, position), why, failure);
        let reason = match tokio::time::timeout(limit, sending).await {
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
                return Published::Stored;
            }
            Ok(Err(error)) => {
                if let SendError::Broken(_) = error {
                    self.renew();
                }
                error.to_string()
            }
            Err(_) => "the brokers have not confirmed it".to_owned(),
        };
        let letter = self.letter(position);
        reason.clone_into(&mut letter.reason);
        if letter.is_late() && self.throttle.is_due(&reason) {
            let topic = &self.topic;
            tracing::error!(error = reason, topic, "cannot publish a dead letter; retrying");
        }
        Published::Failed(reason)
    }

    fn letter(&mut self, position: &RecordPosition) -> &mut UnconfirmedLetter {
        self.letters.entry(position.clone()).or_insert_with(UnconfirmedLetter::new)
    }

    pub(super) fn unpublished(&self) -> Option<UnpublishedLetter> {
        let oldest = self.letters.values().min_by_key(|letter| letter.since)?;
        let UnconfirmedLetter { reason, since_ms, .. } = oldest;
        let (topic, reason) = (self.topic.clone(), reason.clone());
        oldest.is_late().then_some(UnpublishedLetter { topic, reason, since_ms: *since_ms })
    }

    pub(super) fn forget(&mut self, position: &RecordPosition) {
        self.letters.remove(position);
    }

    pub(super) fn retain(&mut self, is_current: impl Fn(&RecordPosition) -> bool) {
        self.letters.retain(|position, _| is_current(position));
    }

    async fn send_truncated(
        &mut self,
        (record, position): (&StoredRecord, &RecordPosition),
        why: (&str, &str),
        failure: &ConsumerFailure,
    ) -> Result<(), SendError> {
        loop {
            let cut = self.letter(position).truncation;
            let (key, value) = cut.rest(record);
            let letter = OwnedRecord {
                topic: self.topic.clone(),
                partition: None,
                key: key.map(<[u8]>::to_vec),
                value: value.map(<[u8]>::to_vec),
                headers: failure.headers(why, record, cut),
                timestamp_ms: now_ms(),
            };
            let sent = self.send(&letter, position).await;
            let refusal =
                if let Err(SendError::Refused(refusal)) = &sent { Some(refusal) } else { None };
            let is_too_large = refusal.is_some_and(|it| it.code == RejectionCode::TooLarge);
            let deeper = cut.deeper().filter(|_| is_too_large);
            // The topic may accept the complete record later.
            self.letter(position).truncation = deeper.unwrap_or(Truncation::Nothing);
            if deeper.is_none() {
                return sent;
            }
        }
    }

    /// Replaces the producer: after a fatal failure it never sends again.
    fn renew(&mut self) {
        match Producer::open(&self.kafka) {
            Ok(producer) => self.producer = producer,
            Err(error) => tracing::error!(%error, "cannot create a new producer of dead letters"),
        }
        for letter in self.letters.values_mut().filter(|letter| letter.is_under_way()) {
            letter.delivery = Delivery::Unsent;
        }
    }

    /// Sends the letter, unless an earlier attempt did, and waits for the confirmation.
    async fn send(
        &mut self,
        record: &OwnedRecord,
        position: &RecordPosition,
    ) -> Result<(), SendError> {
        loop {
            self.take_confirmations()?;
            let letter = self.letter(position);
            match std::mem::replace(&mut letter.delivery, Delivery::Unsent) {
                Delivery::Answered(Outcome::Stored) => return Ok(()),
                Delivery::Answered(Outcome::Refused(refused)) => {
                    return Err(SendError::Refused(refused.rejection));
                }
                Delivery::UnderWay(ticket) => letter.delivery = Delivery::UnderWay(ticket),
                Delivery::Unsent => {
                    let ticket = Ticket::new(self.sent.wrapping_add(1), 0);
                    match self.producer.send(&record.as_record(), ticket) {
                        Err(SendError::Full) => {}
                        outcome => {
                            outcome?;
                            self.sent = self.sent.wrapping_add(1);
                            self.letter(position).delivery = Delivery::UnderWay(ticket);
                        }
                    }
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn take_confirmations(&mut self) -> Result<(), SendError> {
        let mut confirmations = Vec::new();
        let polled = self.producer.poll(&mut confirmations);
        for Confirmation { ticket, outcome } in confirmations {
            let is_its = |letter: &&mut UnconfirmedLetter| matches!(letter.delivery, Delivery::UnderWay(of) if of == ticket);
            if let Some(letter) = self.letters.values_mut().find(is_its) {
                letter.delivery = Delivery::Answered(outcome);
            }
        }
        Ok(polled?)
    }
}

impl UnconfirmedLetter {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            since_ms: now_ms(),
            reason: String::new(),
            truncation: Truncation::Nothing,
            delivery: Delivery::Unsent,
        }
    }

    fn is_under_way(&self) -> bool {
        matches!(self.delivery, Delivery::UnderWay(_))
    }

    fn is_late(&self) -> bool {
        self.since.elapsed() >= REPORT_AFTER
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::inbox::assignments::Assignments;
    use crate::inbox::stop;

    fn publisher(
        cluster: &MockCluster<'_, DefaultProducerContext>,
        partitions: i32,
    ) -> DlqPublisher {
        cluster.create_topic("payments.dead-letters", partitions, 1).unwrap();
        let settings = [("bootstrap.servers".to_owned(), cluster.bootstrap_servers())];
        let (_asker, stop) = stop::channel();
        DlqPublisher::new("payments", &settings, Backoff::default(), stop).unwrap()
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let work = async { tokio::time::timeout(Duration::from_mins(1), work).await };
        runtime.block_on(work).expect("an end within a minute")
    }

    async fn publish(publisher: &mut DlqPublisher, offset: i64, key: &str) -> Published {
        let record = StoredRecord {
            topic: "orders".into(),
            offset,
            key: Some(key.into()),
            ..StoredRecord::default()
        };
        let (mut assignments, partition) = (Assignments::default(), ("orders".to_owned(), 0));
        assignments.assign([partition.clone()]);
        assignments.begin(&partition, 1, 0, 0);
        let position = assignments.tag(record.clone()).unwrap().position;
        let consumer = "payments".into();
        let failure = ConsumerFailure { consumer, attempts: 1, first_failed_ms: 0, failed_ms: 0 };
        let outcome = publisher.publish((&record, &position), ("poison", ""), &failure).await;
        if outcome == Published::Stored {
            publisher.forget(&position);
        }
        outcome
    }

    async fn publish_in_the_end(publisher: &mut DlqPublisher, offset: i64, key: &str) {
        while publish(publisher, offset, key).await != Published::Stored {
            tokio::time::sleep(TICK).await;
        }
    }

    #[test]
    fn a_client_that_failed_for_good_is_replaced_and_brokers_are_waited_for() {
        let cluster = MockCluster::new(1).unwrap();
        // An idempotent producer without write access gets this error once and never asks again.
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refused]);
        let mut publisher = publisher(&cluster, 1);
        block_on(async {
            publisher.prepare().await;
            while publisher.producer.poll(&mut Vec::new()).is_ok() {
                tokio::time::sleep(TICK).await;
            }
            publish_in_the_end(&mut publisher, 0, "key").await;
            cluster.broker_down(1).unwrap();
            let back = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                cluster.broker_up(1).unwrap();
            };
            tokio::join!(publish_in_the_end(&mut publisher, 0, "key"), back);
        });
    }

    #[test]
    fn a_letter_without_confirmation_is_reported_while_others_are_stored() {
        // With murmur2, these keys belong to partitions 0 and 1 of two.
        const OTHER: &str = "6";
        const STUCK: &str = "9";
        let cluster = MockCluster::new(1).unwrap();
        let mut publisher = publisher(&cluster, 2);
        cluster.partition_leader("payments.dead-letters", 1, None).unwrap();
        block_on(async {
            publisher.prepare().await;
            let unconfirmed = Published::Failed("the brokers have not confirmed it".to_owned());
            assert_eq!(publish(&mut publisher, 0, STUCK).await, unconfirmed);
            for letter in publisher.letters.values_mut() {
                letter.since = Instant::now();
            }
            assert_eq!(publisher.unpublished(), None);
            for letter in publisher.letters.values_mut() {
                letter.since -= REPORT_AFTER;
            }
            for offset in 1..5 {
                publish_in_the_end(&mut publisher, offset, OTHER).await;
                assert_eq!(publish(&mut publisher, 0, STUCK).await, unconfirmed);
                assert_eq!(publisher.unpublished().unwrap().topic, "payments.dead-letters");
            }
            cluster.partition_leader("payments.dead-letters", 1, Some(1)).unwrap();
            publish_in_the_end(&mut publisher, 0, STUCK).await;
            assert_eq!(publisher.unpublished(), None);
        });
    }
}
