//! `run --once` and `run --dry-run`.

use std::net::TcpListener;

use serde_json::Value;

use crate::load::Load;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Outcome;

#[test]
fn once_delivers_and_acknowledges_what_was_committed() {
    for broker in Broker::all() {
        for cluster in postgres::versions() {
            let stage = Stage::new(cluster, &broker.bootstrap(), "once");
            let oracle = stage.oracle();
            let tap = stage.tap();
            let relay = stage.relay_at(&tap.address());
            // Nothing to do at all.
            relay.run_once();
            assert_eq!(stage.records().len(), 0);
            stage.insert("A", 500);
            stage
                .sql()
                .run("SET synchronous_commit = off; BEGIN; CREATE TABLE noise (n int); COMMIT");
            let end = stage.log_end();
            relay.run_once();
            assert!(stage.acknowledged() >= end);
            // Nothing new to do.
            relay.run_once();
            let verdict = stage.verdict(&oracle, &tap.statuses());
            verdict.assert_exactly_once();
            assert_eq!(verdict.delivered, 500);
        }
    }
}

#[test]
fn once_amid_writers_leaves_nothing_to_repeat() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "amid");
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address());
    let load = Load::start(&stage, &[(600, 1), (3_000, 250), (600, 9)]);
    for round in 1..=4 {
        load.wait_committed(300 * round);
        let end = stage.log_end();
        relay.run_once();
        assert!(stage.acknowledged() >= end);
    }
    load.stop();
    relay.run_once();
    stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
}

#[test]
fn once_delivers_commits_that_did_not_wait_for_the_disk() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "lazy");
        let oracle = stage.oracle();
        let sql = stage.sql();
        sql.run("SET synchronous_commit = off");
        for _ in 0..5 {
            for n in 0..20 {
                sql.run(&format!(
                    "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                     VALUES ('t', '{n}', 'A', NULL)"
                ));
            }
            stage.relay().run_once();
            stage.verdict(&oracle, &[]).assert_exactly_once();
        }
    }
}

/// As beside a relay with the same settings, which has the address.
#[test]
fn once_goes_on_where_its_address_is_taken() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "taken");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let relay = stage.relay().set("http.bind", &address);
    relay.expect_log("continuing without health and metrics").run_once();
}

#[test]
fn once_prints_what_it_did() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "summary");
    stage.insert("A", 3);
    stage.insert("not a topic", 2);
    let relay = stage.relay().expect_log("became a dead letter");
    let running = relay.start(&["--output", "json", "run", "--once"]);
    let Outcome { status, stdout, log } = running.outcome();
    assert!(status.success(), "{status}");
    let summary: Value = serde_json::from_str(stdout.trim_end()).unwrap();
    // The last line of the log says the same.
    let last: Value = serde_json::from_str(log.last().unwrap()).unwrap();
    assert_eq!(last["message"], "stopped", "{last}");
    for name in ["confirmed", "dead_letters", "skipped", "settled"] {
        assert_eq!(last[name], summary[name], "{name}: {last}");
    }
    assert_eq!(summary["records"], 3);
    assert_eq!(summary["dead_letters"], 2);
    assert_eq!(summary["confirmed"], 5);
    assert_eq!(summary["skipped"], 0);
    assert_eq!(summary["caught_up"], true);
    let settled = stage
        .sql()
        .value(&format!("SELECT pg_lsn '{}' - '0/0'", summary["settled"].as_str().unwrap()));
    assert_eq!(settled.parse::<u64>().unwrap(), stage.acknowledged());
}

#[test]
fn g1_a_dry_run_prints_records_and_acknowledges_nothing() {
    let stage = Stage::new(postgres::installed(), "127.0.0.1:1", "dry");
    let before = stage.acknowledged();
    stage.insert("A", 2_000);
    stage.sql().run("INSERT INTO outbox VALUES (DEFAULT, 't', 'k', 'bad topic', NULL)");
    for _ in 0..2 {
        // Nothing became a dead letter, and no alert of it is due.
        let relay = stage.relay();
        let (status, printed) = relay.start(&["run", "--dry-run"]).wait_printed();
        assert!(status.success(), "{status}");
        assert_eq!(printed.len(), 2_001);
        let first: Value = serde_json::from_str(&printed[0]).unwrap();
        assert_eq!(first["topic"], stage.topic("A"));
        assert_eq!((&first["key"], &first["value"]), (&"1".into(), &"{\"n\": 1}".into()));
        let last: Value = serde_json::from_str(&printed[2_000]).unwrap();
        assert_eq!(last["topic"], stage.topic("dead-letters"));
        assert_eq!(stage.acknowledged(), before);
    }
}

/// As with `| head -1`: who goes away ends it, quietly, and nothing is acknowledged.
#[test]
fn a_dry_run_whose_reader_goes_away_ends() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "pipe");
    stage.insert("A", 5_000);
    let before = stage.acknowledged();
    // A pipe that nobody holds open for reading any more once the first line is out.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let head = format!("mkfifo {0}; head -n 1 {0} & exec > {0}", pipe.display());
    let (status, printed) = stage.relay().after(&head).start(&["run", "--dry-run"]).wait_printed();
    assert!(status.success(), "{status}");
    assert_eq!(printed.len(), 1, "{printed:?}");
    assert_eq!(stage.acknowledged(), before);
}

/// A disk that is full ends it with one error; no broker is blamed, and nothing is printed again.
#[test]
fn a_dry_run_that_cannot_write_ends() {
    let stage = Stage::new(postgres::installed(), "127.0.0.1:1", "full");
    stage.insert("A", 10);
    let before = stage.acknowledged();
    let relay = stage.relay().after("exec > /dev/full").expect_log("PR-X001");
    let outcome = relay.start(&["run", "--dry-run"]).outcome();
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.log.join("\n"));
    assert!(!outcome.log.iter().any(|line| line.contains("trying again")), "{:?}", outcome.log);
    assert_eq!(stage.acknowledged(), before);
}

#[test]
fn the_log_begins_with_what_starts_and_between_which_servers() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "starting");
    let log = stage.relay().start(&["run", "--once"]).outcome().log;
    let line: Value = serde_json::from_str(&log[0]).unwrap();
    let text = line.to_string();
    let database = format!("{} on 127.0.0.1:{}", stage.slot(), stage.database.address().port);
    let version = env!("CARGO_PKG_VERSION");
    for words in ["starting", version, &database, stage.slot(), stage.bootstrap(), "at_least_once"]
    {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
}
