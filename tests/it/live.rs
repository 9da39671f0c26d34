//! A relay at work while orders flow, and everything goes wrong that can: its own death, a cut
//! connection, servers that stall, die or stop. After each run the judge compares the topics with
//! PostgreSQL's own account, and every status update with what the topics held when it was sent.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Options, Stop};

use crate::support::broker::Broker;
use crate::support::relay::Relay;
use crate::support::road::Road;
use crate::support::{kafka, postgres, wait_for};

/// What a relay logs when it has a stream.
const STREAMING: &str = "\"streaming\"";
/// What it logs when it begins again after a transient failure.
const TRYING_AGAIN: &str = "trying again";

#[test]
fn g1_g2_every_row_arrives_once_and_in_order_while_orders_flow() {
    for cluster in postgres::versions() {
        for broker in Broker::all() {
            eprintln!("PostgreSQL {}, {}", cluster.version(), broker.name());
            let road = Road::on(cluster, &broker, "flow");
            let mut relay = road.relay().run();
            relay.wait_for_log(STREAMING);
            road.load(2_000, 1_000);
            road.await_acknowledged();
            relay.stop();
            let verdict = road.verdict();
            verdict.assert_exactly_once();
            assert_eq!((verdict.committed, verdict.delivered), (2_000, 2_000));
            road.close();
        }
    }
}

/// A partition that has just come into being may refuse a producer's first batch and take a second
/// one: Kafka takes any number from a producer it has not met. So no second one is under way.
#[test]
fn g1_g2_topics_that_just_came_into_being_lose_neither_rows_nor_their_order() {
    let Some(kafka) = kafka::shared() else { return };
    for _ in 0..6 {
        let road = Road::build(postgres::installed(), &kafka.bootstrap(), "fresh");
        let mut relay = road.relay().allow_log(TRYING_AGAIN).run();
        relay.wait_for_log(STREAMING);
        road.load(300, 1_500);
        road.await_acknowledged();
        relay.stop();
        let verdict = road.verdict();
        assert!(verdict.lost.is_empty() && verdict.phantom.is_empty(), "{verdict:?}");
        assert!(verdict.out_of_order.is_empty(), "{verdict:?}");
        assert!(verdict.unsafe_acknowledgements.is_empty(), "{verdict:?}");
        road.close();
    }
}

#[test]
fn g5_an_idle_outbox_lets_the_slot_advance() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let road = Road::build(cluster, &broker.bootstrap(), "idle");
        let mut relay = road.relay().run();
        relay.wait_for_log(STREAMING);
        road.database.sql().run("CREATE TABLE noise AS SELECT generate_series(1, 10000) AS n");
        road.await_acknowledged();
        relay.stop();
        assert_eq!(road.records().len(), 0);
        road.verdict().assert_exactly_once();
        road.close();
    }
}

#[test]
fn g8_a_clean_stop_in_the_middle_leaves_nothing_unconfirmed() {
    for broker in Broker::all() {
        let road = Road::on(postgres::installed(), &broker, "drain");
        let mut load = road.start_load(3_000, 1_500);
        for _ in 0..3 {
            let mut relay = road.relay().run();
            relay.wait_for_log(STREAMING);
            std::thread::sleep(Duration::from_millis(300));
            relay.stop();
        }
        assert!(load.wait().unwrap().success());
        road.relay().run_once();
        let verdict = road.verdict();
        // Not even a repeat: what was sent was confirmed and acknowledged before the end.
        verdict.assert_exactly_once();
        assert_eq!(verdict.delivered, 3_000);
        road.close();
    }
}

#[test]
fn g1_g2_kill_9_of_the_relay_loses_nothing() {
    for broker in Broker::all() {
        let road = Road::on(postgres::installed(), &broker, "killed");
        let mut load = road.start_load(4_000, 1_500);
        for pause_ms in [50, 200, 350, 500] {
            // The slot may still be held by the connection of the one that was killed.
            let mut relay = road.relay().allow_log("standby").run();
            relay.wait_for_log(STREAMING);
            std::thread::sleep(Duration::from_millis(pause_ms));
            relay.kill();
        }
        assert!(load.wait().unwrap().success());
        road.relay().run_once();
        let verdict = road.verdict();
        verdict.assert_at_least_once();
        assert_eq!(verdict.delivered, 4_000);
        road.close();
    }
}

#[test]
fn g1_a_cut_connection_is_made_again_and_nothing_is_lost() {
    let broker = Broker::embedded();
    let road = Road::build(postgres::installed(), &broker.bootstrap(), "cut");
    let mut relay = road.relay().expect_log(TRYING_AGAIN).run();
    let mut load = road.start_load(3_000, 1_000);
    for _ in 0..3 {
        relay.wait_for_log(STREAMING);
        std::thread::sleep(Duration::from_millis(300));
        road.tap.cut();
    }
    relay.wait_for_log(STREAMING);
    assert!(load.wait().unwrap().success());
    road.await_acknowledged();
    relay.stop();
    let verdict = road.verdict();
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 3_000);
    road.close();
}

#[test]
fn g1_postgres_may_die_and_come_back() {
    let mut cluster = postgres::start(&Options::default());
    let broker = Broker::embedded();
    let road = Road::build(&cluster, &broker.bootstrap(), "postgres_dies");
    let mut relay = road.relay().expect_log(TRYING_AGAIN).run();
    for how in [Stop::Kill, Stop::Immediate] {
        relay.wait_for_log(STREAMING);
        road.load(500, 5_000);
        cluster.restart(how).unwrap();
    }
    relay.wait_for_log(STREAMING);
    road.load(500, 5_000);
    road.await_acknowledged();
    relay.stop();
    let verdict = road.verdict();
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 1_500);
}

#[test]
fn a_fast_stop_of_postgres_does_not_wait_for_the_relay() {
    for options in [Some(Options::default()), postgres::eighteen_options()].into_iter().flatten() {
        let mut cluster = postgres::start(&options);
        let broker = Broker::embedded();
        let road = Road::build(&cluster, &broker.bootstrap(), "fast_stop");
        let mut relay = road.relay().allow_log(TRYING_AGAIN).run();
        relay.wait_for_log(STREAMING);
        road.load(200, 5_000);
        cluster.begin_stop(Stop::Fast).unwrap();
        cluster.wait_stopped(Duration::from_secs(10)).unwrap();
        cluster.start_again().unwrap();
        relay.wait_for_log(STREAMING);
        road.load(200, 5_001);
        road.await_acknowledged();
        relay.stop();
        road.verdict().assert_at_least_once();
    }
}

#[test]
fn g1_a_broker_that_stalls_holds_back_the_acknowledgement() {
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    let road = Road::with_topics(postgres::installed(), &kafka.bootstrap(), "stalls");
    let mut relay = road.relay().allow_log("broker").run();
    relay.wait_for_log(STREAMING);
    road.load(100, 1_000);
    road.await_acknowledged();
    kafka.freeze_broker(0);
    // The wiretap asks the frozen broker too, so what is written now is looked at afterwards.
    road.load(500, 1_001);
    std::thread::sleep(Duration::from_secs(2));
    kafka.resume_broker(0);
    road.await_acknowledged();
    relay.stop();
    let verdict = road.verdict();
    verdict.assert_exactly_once();
    assert_eq!(verdict.delivered, 600);
    road.close();
}

#[test]
fn g1_g2_a_leader_may_die_under_load() {
    let options = kafka::Options { brokers: 3, ..kafka::Options::default() };
    let Some(mut kafka) = kafka::start(&options) else { return };
    let road = Road::with_topics(postgres::installed(), &kafka.bootstrap(), "leader_dies");
    let mut relay = road.relay().allow_log("broker").allow_log("Broker").run();
    relay.wait_for_log(STREAMING);
    let mut load = road.start_load(6_000, 1_000);
    for broker in 0..2 {
        std::thread::sleep(Duration::from_millis(700));
        kafka.kill_broker(broker);
        kafka.start_broker(broker);
    }
    assert!(load.wait().unwrap().success());
    road.await_acknowledged();
    relay.stop();
    let verdict = road.verdict();
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 6_000);
    road.close();
}

/// Promised are one second after a clean stop and two after a kill -9; other tests run beside this
/// one, so twice as much is allowed.
#[test]
fn a_second_relay_waits_and_takes_over() {
    let broker = Broker::embedded();
    let road = Road::build(postgres::installed(), &broker.bootstrap(), "standby");
    let standby = || {
        let mut relay = road.relay().run();
        relay.wait_for_log("standby");
        relay
    };
    let mut first = road.relay().run();
    first.wait_for_log(STREAMING);

    let mut second = standby();
    road.load(200, 2_000);
    first.stop();
    let since = Instant::now();
    second.wait_for_log(STREAMING);
    assert!(since.elapsed() < Duration::from_secs(2), "clean stop: {:?}", since.elapsed());

    let mut third = standby();
    road.load(200, 2_001);
    second.kill();
    let since = Instant::now();
    third.wait_for_log(STREAMING);
    assert!(since.elapsed() < Duration::from_secs(4), "kill -9: {:?}", since.elapsed());

    road.load(200, 2_002);
    road.await_acknowledged();
    third.stop();
    let verdict = road.verdict();
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 600);
    road.close();
}

#[test]
fn an_unauthorised_or_missing_topic_is_an_outage_and_loses_nothing() {
    let options = kafka::Options { sasl: true, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    let road = Road::with_topics(postgres::installed(), &kafka.bootstrap(), "unauthorised");
    let as_user = |relay: Relay, user: &str| {
        relay
            .set("kafka.brokers", &kafka.sasl_bootstrap())
            .property("security.protocol", "sasl_plaintext")
            .property("sasl.mechanism", "PLAIN")
            .property("sasl.username", user)
            .property("sasl.password", kafka::PASSWORD)
    };
    road.load(50, 1_000);
    let denied = as_user(road.relay(), kafka::DENIED_USER);
    let mut relay = denied.expect_log("uthoris").allow_log(TRYING_AGAIN).run();
    relay.wait_for_log("uthoris");
    relay.kill();
    assert_eq!(road.records().len(), 0);
    as_user(road.relay(), kafka::ALLOWED_USER).allow_log("standby").run_once();
    road.verdict().assert_exactly_once();
    road.close();
}

#[test]
fn a_half_written_order_is_never_seen() {
    let broker = Broker::embedded();
    let road = Road::build(postgres::installed(), &broker.bootstrap(), "open");
    let mut relay = road.relay().run();
    relay.wait_for_log(STREAMING);
    let insert = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                  VALUES (gen_random_uuid(), 'order', 'o-1', 'Placed', '{}')";
    let open = road.database.sql();
    open.run(&format!("BEGIN; {insert}"));
    road.database.sql().run(insert);
    wait_for("the committed row", || (road.records().len() == 1).then_some(()));
    open.run("COMMIT");
    wait_for("the other row", || (road.records().len() == 2).then_some(()));
    relay.stop();
    road.verdict().assert_exactly_once();
    road.close();
}
