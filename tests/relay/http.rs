//! What the HTTP face says of a running relay.

use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;

use crate::delivery::idle::{ALL, impatient};
use crate::stage::Stage;
use support::broker::take_down;
use support::relay_http::RelayHttp;
use support::{postgres, wait_for};

const CONFIRMED: &str = "postrider_records_confirmed_total";

#[test]
fn metrics_and_probes_tell_the_truth() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "http");
    let relay = stage.relay().expect_log("became a dead letter").expect_log("trying again");
    let mut running = impatient(relay).allow_log("cannot reach Kafka").run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    assert_eq!(face.probe("/livez").0, 200);
    let (_, health) = face.probe("/readyz");
    assert_eq!((&health["state"], &health["role"]), (&"streaming".into(), &"active".into()));

    stage.insert("A", 10);
    stage.insert("A", 4);
    stage.insert("B", 5);
    stage.insert("not a topic", 2);
    let records = |topic: &str, result: &str| {
        let topic = stage.topic(topic);
        format!("postrider_records_total{{topic=\"{topic}\",result=\"{result}\"}}")
    };
    face.wait_count(&records("A", "sent"), 14);
    face.wait_count(&records("B", "sent"), 5);
    face.wait_count(&records("dead-letters", "dead_lettered"), 2);
    assert_eq!(face.count(&records("dead-letters", "sent")), Some(0));
    face.wait_count(CONFIRMED, 21);
    face.wait_count("postrider_rejections_total{reason=\"invalid_topic\"}", 2);
    face.wait_count("postrider_in_flight_records", 0);
    let slot = format!("{{slot_name=\"{}\"}}", stage.slot());
    face.wait_count(&format!("postrider_slot_active{slot}"), 1);
    assert_eq!(face.count("postrider_kafka_connected"), Some(1));
    let age = face.metric("postrider_oldest_unacknowledged_age_seconds").unwrap();
    assert!(age < f64::EPSILON, "{age}");
    // Four of ours; other tests' traffic settles no transaction here.
    assert_eq!(face.count("postrider_transactions_settled_total"), Some(4));
    assert_eq!(face.count("postrider_commit_to_confirm_seconds_count"), Some(4));
    let sum = face.metric("postrider_commit_to_confirm_seconds_sum").unwrap();
    assert!((0.0..20.0).contains(&sum), "{sum}");

    // A session that ended counts, and the totals go on; what Postgres was not told is sent again.
    stage.wait_acknowledged(stage.log_end());
    stage.sql().run(&format!("SELECT pg_terminate_backend({})", stage.slot_value("active_pid")));
    face.wait_count("postrider_restarts_total{reason=\"postgres\"}", 1);
    face.wait_ready(200);
    // What is acknowledged later makes the lag smaller, also between its sample and our look.
    let acknowledged = stage.acknowledged();
    // Of every key, or the records of a partition that is new to the producer go one by one.
    stage.insert("A", 10);
    face.wait_count(&records("A", "sent"), 24);
    face.wait_count(CONFIRMED, 31);

    take_down(&mock, ALL);
    stage.insert("A", 6);
    face.wait_count("postrider_in_flight_records", 6);
    // Sent, and not confirmed: that is the difference.
    face.wait_count(&records("A", "sent"), 30);
    assert_eq!(face.count(CONFIRMED), Some(31));
    face.wait_count("postrider_kafka_connected", 0);
    face.wait_metric("postrider_oldest_unacknowledged_age_seconds", |age| age > 0.5);
    face.wait_ready(503);
    assert_eq!(face.get("/livez").0, 200);
    stage.sql().run("CREATE TABLE noise AS SELECT generate_series(1, 50000) AS n");
    // The last sample may be from before the acknowledgement, of what others wrote while there was no session.
    let truth = || f64::from(u32::try_from(stage.log_end() - acknowledged).unwrap());
    face.wait_metric(&format!("postrider_slot_lag_bytes{slot}"), |lag| lag > 1e6 && lag <= truth());

    mock.broker_up(ALL).unwrap();
    face.wait_count(CONFIRMED, 37);
    face.wait_count("postrider_in_flight_records", 0);
    face.wait_ready(200);
    running.stop();
}

/// A session that ends takes nothing back: what waits grows older while the next one is tried, and the
/// slot's numbers are there.
#[test]
fn rows_that_wait_keep_their_age_across_sessions() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "age");
    let relay = stage.relay().expect_log("trying again").allow_log("BrokerTransportFailure");
    let mut running = relay.set("retry.initial", "2s").allow_log("cannot reach Kafka").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 1);
    face.wait_count(CONFIRMED, 1);
    take_down(&mock, ALL);
    stage.insert("A", 6);
    let age = "postrider_oldest_unacknowledged_age_seconds";
    let before = face.wait_metric(age, |age| age > 0.5);
    stage.sql().run(&format!("SELECT pg_terminate_backend({})", stage.slot_value("active_pid")));
    running.wait_for_log("trying again");
    let slot = format!("{{slot_name=\"{}\"}}", stage.slot());
    let retained = format!("postrider_slot_retained_wal_bytes{slot}");
    let active = format!("postrider_slot_active{slot}");
    wait_for("the next session", || {
        let now = face.metric(age).unwrap();
        assert!(now >= before, "{now} s, and it was {before} s");
        assert!(face.metric(&retained).is_some(), "the slot is looked at");
        let ended = face.count("postrider_restarts_total{reason=\"postgres\"}") == Some(1);
        (ended && face.count(&active) == Some(1)).then_some(())
    });
    mock.broker_up(ALL).unwrap();
    face.wait_metric(age, |age| age < f64::EPSILON);
    running.stop();
}

#[test]
fn silent_connections_keep_the_relay_neither_from_its_brokers_nor_from_probes() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "silent_clients");
    let relay = stage.relay().after("ulimit -n 256").expect_log("cannot reach Kafka");
    let relay = relay.allow_log("BrokerTransportFailure");
    let mut running = impatient(relay).run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let silent: Vec<_> = (0..300).map(|_| face.silent()).collect();
    let asked = Instant::now();
    assert_eq!(face.probe("/livez").0, 200);
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    take_down(&mock, ALL);
    running.wait_for_log("cannot reach Kafka");
    stage.insert("A", 10);
    mock.broker_up(ALL).unwrap();
    stage.wait_for_records(10);
    assert_eq!(face.probe("/livez").0, 200);
    drop(silent);
    running.stop();
}
