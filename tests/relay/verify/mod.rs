//! `postrider verify` as a process: what is wrong between a table and its topics is found, what is not is not.

mod example;
mod found;
mod limits;
mod running;
mod servers;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::Value;

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::{Outcome, Relay};
use support::topic::{self, Stored};
use support::wait::wait_until;

/// A database with an outbox, and a relay's topics.
struct Verified {
    stage: Stage,
    relay: Relay,
    broker: Broker,
}

impl Verified {
    fn new(stem: &str) -> Self {
        Self::with(Broker::best(), stem)
    }

    fn with(broker: Broker, stem: &str) -> Self {
        let stage = Stage::new(postgres::installed(), &broker.bootstrap(), stem);
        let relay = stage.relay();
        Self { stage, relay, broker }
    }

    /// Commits rows of ten keys, in transactions of ten, and delivers them.
    fn deliver(&self, rows: u32) {
        self.insert(rows);
        self.relay.run_once();
    }

    fn insert(&self, rows: u32) {
        self.stage.sql().run(&format!(
            "DO $$ BEGIN FOR n IN 1..{rows} LOOP \
                 INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('t', n % 10, CASE n % 3 WHEN 0 THEN 'A' ELSE 'B' END, jsonb_build_object('n', n)); \
                 IF n % 10 = 0 THEN COMMIT; END IF; \
             END LOOP; END $$"
        ));
    }

    /// Moves the slot past everything, whether it was delivered or not, and waits until it can be seen from it that no
    /// older transaction was open: other tests have some on the same server.
    fn pass(&self) {
        let slot = self.stage.slot();
        let advance = format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())");
        let left = format!(
            "SELECT count(*) FROM outbox WHERE age(xmin) <= (SELECT age(catalog_xmin) \
             FROM pg_replication_slots WHERE slot_name = '{slot}')"
        );
        wait_until("the slot to have passed all rows", || {
            self.stage.sql().run("CHECKPOINT");
            self.stage.sql().run(&advance);
            self.stage.sql().value(&left) == "0"
        });
    }

    /// Exit code and output of `verify --output json` with these words.
    fn verify(&self, words: &str) -> (i32, Value) {
        verify(&self.relay, words)
    }

    fn outcome(&self, words: &str) -> Outcome {
        outcome(&self.relay, words)
    }

    /// Everything in the topics, without dead letters.
    fn records(&self) -> Vec<Stored> {
        let letters = self.stage.topic("dead-letters");
        let mut records = self.stage.records();
        records.retain(|record| record.topic != letters);
        records
    }

    /// Writes these records, in this order, into topics whose names begin with `copy.` instead, and returns a
    /// relay that has them for its own.
    fn copied(&self, records: &[Stored]) -> Relay {
        let prefix = self.stage.topic("");
        let to = |topic: &str| format!("{prefix}copy.{}", topic.strip_prefix(&prefix).unwrap());
        let records: Vec<Stored> = records
            .iter()
            .map(|record| Stored { topic: to(&record.topic), ..record.clone() })
            .collect();
        produce(&self.broker.bootstrap(), &records);
        self.relay.clone().set("route.topic", &format!("{prefix}copy.${{routedByValue}}"))
    }
}

fn outcome(relay: &Relay, words: &str) -> Outcome {
    let words: Vec<&str> = words.split_whitespace().collect();
    relay.start(&[&["verify"], &words[..]].concat()).outcome()
}

fn verify(relay: &Relay, words: &str) -> (i32, Value) {
    let outcome = outcome(relay, &format!("--output json --grace 0s {words}"));
    let json = serde_json::from_str(&outcome.stdout);
    let json = json.unwrap_or_else(|_| panic!("{}{}", outcome.stdout, outcome.log.join("\n")));
    (outcome.status.code().unwrap(), json)
}

/// Writes records with all that they have, into the partitions that they name.
pub(crate) fn produce(bootstrap: &str, records: &[Stored]) {
    let producer: BaseProducer = topic::client(bootstrap)
        .set("allow.auto.create.topics", "true")
        .set("enable.idempotence", "true")
        .create()
        .unwrap();
    for record in records {
        let mut headers = OwnedHeaders::new();
        for (key, value) in &record.headers {
            headers = headers.insert(Header { key, value: value.as_deref() });
        }
        let (topic, timestamp) = (record.topic.as_str(), record.timestamp_ms.unwrap());
        let mut message = BaseRecord::<[u8], [u8]>::to(topic)
            .partition(record.partition)
            .timestamp(timestamp)
            .headers(headers);
        message.key = record.key.as_deref();
        message.payload = record.value.as_deref();
        producer.send(message).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(std::time::Duration::from_mins(1)).unwrap();
}

/// The findings that are not zero.
fn found(json: &Value) -> Vec<(&str, u64)> {
    const NAMES: [&str; 12] = [
        "lost",
        "duplicated",
        "reordered",
        "phantom",
        "different",
        "not_unique",
        "pending",
        "unknown",
        "dead_lettered",
        "dropped",
        "without_row",
        "sent_again",
    ];
    let number = |name| (name, json[name].as_u64().unwrap());
    NAMES.into_iter().map(number).filter(|(_, number)| *number > 0).collect()
}

/// The ids that are named for a kind of finding.
fn named(json: &Value, kind: &str) -> Vec<String> {
    let samples = json["samples"][kind].as_array().cloned().unwrap_or_default();
    samples.iter().map(|sample| sample["id"].as_str().unwrap().to_owned()).collect()
}
