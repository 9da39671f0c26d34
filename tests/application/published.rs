//! The dual write as it is published, on a real Postgres and a real Kafka, and the outbox in the same place:
//! `docs/patterns/evidence-services.md` names each test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::Duration;

use postrider::outbox_writer::{Event, append};
use postrider::sandbox::postgres::{Options, Stop};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::json;

use support::postgres::{self, Database};
use support::relay::Relay;
use support::sql::Sql;
use support::wait::wait_until;
use support::{kafka, topic, unique};

const LIMIT: Duration = Duration::from_mins(1);
const ACCOUNT: &str = "INSERT INTO dual_accounts VALUES (42)";
const ORDER: &str = "INSERT INTO dual_orders VALUES (1, 42)";

/// A database with orders, each of an account, which is checked at COMMIT; and a topic for their events.
struct Shop {
    database: Database,
    bootstrap: String,
    prefix: String,
}

impl Shop {
    /// `None` where there is no Kafka; that is said once.
    fn new() -> Option<Self> {
        let bootstrap = kafka::shared()?.bootstrap();
        let database = Database::migrated(postgres::installed(), "dual_write");
        database.sql().run(
            "CREATE TABLE dual_accounts (id bigint PRIMARY KEY);
             CREATE TABLE dual_orders (id bigint PRIMARY KEY,
                 account bigint NOT NULL REFERENCES dual_accounts DEFERRABLE INITIALLY DEFERRED)",
        );
        let shop = Self { database, bootstrap, prefix: unique("dual-write-") };
        topic::create(&shop.bootstrap, &shop.topic(), 1, &[]);
        Some(shop)
    }

    fn topic(&self) -> String {
        format!("{}OrderPlaced", self.prefix)
    }

    fn producer(&self, settings: &[(&str, &str)]) -> BaseProducer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        for (name, value) in settings {
            config.set(*name, *value);
        }
        config.create().unwrap()
    }

    fn send(&self, producer: &BaseProducer, order: i64) {
        let key = order.to_string();
        producer.send(BaseRecord::to(&self.topic()).key(&key).payload("{}")).unwrap();
    }

    /// The keys of what readers of the topic get.
    fn events(&self) -> Vec<String> {
        let stored = topic::read(&self.bootstrap, &[self.topic()]);
        stored.into_iter().map(|record| String::from_utf8(record.key.unwrap()).unwrap()).collect()
    }

    fn orders(&self) -> usize {
        self.database.sql().value("SELECT count(*) FROM dual_orders").parse().unwrap()
    }

    /// The outbox in the place of the producer: order and event, and whether COMMIT succeeded.
    fn place(&self, order: i64) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let url = self.database.address().unix_url();
            let mut client = postrider::shop::connect(&url).await.unwrap();
            let transaction = client.transaction().await.unwrap();
            let sql = "INSERT INTO dual_orders VALUES ($1, 42)";
            transaction.execute(sql, &[&order]).await.unwrap();
            let event = Event::new("order", order.to_string(), "OrderPlaced", json!({}));
            append(&transaction, &event).await.unwrap();
            transaction.commit().await.is_ok()
        })
    }

    fn create_slot(&self) {
        let slot = self.database.name();
        let sql = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        self.database.sql().run(&sql);
    }

    fn deliver(&self) {
        let (binary, slot) = (env!("CARGO_BIN_EXE_postrider"), self.database.name());
        let source = self.database.address();
        Relay::new(binary, &source, slot, &self.bootstrap, &self.prefix).run_once();
    }
}

#[test]
fn an_event_sent_inside_the_transaction_stays_though_the_transaction_does_not() {
    let Some(shop) = Shop::new() else { return };
    let sql = shop.database.sql();
    sql.run("BEGIN");
    sql.run(ORDER);
    let producer = shop.producer(&[]);
    shop.send(&producer, 1);
    producer.flush(LIMIT).unwrap();
    let refused = sql.try_run("COMMIT").unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "23503", "there is no account 42");
    assert_eq!((shop.orders(), shop.events()), (0, vec!["1".to_owned()]), "an event of no order");
}

/// `send` of every Kafka client returns before a broker has the record.
#[test]
fn an_event_sent_after_the_commit_is_lost_with_its_process() {
    let Some(shop) = Shop::new() else { return };
    let sql = shop.database.sql();
    sql.run(ACCOUNT);
    sql.run(ORDER);
    let producer = shop.producer(&[("linger.ms", "60000")]);
    shop.send(&producer, 1);
    // Here the process dies, and with it what its producer has not sent.
    drop(producer);
    assert_eq!((shop.orders(), shop.events()), (1, vec![]), "an order without an event");
}

/// The first order is rolled back; of the second the process dies after the COMMIT. The relay starts later.
#[test]
fn an_event_of_the_outbox_is_delivered_if_and_only_if_its_transaction_committed() {
    let Some(shop) = Shop::new() else { return };
    shop.create_slot();
    assert!(!shop.place(1), "there is no account 42");
    shop.database.sql().run(ACCOUNT);
    assert!(shop.place(2));
    shop.deliver();
    assert_eq!((shop.orders(), shop.events()), (1, vec!["2".to_owned()]));
}

#[test]
fn postgres_prepares_no_transaction_unless_it_is_told_to() {
    // A cluster of its own: the setting takes a start.
    const SETTING: &str = "max_prepared_transactions";
    let cluster = postgres::start(&Options::default().with(SETTING, "0"));
    let sql = Sql::connect(&cluster.unix_url());
    let default = format!("SELECT boot_val FROM pg_settings WHERE name = '{SETTING}'");
    assert_eq!(sql.value(&default), "0");
    let refused = sql.try_run("BEGIN; PREPARE TRANSACTION 'order-1'").unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "55000");
}

/// The coordinator of a two-phase commit dies between the phases. Nothing but somebody who knows how it decided
/// ends the transaction: no time limit, no lost connection, no restart of the server.
#[test]
fn a_prepared_transaction_without_its_coordinator_holds_locks_and_holds_vacuum_back() {
    // A cluster of its own: it is killed.
    const UPDATE: &str = "UPDATE accounts SET balance = 1 WHERE id = 42";
    let mut cluster = postgres::start(&Options::default());
    let coordinator = Sql::connect(&cluster.unix_url());
    coordinator.run(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
         INSERT INTO accounts VALUES (42, 990);
         CREATE TABLE bulk WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 10000) AS n",
    );
    let limits = "SET idle_in_transaction_session_timeout = 1; SET lock_timeout = 1";
    coordinator.run(limits);
    coordinator.run(&format!("BEGIN; {UPDATE}; PREPARE TRANSACTION 'order-1'"));
    drop(coordinator);
    cluster.restart(Stop::Kill).unwrap();

    let other = Sql::connect(&cluster.unix_url());
    other.run("SET lock_timeout = '100ms'");
    let waited = other.try_run(UPDATE).unwrap_err();
    assert_eq!(waited.code().unwrap().code(), "55P03", "the account is still locked");
    let pages_of_deleted_rows = || {
        other.run("VACUUM bulk");
        other.value("SELECT pg_relation_size('bulk') / 8192").parse::<u32>().unwrap()
    };
    other.run("DELETE FROM bulk");
    assert!(pages_of_deleted_rows() > 0, "of all tables, since it is older than the DELETE");

    other.run("ROLLBACK PREPARED 'order-1'");
    other.run(UPDATE);
    // A look of autovacuum holds it back as well, for a moment.
    wait_until("an empty table", || pages_of_deleted_rows() == 0);
}

/// A transaction of Kafka has no state between open and committed that outlives its producer: the next one with
/// the same `transactional.id` aborts it, whatever the coordinator had decided.
#[test]
fn kafka_aborts_what_the_coordinator_decided_to_commit() {
    let Some(shop) = Shop::new() else { return };
    let id = unique("two-phases");
    let begin = || {
        let producer = shop.producer(&[("transactional.id", &id)]);
        producer.init_transactions(LIMIT).unwrap();
        producer
    };
    let coordinator = begin();
    coordinator.begin_transaction().unwrap();
    shop.send(&coordinator, 1);
    coordinator.flush(LIMIT).unwrap();
    // Both are ready, so it decides to commit: Postgres does, and then the coordinator dies.
    let sql = shop.database.sql();
    sql.run(ACCOUNT);
    sql.run(ORDER);
    drop(coordinator);

    let successor = begin();
    successor.begin_transaction().unwrap();
    shop.send(&successor, 2);
    successor.commit_transaction(LIMIT).unwrap();
    assert_eq!((shop.orders(), shop.events()), (1, vec!["2".to_owned()]), "1 is lost");
}
