//! `run --debezium`: a connector's configuration as it stands, in the place of the connector.

use postrider::sandbox::postgres::Options;

use support::broker::Broker;
use support::postgres::{self, Database};
use support::relay::Relay;
use support::topic::{self, Stored};

/// The JSON of a widely read article. It routes by `event_type` and names neither its key nor its
/// type column, so that Debezium itself would refuse the rows of this table.
const CONNECTOR: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/debezium/connector-event-type.json");

/// The connector as it stands; only where the servers are is another place.
fn relay(database: &Database, bootstrap: &str) -> Relay {
    let address = database.address();
    Relay::new(env!("CARGO_BIN_EXE_postrider"), &address, "", bootstrap, "")
        .unset("source.slot")
        .unset("route.topic")
        .unset("dead_letters.topic")
        .allow_log("debezium `")
}

fn insert(database: &Database, topic: &str, ids: std::ops::RangeInclusive<u32>) {
    database.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', n::text, '{topic}', jsonb_build_object('n', n) \
         FROM generate_series({}, {}) AS n",
        ids.start(),
        ids.end(),
    ));
}

fn once(relay: &Relay) {
    let status = relay.start(&["run", "--once", "--debezium", CONNECTOR]).wait();
    assert!(status.success(), "run --once --debezium: {status}");
}

fn records(bootstrap: &str) -> Vec<Stored> {
    topic::read(bootstrap, &topic::names(bootstrap, ""))
}

fn text(bytes: Option<&Vec<u8>>) -> String {
    String::from_utf8(bytes.unwrap().clone()).unwrap()
}

#[test]
fn g1_the_slot_that_debezium_leaves_behind_is_taken_over_without_a_gap() {
    let cluster = postgres::start(&Options::default());
    let database = Database::migrated(&cluster, "takeover");
    let broker = Broker::embedded();
    let bootstrap = broker.bootstrap();
    // What Debezium made, and what was committed since it stopped.
    let sql = database.sql();
    sql.run("CREATE PUBLICATION dbz_publication FOR ALL TABLES");
    sql.run("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')");
    insert(&database, "OrderPlaced", 1..=40);
    insert(&database, "OrderPaid", 41..=50);

    // Debezium's publication is for all tables and operations, which wastes decoding.
    let relay = relay(&database, &bootstrap).allow_log("publication `dbz_publication`");
    once(&relay);
    let found = records(&bootstrap);
    assert_eq!(found.len(), 50);
    for record in &found {
        let n: u32 = text(record.key.as_ref()).parse().unwrap();
        let topic = if n <= 40 { "OrderPlaced" } else { "OrderPaid" };
        assert_eq!(
            (record.topic.as_str(), text(record.value.as_ref())),
            (topic, format!("{{\"n\": {n}}}"))
        );
        let names: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id"]);
    }
    // What is delivered is acknowledged, and the slot goes on from there.
    insert(&database, "OrderPlaced", 51..=55);
    once(&relay);
    assert_eq!(records(&bootstrap).len(), 55);
}

/// The relay makes neither at start; what was imported does, as any other configuration.
#[test]
fn a_database_without_slot_and_publication_gets_those_of_the_file() {
    let cluster = postgres::start(&Options::default());
    let database = Database::migrated(&cluster, "afresh");
    let broker = Broker::embedded();
    let bootstrap = broker.bootstrap();
    let relay = relay(&database, &bootstrap);
    let refused = relay.start(&["run", "--debezium", CONNECTOR]).outcome();
    assert_eq!(refused.status.code(), Some(78), "{:?}", refused.log);
    let imported = relay.start(&["import", "debezium", CONNECTOR]).outcome();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("imported.toml");
    std::fs::write(&file, imported.stdout).unwrap();
    let set_up = relay.start(&["setup", "-c", file.to_str().unwrap()]).outcome();
    assert!(set_up.status.success(), "{:?}", set_up.log);
    let mut running = relay.start(&["run", "--debezium", CONNECTOR]);
    running.wait_for_log("\"streaming\"");
    insert(&database, "OrderPlaced", 1..=3);
    support::wait_for("records", || (records(&bootstrap).len() == 3).then_some(()));
    running.stop();
    let slots = "SELECT string_agg(slot_name, ',') FROM pg_replication_slots";
    assert_eq!(database.sql().value(slots), "debezium");
}
