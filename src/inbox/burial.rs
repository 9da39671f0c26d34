//! Lays down dead letters.
//!
//! Enters: a record and why it is set aside. Leaves: a confirmed dead letter. What always holds: it
//! is tried until the brokers confirm it or the consumer is to stop, since what is not confirmed may
//! not be passed over; a record too large for the topic loses its value there and keeps its place.
//! Called by `turn`.

use std::time::Duration;

use super::Backoff;
use super::stop::Stop;
use crate::dead_letter::{
    Courier, DeadLetterError, Grounds, Parcel, Record, headers, is_too_large, topic_of,
};
use rdkafka::error::KafkaError;

/// How soon a confirmation is noticed.
const TICK: Duration = Duration::from_millis(2);
/// For brokers that create the topic when they are first asked for it.
const CREATION_LIMIT: u32 = 20;
const CREATION_TICK: Duration = Duration::from_millis(500);

/// The way to the dead-letter topic.
pub(super) struct Burial {
    courier: Courier,
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
        Ok(Self { courier, topic: topic_of(consumer), backoff, stop })
    }

    /// Waits for the brokers, and makes sure that there is a topic: better now than when the first
    /// dead letter finds none. Blocks; ends early when the consumer is to stop.
    pub(super) fn prepare(&self) -> Result<(), DeadLetterError> {
        let mut answers = 0;
        while !self.stop.is_asked() {
            match self.courier.finds(&self.topic) {
                Ok(true) => return Ok(()),
                Ok(false) if answers == CREATION_LIMIT => {
                    return Err(DeadLetterError::NoTopic(self.topic.clone()));
                }
                Ok(false) => answers += 1,
                Err(error) => tracing::debug!(%error, "the brokers are awaited"),
            }
            std::thread::sleep(CREATION_TICK);
        }
        Ok(())
    }

    /// False: the consumer is to stop, and the dead letter may not be there.
    pub(super) async fn bury(&self, record: &Record, grounds: &Grounds) -> bool {
        let (mut failures, mut is_cut) = (0, false);
        loop {
            let Err(error) = self.send(record, grounds, is_cut).await else {
                let Grounds { code, reason, attempts, .. } = grounds;
                let Record { topic, partition, offset, .. } = record;
                tracing::warn!(topic, partition, offset, code, reason, attempts, "a dead letter");
                return true;
            };
            if is_too_large(&error) && !is_cut {
                is_cut = true;
                continue;
            }
            failures += 1;
            let topic = &self.topic;
            tracing::error!(%error, topic, "a dead letter is not taken, and the consumer waits");
            if !self.stop.pause(self.backoff.wait(failures)).await {
                return false;
            }
        }
    }

    async fn send(
        &self,
        record: &Record,
        grounds: &Grounds,
        is_cut: bool,
    ) -> Result<(), KafkaError> {
        let receipt = self.courier.send(&Parcel {
            topic: &self.topic,
            partition: None,
            key: record.key.as_deref(),
            value: record.value.as_deref().filter(|_| !is_cut),
            headers: &headers(record, grounds, is_cut),
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
