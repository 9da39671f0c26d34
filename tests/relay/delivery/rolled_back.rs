//! Large jobs that are rolled back, and decoded after their end: PostgreSQL 18 tells of them by a Stream Abort, which
//! the protocol of a stream that takes nothing back does not have.

use super::backlog::WINDOWS;
use crate::stage::Stage;
use postrider::sandbox::postgres::Cluster;
use support::broker::Broker;
use support::cutting_proxy::{CuttingProxy, HEAD, Treated};
use support::postgres;
use support::relay::Relay;

/// Rows of 7 kB that a job writes: more than 64 MB, which is `logical_decoding_work_mem` by default, and a backlog that is
/// read in windows.
const LARGE: usize = 10_000;
/// More than 64 kB.
const SMALL: usize = 40;

/// A table that nobody publishes, with rows that are not compressed.
const JOBS: &str = "CREATE TABLE job (text text); ALTER TABLE job ALTER text SET STORAGE PLAIN; \
    CREATE PROCEDURE job(rows int) LANGUAGE plpgsql AS $$ BEGIN \
        BEGIN INSERT INTO job VALUES ('a'), ('b'); PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; \
        BEGIN INSERT INTO job VALUES ('c'), ('d'); EXCEPTION WHEN division_by_zero THEN NULL; END; \
        INSERT INTO job SELECT repeat('x', 7000) FROM generate_series(1, rows); \
        RAISE EXCEPTION 'the job fails'; END $$";

/// A database in which this is decoded with so much memory, or with the server's own default.
fn stage(cluster: &Cluster, broker: &Broker, work_mem: Option<&str>) -> Stage {
    let stage = Stage::new(cluster, &broker.bootstrap(), "rolled_back");
    stage.sql().run(JOBS);
    if let Some(size) = work_mem {
        let name = stage.database.name();
        let set = format!("ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '{size}'");
        stage.sql().run(&set);
    }
    stage
}

/// Jobs between rows, one with a savepoint and one with exceptions.
fn roll_back_between_rows(stage: &Stage, rows: usize) {
    stage.insert("A", 3);
    stage.sql().run(&format!(
        "BEGIN; SAVEPOINT a; INSERT INTO job SELECT 'x' FROM generate_series(1, 10); RELEASE a; \
         INSERT INTO job SELECT repeat('x', 7000) FROM generate_series(1, {rows}); ROLLBACK"
    ));
    stage.insert("A", 3);
    assert!(stage.sql().try_run(&format!("CALL job({rows})")).is_err(), "the job fails");
    stage.insert("A", 3);
}

fn peeked(relay: &Relay) -> usize {
    let outcome = relay.start(&["peek"]).outcome();
    assert!(outcome.status.success(), "{:?}", outcome.log);
    outcome.stdout.lines().filter(|line| line.starts_with("{\"topic\"")).count()
}

#[test]
fn g1_g5_rolled_back_jobs_stop_no_relay_with_default_settings() {
    let Some(cluster) = postgres::eighteen() else { return };
    let broker = Broker::embedded();
    for in_windows in [true, false] {
        let stage = stage(cluster, &broker, None);
        let oracle = stage.oracle();
        roll_back_between_rows(&stage, LARGE);
        let relay = stage.relay().set("source.catch_up", &in_windows.to_string());
        assert_eq!(peeked(&relay), 9);
        let mut running = relay.run();
        if in_windows {
            running.wait_for_log(WINDOWS);
        }
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &[]).assert_exactly_once();
    }
}

#[test]
fn g1_g5_rolled_back_jobs_stop_no_relay_with_little_decoding_memory() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        let stage = stage(cluster, &broker, Some("64kB"));
        let oracle = stage.oracle();
        roll_back_between_rows(&stage, SMALL);
        assert_eq!(peeked(&stage.relay()), 9);
        stage.relay().run_once();
        stage.verdict(&oracle, &[]).assert_exactly_once();
    }
}

/// What is no message of pgoutput, on the way from the server.
fn damage(message: &[u8], marker: &[u8]) -> Option<Treated> {
    let is_marked = message.get(HEAD) == Some(&b'I')
        && message.windows(marker.len()).any(|bytes| bytes == marker);
    let mut bytes = message.to_vec();
    *bytes.get_mut(HEAD)? = b'?';
    is_marked.then_some(Treated { bytes, cut: false })
}

#[test]
fn g1_an_unreadable_message_ends_the_relay_after_five_sessions() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "unreadable");
    let oracle = stage.oracle();
    let proxy = CuttingProxy::new(usize::MAX, |message, _| damage(message, b"\"unreadable\""));
    let address = proxy.before(&stage.database.address());
    stage.insert("A", 3);
    let before = stage.log_end();
    stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', '1', 'A', '{\"unreadable\": 1}')",
    );
    stage.insert("A", 3);
    let relay = stage.relay().set("source.url", &format!("{}?sslmode=disable", address.url()));
    let relay = relay.set("log.repeat_interval", "0s");
    let outcome = relay.run().outcome();
    let log = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(70), "{log}");
    let retries: Vec<&String> =
        outcome.log.iter().filter(|line| line.contains("trying again")).collect();
    assert_eq!(retries.len(), 4, "{log}");
    let last = outcome.log.last().unwrap();
    let (_, place) = retries[0]
        .split_once(" of the log")
        .map(|(what, _)| what.rsplit_once("at ").unwrap())
        .unwrap();
    for line in retries.iter().chain([&last]) {
        assert!(line.contains(place) && line.contains("message tag 0x3F"), "{line}");
    }
    assert!(last.contains("PR-R008") && last.contains("keeps every row"), "{last}");
    let (_, costs) = last.split_once("postrider repair --execute --drop-slot").unwrap();
    assert!(costs.contains("are lost") && !last.contains("pg_drop"), "{last}");
    assert!(!retries[0].contains("proxy"), "{}", retries[0]);
    // What lies before it is delivered, and what lies behind it is kept.
    let acknowledged = stage.acknowledged();
    assert!(acknowledged >= before, "{acknowledged:X} {before:X}");
    assert_eq!(stage.records().len(), 3);
    let execute = ["repair", "--execute", "--drop-slot"];
    let repaired = relay.allow_log("cannot be decoded past").start(&execute).outcome();
    assert!(repaired.status.success(), "{:?}", repaired.log);
    assert_eq!(stage.records().len(), 7);
    stage.relay().run_once();
    stage.verdict(&oracle, &[]).assert_exactly_once();
}
