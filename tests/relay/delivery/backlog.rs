//! A log that has grown long before the relay comes, which is read in windows.

use std::time::Duration;

use crate::load::{Load, prepare};
use crate::stage::Stage;
use postrider::sandbox::postgres::Options;
use support::broker::Broker;
use support::judge::Verdict;
use support::relay::Relay;
use support::wait::let_pass;
use support::{kafka, postgres};

/// What the log says of a session that reads windows.
pub(super) const WINDOWS: &str = "reading the backlog in windows of the log";
/// Parts of the backlog, each of some rows and some 20 MiB of other tables' changes.
const PARTS: usize = 8;
const ROWS_OF_PART: usize = 2_000;

/// Another table fills the log: the embedded broker keeps no more than 5 MB per partition.
pub(super) fn make_noise(stage: &Stage, mib: usize) {
    stage.sql().run(&format!(
        "CREATE TABLE IF NOT EXISTS noise (text text); \
         INSERT INTO noise SELECT (SELECT string_agg(md5(n::text || m), '') \
            FROM generate_series(1, 50) AS m) FROM generate_series(1, {}) AS n",
        mib * 600
    ));
}

/// As a backlog grows: with a note now and then of which transactions are open, as Postgres makes every 15 s.
pub(crate) fn grow(stage: &Stage, parts: usize) {
    for _ in 0..parts {
        stage.insert("A", ROWS_OF_PART / 2);
        make_noise(stage, 20);
        stage.sql().run("CHECKPOINT");
        stage.insert("A", ROWS_OF_PART / 2);
    }
}

#[test]
fn a_backlog_is_worked_off_in_a_session_of_its_own() {
    let broker = Broker::embedded();
    // Transactions of other tests keep the server from decoding later than at their begin.
    let cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "backlog");
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address());
    relay.run_once();
    grow(&stage, 5);
    let restart = stage.slot_value("restart_lsn");
    let load = Load::start(&stage, &[(300, 1), (300, 20)]);
    let mut running = relay.run();
    let first = running.wait_for_log("\"streaming\"");
    assert!(first.contains("\"mode\":\"backlog\""), "{first}");
    running.wait_for_log(WINDOWS);
    let second = running.wait_for_log("\"streaming\"");
    assert!(!second.contains("\"mode\""), "{second}");
    assert_ne!(
        stage.slot_value("restart_lsn"),
        restart,
        "the next session decodes the backlog again"
    );
    load.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
}

#[test]
fn g1_g2_kills_within_windows_lose_nothing_and_reorder_nothing() {
    for broker in Broker::representative() {
        let verdict = killed_within_windows(&broker, |relay| relay);
        verdict.assert_at_least_once();
    }
}

#[test]
fn g6_kills_within_windows_repeat_nothing_exactly_once() {
    let Some(kafka) = kafka::shared() else { return };
    let exactly = |relay: Relay| relay.set("kafka.delivery", "exactly_once");
    killed_within_windows(&Broker::Kafka(kafka), exactly).assert_exactly_once();
}

fn killed_within_windows(broker: &Broker, with: impl Fn(Relay) -> Relay) -> Verdict {
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "windows");
    prepare(&stage, broker);
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = with(stage.relay_at(&tap.address()).set("source.status_interval", "100ms"));
    relay.run_once();
    grow(&stage, PARTS);
    let load = Load::start(&stage, &[(300, 1), (300, 20)]);
    let mut within = 0;
    for kill in 0..6 {
        let mut running = relay.run();
        let said = running.wait_for_any(&[WINDOWS, "\"caught up\""]);
        within += u32::from(said.contains(WINDOWS));
        let_pass(Duration::from_millis(40 + kill * 35), "each dies at another moment");
        running.kill();
    }
    assert!(within > 1, "the backlog was delivered before anything was killed");
    let running = relay.run();
    load.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &tap.statuses())
}

/// Whoever takes the slot from us, or ends the windows, is noticed, and nothing is passed over for it.
#[test]
fn g1_g2_server_processes_that_are_ended_within_windows_lose_nothing_and_reorder_nothing() {
    const STREAM: &str =
        "SELECT active_pid FROM pg_replication_slots WHERE active AND NOT temporary";
    const COPY: &str = "SELECT active_pid FROM pg_replication_slots WHERE active AND temporary";
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "ended");
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let relay = stage.relay_at(&tap.address()).set("source.status_interval", "100ms").allow_log("");
    // A process that is ended while it sends says nothing.
    let said = ["trying again", "the server ended the connection for windows"];
    for victim in [STREAM, COPY] {
        grow(&stage, 5);
        let mut running = relay.run();
        running.wait_for_log(WINDOWS);
        let database = stage.sql().value("SELECT current_database()");
        stage.sql().run(&format!(
            "SELECT pg_terminate_backend(pid.active_pid) FROM ({victim} AND database = '{database}') AS pid"
        ));
        running.wait_for_any(&said);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
    }
    stage.verdict(&oracle, &tap.statuses()).assert_at_least_once();
}

#[test]
fn a_server_without_a_free_slot_streams_the_backlog() {
    let cluster = postgres::start(&Options::default().with("max_replication_slots", "2"));
    let broker = Broker::embedded();
    let stage = Stage::new(&cluster, &broker.bootstrap(), "no_window");
    let oracle = stage.oracle();
    let relay = stage.relay().expect_log("raise max_replication_slots by one");
    grow(&stage, 5);
    let running = relay.run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

/// Each session decodes the log from the begin of an open transaction on, so no session may end behind the backlog.
#[test]
fn a_backlog_behind_a_long_transaction_is_streamed_in_one_session() {
    let broker = Broker::embedded();
    let cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "long");
    let oracle = stage.oracle();
    let relay = stage.relay();
    relay.run_once();
    let old = stage.sql();
    old.run("CREATE TABLE IF NOT EXISTS noise (text text)");
    old.run("BEGIN; INSERT INTO noise VALUES ('open')");
    for is_of_backlog in [true, false] {
        grow(&stage, 8);
        let mut running = relay.run();
        let session = running.wait_for_log("\"streaming\"");
        assert_eq!(session.contains("\"mode\":\"backlog\""), is_of_backlog, "{session}");
        stage.wait_acknowledged(stage.log_end());
        running.stop();
    }
    old.run("COMMIT");
    stage.verdict(&oracle, &[]).assert_exactly_once();
}
