//! Rows as they flow on a good day, to topics old and new.

use crate::load::{commit, prepare};
use crate::stage::Stage;
use support::broker::Broker;
use support::{kafka, postgres};

#[test]
fn g1_g2_every_row_arrives_once_and_in_order_while_orders_flow() {
    for cluster in postgres::versions() {
        for broker in Broker::all() {
            eprintln!("PostgreSQL {}, {}", cluster.version(), broker.name());
            let stage = Stage::new(cluster, &broker.bootstrap(), "flow");
            prepare(&stage, &broker);
            let (oracle, tap) = (stage.oracle(), stage.tap());
            let mut running = stage.relay_at(&tap.address()).run();
            running.wait_for_log("\"streaming\"");
            commit(&stage, 2_000, 1_000);
            stage.wait_acknowledged(stage.log_end());
            running.stop();
            let verdict = stage.verdict(&oracle, &tap.statuses());
            verdict.assert_exactly_once();
            assert_eq!((verdict.committed, verdict.delivered), (2_000, 2_000));
        }
    }
}

/// A partition that has just come into being may refuse a producer's first batch and take a second
/// one: Kafka takes any number from a producer it has not met. So no second one is under way.
#[test]
fn g1_g2_topics_that_just_came_into_being_lose_neither_rows_nor_their_order() {
    let Some(kafka) = kafka::shared() else { return };
    for _ in 0..6 {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "fresh");
        let (oracle, tap) = (stage.oracle(), stage.tap());
        // Brokers that are busy take longer to make a topic than rows wait for it.
        let relay = stage.relay_at(&tap.address()).allow_log("its rows become dead letters");
        let mut running =
            relay.allow_log("a row became a dead letter").allow_log("trying again").run();
        running.wait_for_log("\"streaming\"");
        commit(&stage, 300, 1_500);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &tap.statuses()).assert_at_least_once();
    }
}

#[test]
fn a_half_written_order_is_never_seen() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "open");
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let mut running = stage.relay_at(&tap.address()).run();
    running.wait_for_log("\"streaming\"");
    let open = stage.sql();
    open.run(
        "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', 'k', 'A', '{}')",
    );
    stage.insert("A", 1);
    stage.wait_for_records(1);
    assert_eq!(stage.records().len(), 1);
    open.run("COMMIT");
    stage.wait_for_records(2);
    running.stop();
    stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
}
