//! Publishes dead letters: messages that the consumer could not process.
//!
//! Input: a record and the reason. Output: a confirmed dead letter in the consumer's own topic; `prepare`
//! waits at the start until that topic exists. Invariant: it is retried until the brokers confirm it or the
//! consumer is to stop, since an unconfirmed record must not be skipped; a record too large for the topic
//! is truncated: first its value, then most headers, then its key, never its partition and offset.

use std::time::{Duration, Instant};

use super::stop::ConsumerStop;
use crate::dead_letter::{create_command, kafka_of, now_ms, topic_of};
use postrider_core::ledger::Ticket;
use postrider_core::record::{ConsumerFailure, StoredRecord, Truncation};
use postrider_core::route::{OwnedRecord, Rejection, RejectionCode};
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

/// The producer of the dead-letter topic.
pub(super) struct DlqPublisher {
    producer: Producer,
    kafka: KafkaSpec,
    topic: String,
    backoff: Backoff,
    stop: ConsumerStop,
    /// The number of the last record.
    sent: u32,
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
        Ok(Self { producer, kafka, topic: topic_of(consumer), backoff, stop, sent: 0, throttle })
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
        let mut kafka = self.kafka.clone();
        kafka.properties.insert("allow.auto.create.topics".to_owned(), "true".to_owned());
        Reader::open(&kafka, ReaderSpec::whole(&[&self.topic]), REQUEST_TIMEOUT).map(drop)
    }

    /// With code and reason. False: the consumer is to stop, and the dead letter may not have been stored.
    pub(super) async fn publish(
        &mut self,
        record: &StoredRecord,
        (code, reason): (&str, &str),
        failure: &ConsumerFailure,
    ) -> bool {
        let (mut failures, mut cut) = (0, Truncation::Nothing);
        loop {
            let (key, value) = cut.rest(record);
            let letter = OwnedRecord {
                topic: self.topic.clone(),
                partition: None,
                key: key.map(<[u8]>::to_vec),
                value: value.map(<[u8]>::to_vec),
                headers: failure.headers((code, reason), record, cut),
                timestamp_ms: now_ms(),
            };
            let Err(error) = self.send(&letter).await else {
                let StoredRecord { topic, partition, offset, .. } = record;
                let attempts = failure.attempts;
                tracing::warn!(
                    topic,
                    partition,
                    offset,
                    code,
                    reason,
                    attempts,
                    "message sent to the dead-letter topic"
                );
                return true;
            };
            if let SendError::Refused(Rejection { code: RejectionCode::TooLarge, .. }) = error
                && let Some(deeper) = cut.deeper()
            {
                cut = deeper;
                continue;
            }
            failures += 1;
            let topic = &self.topic;
            let text = error.to_string();
            if self.throttle.is_due(&text) {
                tracing::error!(error = text, topic, "cannot publish a dead letter; retrying");
            }
            if !self.stop.pause(self.backoff.wait(failures, draw())).await {
                return false;
            }
            if let SendError::Broken(_) = error {
                self.renew();
            }
        }
    }

    /// A producer that failed fatally never sends again.
    fn renew(&mut self) {
        match Producer::open(&self.kafka) {
            Ok(producer) => self.producer = producer,
            Err(error) => tracing::error!(%error, "cannot create a new producer of dead letters"),
        }
    }

    /// Sends, and waits for the confirmation.
    async fn send(&mut self, letter: &OwnedRecord) -> Result<(), SendError> {
        self.sent = self.sent.wrapping_add(1);
        let (ticket, mut is_sent) = (Ticket::new(self.sent, 0), false);
        let mut confirmations = Vec::new();
        loop {
            if !is_sent {
                match self.producer.send(&letter.as_record(), ticket) {
                    Err(SendError::Full) => {}
                    outcome => outcome.map(|()| is_sent = true)?,
                }
            }
            let polled = self.producer.poll(&mut confirmations);
            for Confirmation { ticket: of, outcome } in confirmations.drain(..) {
                match outcome {
                    _ if of != ticket => {}
                    Outcome::Stored => return Ok(()),
                    Outcome::Refused(refused) => return Err(SendError::Refused(refused.rejection)),
                }
            }
            polled?;
            tokio::time::sleep(TICK).await;
        }
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
            let replaced = publisher.publish(&record, ("poison", ""), &failure);
            assert!(tokio::time::timeout(limit, replaced).await.expect("it is confirmed"));
            // Unavailable brokers are waited for.
            cluster.broker_down(1).unwrap();
            let back = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                cluster.broker_up(1).unwrap();
            };
            let waited = publisher.publish(&record, ("poison", ""), &failure);
            tokio::time::timeout(limit, async { tokio::join!(waited, back).0 }).await
        };
        assert!(runtime.block_on(outcome).expect("it is confirmed"));
    }
}
