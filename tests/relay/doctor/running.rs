//! Relays that run, hang, are gone or are not ready, and servers and tables that hold a look up.

use std::time::{Duration, Instant};

use postrider::sandbox::port;
use rdkafka::mocking::MockCluster;
use rustix::process::Signal;
use serde_json::Value;

use super::Report;
use crate::delivery::idle::ALL;
use crate::stage::Stage;
use support::broker::{Broker, take_down};
use support::postgres;
use support::relay::{Outcome, Relay};
use support::wait::{wait_for, wait_until};

/// A relay whose metrics have a port that others know.
fn with_port(stage: &Stage) -> Relay {
    stage.relay().set("http.bind", &format!("127.0.0.1:{}", port::free().unwrap()))
}

fn told(relay: &Relay, arguments: &[&str]) -> (String, Option<i32>) {
    let Outcome { status, stdout, log } = relay.start(arguments).outcome();
    (stdout + &log.join("\n"), status.code())
}

fn lag(relay: &Relay, limit: &str) -> (Value, Option<i32>) {
    let arguments = ["lag", "--max-age", limit, "--output", "json"];
    let Outcome { status, stdout, .. } = relay.start(&arguments).outcome();
    (serde_json::from_str(&stdout).unwrap(), status.code())
}

/// One relay is stopped in the middle, and the other waits for its slot: the standby knows nothing of what waits.
#[test]
fn a_relay_that_hangs_is_found_beside_its_standby() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_hangs");
    let (first, second) = (with_port(&stage), with_port(&stage));
    let mut active = first.run();
    active.wait_for_log("streaming");
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    // What a relay tells of itself it notes a few times a second.
    wait_until("a relay that is ready", || {
        let report = Report::asked(&first, &["--only", "relay", "--only", "slot.reader"]);
        let outcomes = (report.status("relay.ready"), report.status("slot.reader"), report.exit);
        outcomes == ("pass", "pass", Some(0))
    });
    let report = Report::asked(&first, &["--only", "http"]);
    assert_eq!((report.status("http.port"), report.exit), ("pass", Some(0)));
    wait_until("an age that is known", || lag(&first, "1h").1 == Some(0));

    let mut standby = second.run();
    standby.wait_for_log("standby");
    wait_until("the standby to answer", || told(&second, &["status"]).0.contains("standby"));
    active.signal(Signal::STOP);
    active.wait_frozen();
    stage.insert("A", 100);
    let report = Report::asked(&first, &["--only", "relay"]);
    report.demands("relay.ready", "fail", "SELECT pg_terminate_backend(");
    let (age, exit) = lag(&first, "1h");
    assert_eq!((exit, &age["oldest_unacknowledged_seconds"]), (Some(1), &Value::Null), "{age}");
    assert!(age["age_unknown"].as_str().unwrap().contains("has not answered"), "{age}");
    let (age, exit) = lag(&second, "1h");
    assert_eq!((exit, &age["oldest_unacknowledged_seconds"]), (Some(1), &Value::Null), "{age}");
    let (shown, exit) = told(&second, &["lag", "--max-age", "1h"]);
    assert!(shown.contains("age unknown") && exit == Some(1), "{shown}");
    let (shown, exit) = told(&first, &["status"]);
    assert!(shown.contains("has not answered") && exit == Some(1), "{shown}");
    let (shown, _) = told(&second, &["status"]);
    assert!(shown.contains("it does not read the slot"), "{shown}");
    // What is printed ends it, and the standby takes over.
    stage.sql().run(report.fix("relay.ready"));
    wait_until("the standby to take over", || {
        Report::asked(&second, &["--only", "relay"]).exit == Some(0)
            && lag(&second, "1h").1 == Some(0)
    });
    active.kill();
    standby.stop();
}

#[test]
fn a_relay_that_is_gone_or_of_another_slot_is_told() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_gone");
    let relay = with_port(&stage);
    let mut running = relay.run();
    running.wait_for_log("streaming");
    let elsewhere = with_port(&stage);
    let report = Report::asked(&elsewhere, &["--only", "relay", "--only", "slot"]);
    report.demands("relay.ready", "warn", "SELECT pg_terminate_backend(");
    assert_eq!(report.status("slot.reader"), "pass");
    let other = relay.clone().set("source.slot", "some_other_slot");
    let report = Report::asked(&other, &["--only", "relay"]);
    let finding = report.find("relay.ready")["finding"].as_str().unwrap().to_owned();
    assert!(finding.contains("is not of slot `some_other_slot`"), "{finding}");
    running.kill();
    stage.insert("A", 500);
    wait_until("the server to notice", || stage.slot_value("active") == "f");
    let report = Report::asked(&relay, &["--only", "relay", "--only", "slot", "--deny-warnings"]);
    assert_eq!(report.exit, Some(1));
    report.demands("relay.ready", "warn", "postrider run");
    report.demands("slot.reader", "warn", "postrider run");
    assert_eq!(told(&relay, &["status"]).1, Some(1));
}

#[test]
fn a_relay_that_is_not_ready_fails_with_its_reason_and_an_old_row_exceeds_the_limit() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "doctor_not_ready");
    let relay = with_port(&stage);
    let mut running = relay.clone().allow_log("").run();
    running.wait_for_log("streaming");
    stage.strand(&mock, 10);
    let old = wait_for("a row that is too old", || {
        let (age, exit) = lag(&relay, "1s");
        (exit == Some(1) && age["oldest_unacknowledged_seconds"].is_number()).then_some(age)
    });
    assert!(old["oldest_unacknowledged_seconds"].as_f64().unwrap() > 1.0, "{old}");
    assert_eq!(lag(&relay, "1h").1, Some(0));
    let report = wait_for("a relay that is not ready", || {
        let report = Report::asked(&relay, &["--only", "relay"]);
        (report.status("relay.ready") == "fail").then_some(report)
    });
    let finding = report.find("relay.ready")["finding"].as_str().unwrap().to_owned();
    assert!(finding.contains("broker") && report.exit == Some(1), "{finding}");
    let (shown, exit) = told(&relay, &["status"]);
    assert!(exit == Some(1) && shown.contains("roker") && !shown.contains("BROKER"), "{shown}");
    take_down(&mock, ALL);
    running.kill();
}

/// As VACUUM FULL and most migrations do.
#[test]
fn a_table_that_somebody_locks_is_told_and_holds_nothing_up() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_locked");
    stage.insert("A", 3);
    let holder = stage.sql();
    holder.run("BEGIN");
    holder.run("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
    let pid = holder.value("SELECT pg_backend_pid()");
    let begun = Instant::now();
    let report = Report::of(&stage.relay());
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    report.demands("table.locked", "warn", &format!("SELECT pg_terminate_backend({pid});"));
    assert_eq!(report.status("kafka.reachable"), "pass");
    assert_eq!(report.status("rows.deliverable"), "unknown");
    let (shown, _) = told(&stage.relay(), &["status"]);
    assert!(shown.contains("not acknowledged"), "{shown}");
    stage.sql().run(report.fix("table.locked"));
    wait_until("the lock to be gone", || {
        Report::asked(&stage.relay(), &["--only", "table.locked"]).status("table.locked") == "pass"
    });
}

#[test]
fn a_slot_that_is_lost_is_told_by_each_command() {
    let options =
        postrider::sandbox::postgres::Options::default().with("max_slot_wal_keep_size", "1MB");
    let cluster = postgres::start(&options);
    let broker = Broker::embedded();
    let stage = Stage::new(&cluster, &broker.bootstrap(), "doctor_lost");
    stage.insert("A", 3);
    let report = Report::of(&stage.relay());
    report.demands("slot.limit", "warn", "ALTER SYSTEM SET max_slot_wal_keep_size");
    wait_until("the slot to be lost", || {
        stage.sql().run("SELECT pg_logical_emit_message(false, '', 'x')");
        stage.sql().run("SELECT pg_switch_wal()");
        stage.sql().run("CHECKPOINT");
        stage.slot_value("wal_status") == "lost"
    });
    let report = Report::of(&stage.relay());
    report.demands("slot.alive", "fail", "postrider repair");
    for id in ["slot.lag", "slot.retained", "slot.reserved", "slot.reader"] {
        assert_eq!(report.status(id), "unknown", "{id}");
    }
    for arguments in [&["lag"][..], &["lag", "--max", "100GiB"], &["status"]] {
        let (shown, exit) = told(&stage.relay(), arguments);
        assert!(shown.contains("is lost") && exit == Some(1), "{shown}");
    }
}
