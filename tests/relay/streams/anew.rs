//! A failed stream restarts: by itself, on request, or with a changed configuration.

use std::time::Duration;

use serde_json::Value;

use super::{ctl, drop_slot, file_of, relay, stages, start};
use crate::operate::Desk;
use support::broker::Broker;
use support::relay_http::RelayHttp;
use support::wait::{stays, wait_until};
use support::{postgres, wait_for};

const FAILED: &str = "this stream has failed";

#[test]
fn a_stream_that_needs_a_human_begins_anew_when_it_is_told_to() {
    let broker = Broker::best();
    let streams = stages(postgres::installed(), &broker.bootstrap(), &["kept", "lost"]);
    let [(_, kept), (_, lost)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    desk.write(&file_of("", &streams));
    let relay = desk.controlled(relay(&streams).allow_log(""));
    let mut running = start(&relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let ctl = |words: &[&str]| ctl(&relay, &desk.file(), words);
    let (_, status) = ctl(&["status", "--only", "lost"]);
    assert_eq!(
        (&status["waits_for_resume"], &status["begins_anew_at"]),
        (&false.into(), &Value::Null)
    );

    drop_slot(lost);
    running.wait_for_log(FAILED);
    let (_, status) = ctl(&["status", "--only", "lost"]);
    assert_eq!(
        (&status["waits_for_resume"], &status["begins_anew_at"]),
        (&true.into(), &Value::Null)
    );
    let notes = status["notes"].to_string();
    assert!(notes.contains("stays so until `postrider ctl resume --stream lost`"), "{notes}");

    lost.create_slot();
    lost.insert("A", 5);
    // Other routes say nothing of a position that was refused.
    desk.write(&file_of("[route]\nid_header = \"event\"\n", &streams));
    assert_eq!(ctl(&["reload"]).0, 0);
    let is_failed = || face.probe("/readyz?stream=lost").0 == 503;
    stays("it has failed", Duration::from_secs(2), is_failed);
    let (code, other) = ctl(&["resume", "--only", "kept"]);
    assert_eq!((code, &other["begins_anew_at"]), (0, &Value::Null), "{other}");
    let (code, begun) = ctl(&["resume", "--only", "lost"]);
    assert!(code == 0 && begun["begins_anew_at"].is_string(), "{begun}");
    lost.wait_for_records(5);
    face.wait_ready(200);
    assert_eq!(ctl(&["status", "--only", "lost"]).1["waits_for_resume"], false);
    kept.insert("A", 5);
    kept.wait_for_records(5);
    running.stop();
}

/// Columns and routes are taken over by any stream, the rest by one that has failed.
#[test]
fn a_stream_that_has_failed_begins_anew_with_what_is_new_in_the_file() {
    let broker = Broker::best();
    for wrong in ["outbox.payload = \"nothing\"", "source.publication = \"nowhere\""] {
        let streams = stages(postgres::installed(), &broker.bootstrap(), &["right", "wrong"]);
        let [_, (_, stage)] = &streams[..] else { panic!("two") };
        let desk = Desk::new();
        let text = file_of("", &streams);
        desk.write(&format!("{text}{wrong}\n"));
        let relay = desk.controlled(relay(&streams).allow_log(""));
        let mut running = start(&relay, &desk.file(), &["run"]);
        let face = RelayHttp::of(&mut running);
        running.wait_for_log(FAILED);
        // The metric shows the WAL that the failed stream retains.
        let slot = stage.slot();
        face.wait_metric(
            &format!("postrider_slot_retained_wal_bytes{{stream=\"wrong\",slot_name=\"{slot}\"}}"),
            |bytes| bytes > 0.0,
        );
        stage.insert("A", 5);
        desk.write(&text);
        let (code, report) = ctl(&relay, &desk.file(), &["reload"]);
        assert_eq!((code, report["takes_restart"].to_string().as_str()), (0, "[]"), "{report}");
        stage.wait_for_records(5);
        face.wait_ready(200);
        // An unchanged configuration does not restart a stream.
        let (_, report) = ctl(&relay, &desk.file(), &["reload"]);
        assert_eq!(report["outcome"], "unchanged", "{report}");
        running.stop();
    }
}

/// A row that cannot be delivered waits on, whatever the next run fails with.
#[test]
fn rows_that_a_failed_stream_has_left_grow_older_over_its_runs() {
    let broker = Broker::best();
    let streams = stages(postgres::installed(), &broker.bootstrap(), &["first", "stopped"]);
    let [_, (_, stage)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    desk.write(&format!("{}route.rejected = \"stop\"\n", file_of("", &streams)));
    let relay = desk.controlled(relay(&streams).allow_log(""));
    let mut running = start(&relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    stage.insert("no topic", 1);
    running.wait_for_log(FAILED);
    let age = "postrider_oldest_unacknowledged_age_seconds{stream=\"stopped\"}";
    let before = face.wait_metric(age, |age| age > 0.0);
    drop_slot(stage);
    assert_eq!(ctl(&relay, &desk.file(), &["resume", "--only", "stopped"]).0, 0);
    running.wait_for_log(FAILED);
    let after = face.metric(age).unwrap();
    assert!(after >= before, "{before} {after}");
    wait_until("it to be told", || {
        face.get("/api/v1/state?stream=stopped").1.contains("Stopped by an error")
    });
    running.signal(rustix::process::Signal::TERM);
    let failed = running.outcome().status.code().unwrap();
    assert!([70, 78].contains(&failed), "{failed}");
}

/// A pause holds over runs.
#[test]
fn a_stream_that_begins_anew_by_itself_stays_paused() {
    let broker = Broker::best();
    let streams = stages(postgres::installed(), &broker.bootstrap(), &["open", "closed"]);
    let [(_, open), (_, closed)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    let text = file_of("", &streams);
    desk.write(&text.replace("[retry]\n", "[retry]\ngive_up_after = \"10s\"\n"));
    let relay = desk.controlled(relay(&streams).allow_log(""));
    let mut running = start(&relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let ctl = |words: &[&str]| ctl(&relay, &desk.file(), words);
    assert_eq!(ctl(&["pause", "--only", "closed"]).0, 0);
    let (outside, name) = (open.sql(), closed.slot());
    outside.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
    outside.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    ));
    running.wait_for_log(FAILED);
    let begins = wait_for("the time of the next run", || {
        let (_, status) = ctl(&["status", "--only", "closed"]);
        status["begins_anew_at"].as_str().map(str::to_owned)
    });
    assert!(begins.ends_with('Z'), "{begins}");
    outside.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"));
    closed.insert("A", 5);
    wait_until("it to stream again", || {
        face.count("postrider_state{stream=\"closed\",state=\"streaming\"}") == Some(1)
    });
    assert_eq!(ctl(&["status", "--only", "closed"]).1["paused"], true);
    open.insert("A", 5);
    open.wait_for_records(5);
    assert!(closed.records().is_empty());
    assert_eq!(ctl(&["resume", "--only", "closed"]).0, 0);
    closed.wait_for_records(5);
    running.stop();
}
