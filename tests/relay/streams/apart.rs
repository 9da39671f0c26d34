//! A stream that fails leaves the others alone. It goes on by itself after what may pass, and stays failed where a human is
//! needed.

use std::time::Duration;

use super::{drop_slot, file_of, relay, stages, start};
use crate::operate::Desk;
use crate::trial::DELIVERIES;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::wait::stays;
use support::{kafka, postgres, topic};

/// More than the pause after which a stream that has failed is begun anew.
const PAUSES: Duration = Duration::from_secs(6);

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
        assert!(line["help"].as_str().unwrap().contains(" --stream lost`"), "{line}");
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
            // What a run has refused it does not begin anew, whatever it would find then.
            lost.create_slot();
            lost.insert("A", 20);
            stays("the stream has failed", PAUSES, || face.probe("/readyz?stream=lost").0 == 503);
            assert_eq!(face.get("/livez").0, 200);
            assert_eq!(lost.records().len(), 50);
        }
        kept.wait_acknowledged(kept.log_end());
        running.signal(rustix::process::Signal::TERM);
        let outcome = running.outcome();
        assert!(!outcome.status.success(), "{outcome:?}");
        if delivery == "at_least_once" {
            let (running, face) = run(&relay, &desk);
            lost.wait_for_records(70);
            face.wait_ready(200);
            lost.wait_acknowledged(lost.log_end());
            running.stop();
        }
        let verdict = kept.verdict(&oracle, &[]);
        match delivery {
            "exactly_once" => verdict.assert_exactly_once(),
            _ => verdict.assert_at_least_once(),
        }
        assert_eq!(verdict.committed, 200);
    }
}

/// One gives up on a database that is closed, is begun anew after a pause, and goes on once the database is open.
#[test]
fn g8_a_stream_that_gave_up_on_its_database_goes_on_by_itself() {
    let Some(kafka) = kafka::shared() else { return };
    let streams = stages(postgres::installed(), &kafka.bootstrap(), &["open", "closed"]);
    let [(_, open), (_, closed)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    let text = file_of("", &streams);
    desk.write(&text.replace("[retry]\n", "[retry]\ngive_up_after = \"10s\"\n"));
    let relay = relay(&streams).allow_log("");
    let (mut running, face) = run(&relay, &desk);
    face.wait_ready(200);
    let (outside, name) = (open.sql(), closed.slot());
    outside.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
    outside.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    ));
    running.wait_for_log("this stream has failed");
    assert_eq!(face.get("/livez").0, 200);
    open.insert("A", 50);
    open.wait_for_records(50);
    outside.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"));
    closed.insert("A", 20);
    closed.wait_for_records(20);
    face.wait_ready(200);
    running.stop();
}

/// Probes, metrics and the page say which stream has failed, and why.
fn assert_told(face: &RelayHttp) {
    let health = face.wait_ready(503);
    let told = health["checks"][0]["detail"].as_str().unwrap();
    assert!(told.contains("1 of 2 streams") && told.contains("`lost`: failed"), "{told}");
    assert_eq!(
        (face.probe("/readyz?stream=kept").0, face.probe("/readyz?streams=any").0),
        (200, 200)
    );
    assert_eq!(face.probe("/readyz?stream=lost").0, 503);
    assert_eq!((face.get("/livez").0, face.get("/readyz?stream=x").0), (200, 404));
    assert_eq!(face.count("postrider_ready{stream=\"kept\"}"), Some(1));
    assert_eq!(face.count("postrider_ready{stream=\"lost\"}"), Some(0));
    let (_, of_one) = face.get("/metrics?stream=kept");
    assert!(of_one.contains("stream=\"kept\"") && !of_one.contains("stream=\"lost\""));
    assert_eq!(face.get("/metrics?stream=x").0, 404);
    assert!(face.count("process_resident_memory_bytes").unwrap() > 0);
    let lines: serde_json::Value = serde_json::from_str(&face.get("/api/v1/streams").1).unwrap();
    assert_eq!((&lines[1]["name"], &lines[1]["condition"]), (&"lost".into(), &"not ready".into()));
    let status = &lines[1]["status"];
    assert_eq!(
        (&status["level"], &status["headline"]),
        (&"failed".into(), &"Stopped by an error".into())
    );
    for told in [told, status["cause"].as_str().unwrap()] {
        assert!(told.contains("stays so until `postrider ctl resume --stream lost`"), "{told}");
    }
    assert_eq!((face.get("/api/v1/state").0, face.get("/api/v1/state?stream=x").0), (400, 404));
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
