//! Lays down dead letters.
//!
//! Enters: a record and why it is set aside. Leaves: a confirmed dead letter. What always holds: it
//! is tried until the brokers confirm it or the consumer is to stop, since what is not confirmed may
//! not be passed over; a record too large for the topic loses there its value, then most headers, then
//! its key, and keeps its place. Called by `turn`.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::Backoff;
use super::stop::Stop;
use crate::dead_letter::{
    Courier, Cut, DeadLetterError, Grounds, Parcel, Record, Reminder, headers, is_too_large,
    topic_of,
};

/// How soon a confirmation is noticed.
const TICK: Duration = Duration::from_millis(2);
/// For brokers that start at the same time, or create the topic when they are first asked for it; who
/// waits longer says so.
const GRACE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The way to the dead-letter topic.
pub(super) struct Burial {
    courier: Courier,
    settings: Vec<(String, String)>,
    topic: String,
    backoff: Backoff,
    stop: Stop,
}

impl Burial {
    /// Connects in the background.
    pub(super) fn new(
        consumer: &str,
        settings: &[(String, String)],
        backoff: Backoff,
        stop: Stop,
    ) -> Result<Self, DeadLetterError> {
        let courier = Courier::new(settings)?;
        let (topic, settings) = (topic_of(consumer), settings.to_vec());
        Ok(Self { courier, settings, topic, backoff, stop })
    }

    /// Waits for the brokers, and until there is a topic: better now than when the first dead letter
    /// finds none. Blocks; ends early when the consumer is to stop.
    pub(super) fn prepare(&self) {
        let (begin, mut reminder) = (Instant::now(), Reminder::default());
        while !self.stop.is_asked() {
            let missing = || DeadLetterError::NoTopic(self.topic.clone());
            let (error, hint) = match self.courier.finds(&self.topic) {
                Ok(true) => return,
                Ok(false) => (missing().to_string(), missing().hint()),
                Err(error) => (error.to_string(), None),
            };
            // What the client itself has to say, such as that a password is wrong.
            self.courier.poll(Duration::ZERO);
            if begin.elapsed() > GRACE && reminder.is_due(&error) {
                let topic = &self.topic;
                tracing::warn!(error, topic, hint, "the consumer waits for its dead-letter topic");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// False: the consumer is to stop, and the dead letter may not be there.
    pub(super) async fn bury(&mut self, record: &Record, grounds: &Grounds) -> bool {
        let (mut failures, mut cut) = (0, Cut::Nothing);
        loop {
            let Err(error) = self.send(record, grounds, cut).await else {
                let Grounds { code, reason, attempts, .. } = grounds;
                let Record { topic, partition, offset, .. } = record;
                tracing::warn!(topic, partition, offset, code, reason, attempts, "a dead letter");
                return true;
            };
            if is_too_large(&error)
                && let Some(deeper) = cut.deeper()
            {
                cut = deeper;
                continue;
            }
            self.renew();
            failures += 1;
            let topic = &self.topic;
            tracing::error!(%error, topic, "a dead letter is not taken, and the consumer waits");
            if !self.stop.pause(self.backoff.wait(failures)).await {
                return false;
            }
        }
    }

    /// A client that failed for good never sends again.
    fn renew(&mut self) {
        if self.courier.is_broken() {
            match Courier::new(&self.settings) {
                Ok(courier) => self.courier = courier,
                Err(error) => tracing::error!(%error, "the client of dead letters is not renewed"),
            }
        }
    }

    async fn send(&self, record: &Record, grounds: &Grounds, cut: Cut) -> Result<(), KafkaError> {
        let (key, value) = cut.rest(record);
        let receipt = self.courier.send(&Parcel {
            topic: &self.topic,
            partition: None,
            key,
            value,
            headers: &headers(record, grounds, cut),
        })?;
        loop {
            self.courier.poll(Duration::ZERO);
            if let Some(outcome) = receipt.get() {
                return outcome.clone();
            }
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
    fn a_client_that_failed_for_good_is_replaced() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("payments.dead-letters", 1, 1).unwrap();
        // An idempotent producer that may not write is told so once, and then never asks again.
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refused]);
        let settings = [("bootstrap.servers".to_owned(), cluster.bootstrap_servers())];
        let (_asker, stop) = stop::channel();
        let mut burial = Burial::new("payments", &settings, Backoff::default(), stop).unwrap();
        burial.prepare();
        while !burial.courier.is_broken() {
            burial.courier.poll(Duration::from_millis(10));
        }
        let record = Record::bare("orders", 0, 0);
        let grounds = Grounds {
            consumer: "payments".into(),
            code: "poison".into(),
            reason: String::new(),
            attempts: 1,
            first_failed_ms: 0,
            failed_ms: 0,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Duration::from_mins(1);
        let buried = async { tokio::time::timeout(limit, burial.bury(&record, &grounds)).await };
        assert!(runtime.block_on(buried).expect("it is confirmed"));
    }
}
