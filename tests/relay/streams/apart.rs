//! A stream that fails leaves the others alone, and goes on by itself once it is repaired.

use super::{file_of, relay, stages, start};
use crate::operate::Desk;
use crate::stage::Stage;
use crate::trial::DELIVERIES;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::{kafka, postgres, topic, wait_for};

/// Two databases; one loses its slot while rows of the other flow, the process is killed and started again.
#[test]
fn g1_g2_g6_a_lost_slot_is_told_by_name_and_the_other_stream_loses_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let streams = stages(postgres::installed(), &kafka.bootstrap(), &["kept", "lost"]);
        let [(_, kept), (_, lost)] = &streams[..] else { panic!("two") };
        for stage in [kept, lost] {
            topic::create(&kafka.bootstrap(), &stage.topic("A"), 4, &[]);
            topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 1, &[]);
        }
        let desk = Desk::new();
        desk.write(&file_of(&format!("[kafka]\ndelivery = \"{delivery}\""), &streams));
        let relay = relay(&streams).allow_log("");
        if delivery == "exactly_once" {
            for name in ["kept", "lost"] {
                let words = ["adopt", "--execute", "--only", name];
                let outcome = start(&relay, &desk.file(), &words).outcome();
                assert!(outcome.status.success(), "{outcome:?}");
            }
        }
        let oracle = kept.oracle();
        let (mut running, face) = run(&relay, &desk);
        face.wait_ready(200);
        kept.insert("A", 50);
        lost.insert("A", 50);
        kept.wait_for_records(50);
        lost.wait_for_records(50);
        lost.wait_acknowledged(lost.log_end());

        drop_slot(lost);
        let line = running.wait_for_log("this stream has failed");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["stream"], "lost", "{line}");
        assert_told(&face);
        kept.insert("A", 50);
        kept.wait_for_records(100);

        running.kill();
        kept.insert("A", 50);
        let (mut running, face) = run(&relay, &desk);
        running.wait_for_log("this stream has failed");
        kept.insert("A", 50);
        kept.wait_for_records(200);
        if delivery == "at_least_once" {
            lost.create_slot();
            lost.insert("A", 20);
            lost.wait_for_records(70);
            face.wait_ready(200);
            lost.wait_acknowledged(lost.log_end());
        }
        kept.wait_acknowledged(kept.log_end());
        running.signal(rustix::process::Signal::TERM);
        let outcome = running.outcome();
        assert_eq!(outcome.status.success(), delivery == "at_least_once", "{outcome:?}");
        let verdict = kept.verdict(&oracle, &[]);
        match delivery {
            "exactly_once" => verdict.assert_exactly_once(),
            _ => verdict.assert_at_least_once(),
        }
        assert_eq!(verdict.committed, 200);
    }
}

/// Takes the slot from the relay that reads it.
fn drop_slot(stage: &Stage) {
    let slot = stage.slot();
    wait_for("the slot to be dropped", || {
        let sql = stage.sql();
        let _ = sql.try_run(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        ));
        sql.try_run(&format!("SELECT pg_drop_replication_slot('{slot}')")).ok()
    });
}

/// Probes, metrics and the page say which stream has failed, and why.
fn assert_told(face: &RelayHttp) {
    let health = face.wait_ready(503);
    let told = health["checks"][0]["detail"].as_str().unwrap();
    assert!(told.contains("1 of 2 streams") && told.contains("`lost`: failed"), "{told}");
    assert_eq!(face.probe("/readyz?stream=kept").0, 200);
    assert_eq!(face.probe("/readyz?stream=lost").0, 503);
    assert_eq!((face.get("/livez").0, face.get("/readyz?stream=x").0), (200, 404));
    assert_eq!(face.count("postrider_ready{stream=\"kept\"}"), Some(1));
    assert_eq!(face.count("postrider_ready{stream=\"lost\"}"), Some(0));
    assert!(face.count("process_resident_memory_bytes").unwrap() > 0);
    assert!(face.get("/").1.contains("lost: failed, not ready"));
}

fn run(relay: &Relay, desk: &Desk) -> (Running, RelayHttp) {
    let mut running = start(relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    (running, face)
}

/// With none left that runs, the process ends with the first failure, and says what failed of each.
#[test]
fn a_process_of_which_every_stream_has_failed_ends() {
    let cluster = postgres::installed();
    let streams = stages(cluster, "127.0.0.1:1", &["one", "two"]);
    let desk = Desk::new();
    desk.write(&file_of("[source]\npublication = \"nowhere\"", &streams));
    let outcome = start(&relay(&streams), &desk.file(), &["run"]).outcome();
    assert_eq!(outcome.status.code(), Some(70), "{outcome:?}");
    for name in ["one", "two"] {
        let told = format!("stream `{name}`: ");
        assert!(outcome.log.iter().any(|line| line.contains(&told)), "{outcome:?}");
    }
}
