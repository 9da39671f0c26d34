//! A test of a service on servers of its own: from the transaction that writes an event to the record in Kafka.
//!
//! ```toml
//! [dev-dependencies]
//! postrider-kafka = "0.1"
//! postrider-patterns = { version = "0.1", features = ["outbox-writer"] }
//! postrider-sandbox = "0.1"
//! rdkafka = "0.39"
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt"] }
//! tokio-postgres = "0.7"
//! ```
//!
//! Needs the programs of PostgreSQL and `postrider` (`cargo install postrider`). The broker is in this process: it
//! speaks Kafka's protocol, and forgets everything with the test. Nothing is left behind, also after a panic or a
//! kill -9 of the test.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::process::Command;
use std::time::{Duration, Instant};

use postrider_kafka::embedded::Broker;
use postrider_patterns::migrations::{Piece, migrate};
use postrider_patterns::outbox_writer::{Event, append};
use postrider_sandbox::postgres::{Cluster, Options};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Message as _, OwnedMessage};
use tokio_postgres::{Client, NoTls};

#[tokio::test]
async fn an_event_that_the_service_appends_is_a_record_in_kafka() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let broker = Broker::start(1, &[("OrderPlaced", 1)]).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Outbox]).await.unwrap();
    let slot = "SELECT pg_create_logical_replication_slot('postrider', 'pgoutput')";
    client.batch_execute(slot).await.unwrap();

    // Here: call the service.
    let transaction = client.transaction().await.unwrap();
    let event = Event::new("order", "42", "OrderPlaced", serde_json::json!({ "cents": 990 }));
    append(&transaction, &event).await.unwrap();
    transaction.commit().await.unwrap();

    relay(&cluster, &broker);
    let record = first_record(&broker, "OrderPlaced");
    assert_eq!(record.key(), Some(&b"42"[..]));
    assert_eq!(record.payload(), Some(&br#"{"cents": 990}"#[..]));
}

async fn connect(cluster: &Cluster) -> Client {
    let (client, connection) = tokio_postgres::connect(&cluster.unix_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Delivers what was committed, and ends.
fn relay(cluster: &Cluster, broker: &Broker) {
    // Where there is none that this test was built with: the one that is installed.
    let program = option_env!("CARGO_BIN_EXE_postrider").unwrap_or("postrider");
    let output = Command::new(program)
        .args(["run", "--once"])
        // Not in an argument: it holds the password.
        .env("POSTRIDER_SOURCE__URL", cluster.url())
        .env("POSTRIDER_KAFKA__BROKERS", broker.bootstrap())
        .env("POSTRIDER_HTTP__BIND", "127.0.0.1:0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn first_record(broker: &Broker, topic: &str) -> OwnedMessage {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.bootstrap()).set("group.id", "test");
    let consumer: BaseConsumer = config.set("auto.offset.reset", "earliest").create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    while Instant::now() < deadline {
        if let Some(record) = consumer.poll(Duration::from_millis(100)) {
            return record.unwrap().detach();
        }
    }
    panic!("no record of {topic} within a minute");
}
