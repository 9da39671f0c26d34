//! The records of rows, by the rows' numbers.

use std::ops::RangeInclusive;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use support::topic;
use uuid::Uuid;

/// Keys, which the rows have in turn.
pub(super) const KEYS: u64 = 10_000;

/// The id of a row.
pub(super) fn id(n: u64) -> String {
    Uuid::from_u128(u128::from(n)).to_string()
}

/// Writes records. Dropping it waits until they are stored.
pub(super) struct Records {
    producer: BaseProducer,
    topic: String,
}

impl Records {
    pub(super) fn to(bootstrap: &str, topic: &str) -> Self {
        let mut config = topic::client(bootstrap);
        // Records of one key must not pass each other.
        config.set("enable.idempotence", "true").set("linger.ms", "20");
        let producer = config.set("compression.type", "lz4").create().unwrap();
        Self { producer, topic: topic.to_owned() }
    }

    /// The records of these rows, in this order.
    pub(super) fn send(&mut self, numbers: RangeInclusive<u64>) {
        for n in numbers {
            self.write(n, &format!("{{\"n\": {n}}}"));
        }
        self.flush();
    }

    /// The record of a row with other bytes.
    pub(super) fn send_changed(&mut self, n: u64) {
        self.write(n, &format!("{{\"n\":{n}}}"));
        self.flush();
    }

    fn write(&mut self, n: u64, value: &str) {
        let (key, id, position) = ((n % KEYS).to_string(), id(n), format!("{n:016X}.0000000000"));
        let headers = [
            ("id", &*id),
            ("event_type", "orders"),
            ("aggregate_type", "order"),
            ("postrider-lsn", &position),
        ];
        let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value.as_bytes()) })
        });
        let mut record = BaseRecord::to(&self.topic)
            .key(key.as_bytes())
            .payload(value.as_bytes())
            .headers(headers);
        loop {
            match self.producer.send(record) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    self.producer.poll(Duration::from_millis(10));
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
    }

    fn flush(&self) {
        self.producer.flush(Duration::from_mins(5)).unwrap();
    }
}
