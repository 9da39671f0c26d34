//! `/readyz` when rows stand still: it turns red within a minute, and its body names the cause and the remedy.

use std::time::Duration;

use postrider::sandbox::postgres::Stop;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::delivery::idle::ALL;
use crate::stage::Stage;
use support::broker::take_down;
use support::freezing_proxy::FreezingProxy;
use support::postgres;
use support::relay_http::RelayHttp;
use support::wait::{stays, within};

/// Within this it has to be red.
const LIMIT: Duration = Duration::from_mins(1);

/// What the check of this name says once the relay is not ready for it.
fn red(face: &RelayHttp, name: &str) -> String {
    let look = || {
        let (status, health) = face.probe("/readyz");
        let checks = health["checks"].as_array().unwrap().clone();
        let failing = |check: &&Value| check["name"] == name && check["ok"] == false;
        let found = checks.iter().find(failing)?;
        assert_eq!(status, 503, "{health}");
        Some(found["detail"].as_str().unwrap().to_owned())
    };
    let detail =
        within(LIMIT, look).unwrap_or_else(|| panic!("green: {:?}", face.probe("/readyz")));
    // What alerts go by says the same.
    face.wait_count("postrider_ready", 0);
    face.wait_count(&format!("postrider_ready_check{{check=\"{name}\"}}"), 0);
    detail
}

/// Postgres then sends nothing and answers as if there were nothing to send.
#[test]
fn a_standby_that_postgres_waits_for_is_named_while_it_is_away() {
    let Some(options) = postgres::eighteen_options() else { return };
    let mock = MockCluster::new(1).unwrap();
    let mut primary = postgres::start(&options);
    let stage = Stage::migrated(&primary, &mock.bootstrap_servers(), "awaited");
    let slot = stage.slot();
    stage.sql().run(&format!(
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)"
    ));
    let mut standby = postgres::standby_of(&mut primary, &options);
    let mut running = stage.relay().allow_log("standby").run();
    stage.insert("A", 10);
    stage.wait_for_records(10);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    standby.stop(Stop::Kill).unwrap();
    stage.insert("A", 10);
    let told = running.wait_for_log("`standby`, which no standby reads");
    assert!(told.contains("SET synchronized_standby_slots"), "{told}");
    let detail = red(&face, "slot");
    assert!(detail.contains("synchronized_standby_slots"), "{detail}");
    standby.start_again().unwrap();
    stage.wait_for_records(20);
    running.wait_for_log("no longer waiting for a standby");
    face.wait_ready(200);
    running.stop();
}

#[test]
fn a_broker_that_accepts_and_never_confirms_is_named() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ready_unconfirmed");
    let mut running = stage.relay().allow_log("").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 10);
    stage.wait_for_records(10);
    face.wait_ready(200);
    face.wait_count("postrider_ready", 1);
    assert_eq!(face.count("postrider_restarts_total{reason=\"kafka\"}"), Some(0));
    mock.broker_round_trip_time(ALL, Duration::from_hours(1)).unwrap();
    stage.insert("A", 10);
    let detail = red(&face, "kafka");
    assert!(detail.contains("10 records are in flight"), "{detail}");
    assert!(detail.contains("kafka-topics.sh"), "{detail}");
    running.kill();
}

/// All others are delivered meanwhile. Exactly once, the Kafka transaction does not end for it.
#[test]
fn a_topic_that_stores_nothing_while_others_do_is_noticed() {
    for delivery in ["at_least_once", "exactly_once"] {
        let mock = MockCluster::new(2).unwrap();
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ready_stuck");
        let progress = format!("postrider.progress.{}", stage.slot());
        // Another broker leads the one topic, and is down.
        for (name, leader) in [(stage.topic("A"), 1), (progress, 1), (stage.topic("B"), 2)] {
            mock.create_topic(&name, 1, 1).unwrap();
            mock.partition_leader(&name, 0, Some(leader)).unwrap();
        }
        mock.coordinator(MockCoordinator::Transaction(stage.transactional_id()), 1).unwrap();
        let relay = stage.relay().set("kafka.delivery", delivery).allow_log("");
        let mut running = relay.property("reconnect.backoff.max.ms", "300").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        take_down(&mock, 2);
        stage.insert("B", 1);
        let detail = within(LIMIT, || {
            stage.insert("A", 1);
            let (_, health) = face.probe("/readyz");
            let checks = health["checks"].as_array().unwrap().clone();
            let failing = |check: &&Value| check["name"] == "kafka" && check["ok"] == false;
            Some(checks.iter().find(failing)?["detail"].as_str().unwrap().to_owned())
        });
        let detail = detail.unwrap_or_else(|| panic!("green: {:?}", face.probe("/readyz")));
        assert!(detail.contains("oldest transaction"), "{delivery}: {detail}");
        assert!(detail.contains("under-min-isr"), "{delivery}: {detail}");
        mock.broker_up(2).unwrap();
        face.wait_ready(200);
        running.kill();
    }
}

#[test]
fn a_server_that_falls_silent_is_named() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ready_silent");
    let proxy = FreezingProxy::start(&stage.database.address());
    let mut running = stage.relay().set("source.url", &proxy.url()).allow_log("").run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    proxy.hold(support::freezing_proxy::Kind::Stream);
    proxy.freeze();
    let detail = red(&face, "state");
    assert!(detail.starts_with("retrying: ") || detail == "starting", "{detail}");
    let told = within(LIMIT, || Some(red(&face, "state")).filter(|detail| detail.contains(": ")));
    assert!(told.is_some(), "{detail}");
    running.kill();
}

/// The relay's own walsender holds the slot after the session has given it up: nobody else delivers, and a relay that
/// called itself a standby would be ready.
#[test]
fn a_slot_that_is_held_for_a_session_of_before_is_no_standby() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ready_left");
    let slot = stage.slot();
    stage.sql().run(&format!("ALTER DATABASE {slot} SET wal_sender_timeout = '6s'"));
    let mut running = stage.relay().allow_log("").run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let walsender = Pid::from_raw(stage.slot_value("active_pid").parse().unwrap()).unwrap();
    kill_process(walsender, Signal::STOP).unwrap();
    let process = format!("process {} of the server", walsender.as_raw_nonzero());
    let named = || Some(red(&face, "state")).filter(|detail| detail.contains(&process));
    let named = within(LIMIT, named);
    stays("not ready", Duration::from_secs(3), || face.probe("/readyz").0 == 503);
    kill_process(walsender, Signal::CONT).unwrap();
    assert!(named.is_some_and(|detail| detail.contains("pg_terminate_backend")));
    face.wait_ready(200);
    running.stop();
}
