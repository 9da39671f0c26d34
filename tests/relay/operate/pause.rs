//! A relay that is paused.

use std::time::Duration;

use super::{Desk, ctl};
use crate::poll::{self, Scene};
use crate::trial::{DELIVERIES, TOPIC, Trial};
use support::broker::Broker;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::wait::stays;
use support::{kafka, postgres, wait_for};

/// Longer than the server's patience with a relay that says nothing, 3 s here, by more than twice.
const LONG: Duration = Duration::from_secs(8);

#[test]
fn g1_g6_a_pause_keeps_the_slot_and_nothing_else_happens_until_it_ends() {
    for delivery in DELIVERIES {
        let trial = Trial::new(postgres::installed(), "pause", delivery);
        let stage = &trial.stage;
        let slot = stage.slot();
        stage.sql().run(&format!("ALTER DATABASE {slot} SET wal_sender_timeout = '3s'"));
        let desk = Desk::new();
        let relay = desk.controlled(trial.relay()).expect_log("trying again");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("streaming");
        stage.insert(TOPIC, 10);
        stage.wait_for_records(10);
        stage.wait_acknowledged(stage.log_end());

        let (code, status) = ctl(&relay, &["pause"]);
        assert_eq!((code, &status["paused"]), (0, &true.into()), "{status}");
        running.wait_for_log("paused by the control API");
        // It holds over sessions.
        let before = stage.slot_value("active_pid");
        stage.sql().run(&format!("SELECT pg_terminate_backend({before})"));
        running.wait_for_log("streaming");
        assert_ne!(stage.slot_value("active_pid"), before);
        // The new session has a new client of Kafka, which no broker has answered at first.
        face.wait_ready(200);
        let (acknowledged, holder) = (stage.acknowledged(), stage.slot_value("active_pid"));
        // More than the sockets between the server and the relay hold.
        for _ in 0..20 {
            stage.insert(TOPIC, 2_000);
        }
        stays("paused", LONG, || {
            let (status, health) = face.probe("/readyz");
            let text = health.to_string();
            assert!(status == 200 && text.contains("paused since"), "{text}");
            assert!(text.contains("WAL is retained"), "{text}");
            assert_eq!(face.probe("/readyz?role=active").0, 503);
            assert_eq!(face.count("postrider_paused"), Some(1));
            assert_eq!(stage.records().len(), 10);
            stage.acknowledged() == acknowledged && stage.slot_value("active_pid") == holder
        });
        assert_eq!(ctl(&relay, &["status"]).1["paused"], true);
        says_that_it_is_paused(&relay, &face);

        assert_eq!(ctl(&relay, &["resume"]).0, 0);
        stage.wait_acknowledged(stage.log_end());
        stage.wait_for_records(40_010);
        assert_eq!(face.count("postrider_paused"), Some(0));
        face.wait_ready(200);
        assert_eq!(face.probe("/readyz?role=active").0, 200);
        running.stop();
        trial.assert_kept();
    }
}

/// A pause that was forgotten is found by whoever looks: nothing says that no row waits.
fn says_that_it_is_paused(relay: &Relay, face: &RelayHttp) {
    let asked = relay.clone().set("http.bind", face.address());
    let told = |words: &[&str]| {
        let outcome = asked.start(words).outcome();
        (outcome.status.code().unwrap(), outcome.stdout)
    };
    let (code, text) = told(&["lag", "--max-age", "1h"]);
    assert!(code == 1 && text.contains("age unknown: the relay is paused since"), "{text}");
    assert_eq!(told(&["lag"]).0, 0);
    let (code, text) = told(&["status"]);
    assert!(code == 1 && text.contains("paused since"), "{text}");
    let (code, text) = told(&["doctor", "--only", "relay", "--deny-warnings"]);
    assert!(code == 1 && text.contains("fix: postrider ctl resume"), "{text}");
}

/// A paused relay can be stopped, and delivers nothing more for that.
#[test]
fn g8_a_pause_holds_up_no_stop() {
    let broker = Broker::best();
    let stage = crate::stage::Stage::new(postgres::installed(), &broker.bootstrap(), "pause_stop");
    let desk = Desk::new();
    let relay = desk.controlled(stage.relay());
    let mut running = relay.run();
    running.wait_for_log("streaming");
    stage.insert(TOPIC, 1);
    stage.wait_for_records(1);
    assert_eq!(ctl(&relay, &["pause"]).0, 0);
    running.wait_for_log("paused");
    stage.insert(TOPIC, 5);
    let (code, answer) = ctl(&relay, &["drain", "--wait"]);
    assert_eq!((code, &answer["draining"]), (0, &true.into()), "{answer}");
    assert!(running.wait().success());
    assert_eq!(stage.records().len(), 1);
    let mut running = relay.run();
    running.wait_for_log("streaming");
    // A pause ends with its process.
    stage.wait_for_records(6);
    running.stop();
}

/// Rows that are polled are locked: a pause gives them back.
#[test]
fn g1_a_pause_of_a_relay_that_polls_holds_no_transaction_open() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "pause_poll", &[("source.poll.workers", "2")]);
    let stage = &scene.stage;
    let desk = Desk::new();
    let relay = desk.controlled(scene.relay.clone());
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("polling");
    poll::insert(stage, 0..50);
    scene.wait_pending("processed_at IS NULL", 0);
    let (code, status) = ctl(&relay, &["pause"]);
    assert!(code == 0 && !status["notes"].to_string().contains("WAL"), "{status}");
    running.wait_for_log("rows wait in their tables");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
    wait_for("the sessions to end", || (stage.sql().value(open) == "0").then_some(()));
    poll::insert(stage, 50..100);
    stays("paused", Duration::from_secs(5), || {
        assert_eq!(stage.sql().value(open), "0");
        face.probe("/readyz").0 == 200 && stage.records().len() == 50
    });
    assert_eq!(ctl(&relay, &["resume"]).0, 0);
    scene.wait_pending("processed_at IS NULL", 0);
    stage.wait_for_records(100);
    assert_eq!(ctl(&relay, &["pause"]).0, 0);
    running.stop();
}
