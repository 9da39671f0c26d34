//! Debezium on a Kafka Connect worker, as it comes and tuned.
//!
//! Input: a [`Task`]. Output: a worker; and its configuration as text, for the report. Invariant: both wait for all
//! replicas and have an idempotent producer, which Connect switches off unless told otherwise.

use serde_json::{Map, Value};

use super::contestants::{Contestant, Stage, Task};
use crate::connect::{Connect, Worker};
use crate::java;

/// The heap that Connect's start script gives it, in MiB.
const HEAP_MIB: u32 = 2_048;
/// A heap that is enough for the queues below.
const HEAP_TUNED_MIB: u32 = 512;

/// What an outbox of the relay's columns needs.
const CONNECTOR: [(&str, &str); 20] = [
    ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
    ("tasks.max", "1"),
    ("plugin.name", "pgoutput"),
    ("topic.prefix", "compare"),
    ("publication.name", "postrider"),
    ("publication.autocreate.mode", "disabled"),
    ("table.include.list", "public.outbox"),
    ("snapshot.mode", "no_data"),
    ("key.converter", "org.apache.kafka.connect.storage.StringConverter"),
    ("value.converter", "org.apache.kafka.connect.storage.StringConverter"),
    ("transforms", "outbox"),
    ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
    ("transforms.outbox.table.field.event.id", "id"),
    ("transforms.outbox.table.field.event.key", "aggregate_id"),
    ("transforms.outbox.table.field.event.payload", "payload"),
    ("transforms.outbox.route.by.field", "event_type"),
    // On all sides.
    ("producer.override.acks", "all"),
    ("producer.override.enable.idempotence", "true"),
    // What Postgres would otherwise never be told of while other tables are written to.
    ("heartbeat.interval.ms", "10000"),
    ("database.hostname", "127.0.0.1"),
];

/// What makes it faster here.
const TUNED: [(&str, &str); 7] = [
    ("max.queue.size", "32768"),
    ("max.batch.size", "8192"),
    ("poll.interval.ms", "5"),
    ("producer.override.compression.type", "lz4"),
    ("producer.override.linger.ms", "5"),
    ("producer.override.batch.size", "262144"),
    ("producer.override.max.in.flight.requests.per.connection", "5"),
];

/// The worker of the tuned one notes every second how far it is, so that a crash repeats less.
const TUNED_WORKER: [(&str, &str); 1] = [("offset.flush.interval.ms", "1000")];

fn is_tuned(contestant: Contestant) -> bool {
    contestant == Contestant::DebeziumTuned
}

fn connector(contestant: Contestant, further: &[(&str, &str)]) -> Map<String, Value> {
    let tuned = TUNED.iter().filter(|_| is_tuned(contestant));
    let settings = CONNECTOR.iter().chain(tuned).chain(further);
    settings.map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
}

/// Starts a worker with one connector.
pub(super) fn start(stage: &Stage, contestant: Contestant, task: &Task) -> Connect {
    let address = stage.cluster.address();
    let (port, topic) = (address.port.to_string(), format!("{}${{routedByValue}}", task.prefix));
    let mut configuration = connector(
        contestant,
        &[
            ("database.port", &port),
            ("database.user", &address.user),
            ("database.password", address.password.as_deref().unwrap_or_default()),
            ("database.dbname", &address.database),
            ("slot.name", &task.slot),
            ("transforms.outbox.route.topic.replacement", &topic),
        ],
    );
    // Live rows are not to wait for company; those of a backlog are.
    if is_tuned(contestant) && task.end.is_none() {
        configuration.insert("producer.override.linger.ms".to_owned(), "0".into());
    }
    let posted = serde_json::json!({ "name": "outbox", "config": configuration }).to_string();
    let bootstrap = stage.kafka.bootstrap();
    let worker = Worker {
        jars: &stage.debezium,
        bootstrap: &bootstrap,
        purpose: stage.worker_purpose,
        heap_mib: if is_tuned(contestant) { HEAP_TUNED_MIB } else { HEAP_MIB },
        settings: if is_tuned(contestant) { &TUNED_WORKER } else { &[] },
    };
    Connect::start(&worker, &[("outbox", &posted)])
}

/// What the worker and its connector have been told, without addresses.
pub(super) fn shown(contestant: Contestant) -> String {
    let heap = if is_tuned(contestant) { HEAP_TUNED_MIB } else { HEAP_MIB };
    let worker: &[_] = if is_tuned(contestant) { &TUNED_WORKER } else { &[] };
    let worker = worker.iter().map(|(name, value)| format!("worker: {name}={value}"));
    let heap = std::iter::once(format!("java {} -Xmx{heap}m", java::SCRIPT_FLAGS.join(" ")));
    let connector = connector(contestant, &[]);
    let connector = connector
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
    heap.chain(worker).chain(connector).collect::<Vec<_>>().join("\n")
}
