//! What a backlog that is read in windows must show as a stream would.

use std::process::Command;
use std::time::Duration;

use super::backlog::{WINDOWS, grow, make_noise};
use super::idle::ALL;
use crate::load::{Load, prepare_at};
use crate::stage::Stage;
use crate::tables::insert_in_time;
use postrider::sandbox::postgres::{Options, Stop};
use rdkafka::mocking::MockCluster;
use support::broker::{Broker, take_down};
use support::wait::let_pass;
use support::{kafka, postgres};

/// PostgreSQL 18 passes such rows over with a warning, earlier versions end the window with an error.
#[test]
fn g4_rows_of_a_publication_that_was_missing_are_not_passed_over_in_windows() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "gone");
        let oracle = stage.oracle();
        insert_in_time(&stage, "A", 3);
        stage.sql().run("DROP PUBLICATION postrider");
        let hole = stage.sql().value("SELECT pg_current_wal_insert_lsn()");
        insert_in_time(&stage, "A", 20);
        stage.sql().run("CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')");
        insert_in_time(&stage, "A", 5);
        make_noise(&stage, 80);
        let mut running = stage.relay().allow_log("").run();
        let said = running.wait_for_any(&["PR-P010", "caught up"]);
        assert!(said.contains("PR-P010"), "{said}");
        assert!(said.contains("repair --execute"), "{said}");
        assert_eq!(running.wait().code(), Some(70));
        let passed = format!("confirmed_flush_lsn > '{hole}'");
        assert_eq!(stage.slot_value(&passed), "f", "no row of the gap is acknowledged");
        let relay = stage.relay().allow_log("cannot be decoded past");
        let repaired = relay.start(&["repair", "--execute", "--drop-slot"]).outcome();
        assert!(repaired.status.success(), "{:?}", repaired.log);
        stage.insert("A", 2);
        stage.relay().run_once();
        stage.verdict(&oracle, &[]).assert_exactly_once();
    }
}

/// Commits that are written and not on the disk yet (`synchronous_commit = off`) are in no window, and not acknowledged.
#[test]
fn g1_commits_that_are_not_on_the_disk_yet_are_not_taken_for_read() {
    let options = Options::default()
        .with("wal_writer_delay", "10s")
        .with("wal_writer_flush_after", "1GB")
        .with("wal_buffers", "64kB")
        .with("shared_buffers", "512MB");
    let cluster = postgres::start(&options);
    let broker = Broker::embedded();
    let stage = Stage::new(&cluster, &broker.bootstrap(), "unflushed");
    let oracle = stage.oracle();
    let relay = stage.relay();
    relay.run_once();
    for _ in 0..2 {
        grow(&stage, 4);
        let sql = stage.sql();
        sql.run("SET synchronous_commit = off");
        for _ in 0..200 {
            sql.run(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('t', '1', 'A', jsonb_build_object('text', repeat('x', 9000)))",
            );
        }
        let mut running = relay.run();
        running.wait_for_log(WINDOWS);
        running.wait_for_log("\"streaming\"");
        // A commit that waits for the disk takes the others along.
        sql.run("SET synchronous_commit = on; INSERT INTO noise VALUES ('')");
        stage.wait_acknowledged(stage.log_end());
        running.stop();
    }
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

/// A server that stops does not wait for a relay that reads none of its stream, and its restarts cost nothing.
#[test]
fn g1_g2_g8_restarts_of_the_server_within_windows_lose_nothing_and_reorder_nothing() {
    let broker = Broker::embedded();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "restarted");
    let oracle = stage.oracle();
    let relay = stage.relay().set("source.status_interval", "100ms").allow_log("");
    relay.run_once();
    for stop in [Stop::Fast, Stop::Immediate] {
        grow(&stage, 8);
        let end = stage.log_end();
        let mut running = relay.run();
        running.wait_for_log(WINDOWS);
        assert!(stage.acknowledged() < end, "the backlog was over before the stop");
        cluster.stop(stop).unwrap();
        cluster.start_again().unwrap();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
    }
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

/// Of the stream, which holds the slot and is not read, the rest of a transaction has to pass before it ends.
#[test]
fn g6_g8_stops_within_windows_behind_a_large_transaction_repeat_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    let broker = Broker::Kafka(kafka);
    // While its large transaction is open, no other test on the server could create a slot.
    let cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "stops");
    let oracle = stage.oracle();
    let relay = stage.relay().set("kafka.delivery", "exactly_once");
    relay.run_once();
    stage.insert("A", 75_000);
    make_noise(&stage, 160);
    let mut stops_within = 0;
    for stop in 0..4 {
        let mut running = relay.run();
        // A fast machine delivers all of it before the last stop.
        stops_within +=
            usize::from(running.wait_for_any(&[WINDOWS, "\"caught up\""]).contains(WINDOWS));
        let_pass(Duration::from_millis(200 + stop * 200), "each stops at another moment");
        running.stop();
    }
    assert!(stops_within >= 2, "{stops_within}");
    let running = relay.run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

/// A server whose memory is short for a row of a window may end that process, and with it all others, whenever it is asked
/// for that window again: the next session streams.
#[test]
fn g4_a_server_that_crashes_of_a_window_is_not_asked_for_it_again() {
    const COPY: &str = "SELECT active_pid FROM pg_replication_slots WHERE temporary";
    let mock = MockCluster::new(1).unwrap();
    let cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "crashed");
    let oracle = stage.oracle();
    stage.insert("A", 100);
    make_noise(&stage, 100);
    take_down(&mock, ALL);
    let mut running = stage.relay().allow_log("").run();
    running.wait_for_log(WINDOWS);
    let pid = stage.sql().value(COPY);
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    running.wait_for_log("trying again");
    running.wait_for_log("\"streaming\"");
    mock.broker_up(ALL).unwrap();
    let said = running.wait_for_any(&[WINDOWS, "\"caught up\""]);
    assert!(!said.contains(WINDOWS), "{said}");
    running.stop();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

/// The first row of a window comes with a header, others do not.
#[test]
fn g3_g4_rows_over_the_limit_within_windows_become_dead_letters() {
    let broker = Broker::embedded();
    for cluster in postgres::representative() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "over");
        let oracle = stage.oracle();
        let large = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
            VALUES ('t', '1', 'A', jsonb_build_object('text', repeat('x', 3000000)))";
        for _ in 0..3 {
            stage.sql().run(large);
            stage.insert("A", 10);
            stage.sql().run(&format!("BEGIN; {large}; {large}; COMMIT"));
            make_noise(&stage, 40);
        }
        let mut running = stage.relay().set("source.frame_max", "1MiB").allow_log("").run();
        running.wait_for_log(WINDOWS);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &[]).assert_exactly_once();
        let dead = stage.records().into_iter().filter(|one| one.topic.ends_with("dead-letters"));
        assert_eq!(dead.count(), 9);
    }
}

/// Each dies at another moment: before the first window has come, within one, or between two.
#[test]
fn g2_g6_sixteen_kills_within_windows_lose_repeat_and_reorder_nothing() {
    const KILLS: u64 = 16;
    /// That is read in windows.
    const BACKLOG: u64 = 100 << 20;
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "sixteen");
    prepare_at(&stage, &kafka.bootstrap());
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let relay = stage.relay_at(&tap.address()).set("kafka.delivery", "exactly_once");
    relay.run_once();
    let load = Load::start(&stage, &[(300, 1), (300, 7)]);
    let mut within = 0;
    for kill in 0..KILLS {
        while stage.log_end() - stage.acknowledged() < BACKLOG {
            grow(&stage, 1);
        }
        let mut running = relay.run();
        let said = running.wait_for_any(&[WINDOWS, "\"caught up\""]);
        within += u64::from(said.contains(WINDOWS));
        // Some have come far by then.
        let far = if kill % 5 == 4 { 400 } else { 0 };
        let_pass(Duration::from_millis(far + kill * 83 % 307), "each dies at another moment");
        running.kill();
    }
    load.stop();
    let running = relay.run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    assert_eq!(verdict.delivered, verdict.committed);
    verdict.assert_exactly_once();
    assert!(within > KILLS / 2, "{within} of the kills were within windows");
}
