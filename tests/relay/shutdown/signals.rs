//! Signals.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Options, Stop};
use rdkafka::mocking::MockCluster;
use rustix::process::Signal;

use crate::delivery::idle::{ALL, impatient};
use crate::load::{Load, prepare};
use crate::stage::Stage;
use support::broker::Broker;
use support::freezing_proxy::{FreezingProxy, Kind};
use support::postgres;
use support::relay::Running;
use support::wait::let_pass;

#[test]
fn g8_sigterm_under_load_leaves_nothing_to_repeat() {
    for broker in Broker::all() {
        let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "drain");
        prepare(&stage, &broker);
        let oracle = stage.oracle();
        let tap = stage.tap();
        let relay = stage.relay_at(&tap.address());
        let load = Load::start(&stage, &[(600, 1), (3_000, 250), (600, 9)]);
        for round in 1..=4 {
            let mut running = relay.run();
            running.wait_for_log("streaming");
            load.wait_committed(500 * round);
            let begun = Instant::now();
            running.stop();
            eprintln!("drained in {:?}", begun.elapsed());
        }
        load.stop();
        relay.run_once();
        stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
    }
}

/// A relay that has delivered some rows and then holds `7` that no broker takes.
fn stuck(
    stage: &Stage,
    mock: &MockCluster<'_, impl rdkafka::client::ClientContext>,
    code: &str,
) -> Running {
    let relay = stage.relay().expect_log("cannot reach Kafka").expect_log(code);
    let grace = match code {
        GRACE_EXPIRED => "500ms",
        BROKEN_OFF => "3s",
        _ => "1h",
    };
    let running = impatient(relay)
        .allow_log("aborting")
        .allow_log("trying again")
        .set("shutdown.grace", grace)
        .start(&["--output", "json", "run"]);
    stage.strand(mock, 7);
    running
}

const GRACE_EXPIRED: &str = "PR-X011";
const ABORTED: &str = "PR-X012";
/// The same error, where a grace period goes on without the stream.
const BROKEN_OFF: &str = "\"exit_code\":69";
/// How the same error begins, for a test with a long grace period.
const ABANDONED: &str = "\"code\":\"PR-X011\"";

#[test]
fn g8_a_drain_without_kafka_ends_with_the_number_of_unconfirmed_rows() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "grace");
    let oracle = stage.oracle();
    let mut running = stuck(&stage, &mock, GRACE_EXPIRED);
    running.wait_for_log("cannot reach Kafka");
    let begun = Instant::now();
    running.signal(Signal::TERM);
    let error = running.wait_for_log(GRACE_EXPIRED);
    assert!(error.contains("7 records unconfirmed"), "{error}");
    assert_eq!(running.wait().code(), Some(69));
    let took = begun.elapsed();
    assert!((500..20_000).contains(&took.as_millis()), "{took:?}");
    mock.broker_up(ALL).unwrap();
    stage.relay().run_once();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

#[test]
fn g8_a_second_signal_aborts_at_once() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "abort");
    let oracle = stage.oracle();
    let mut running = stuck(&stage, &mock, ABORTED);
    running.wait_for_log("cannot reach Kafka");
    running.signal(Signal::TERM);
    running.wait_for_log("draining");
    let_pass(APART, "the second signal is one of its own");
    let begun = Instant::now();
    running.signal(Signal::INT);
    let error = running.wait_for_log(ABORTED);
    assert!(error.contains("7 records unconfirmed"), "{error}");
    assert_eq!(running.wait().code(), Some(1));
    let took = begun.elapsed();
    eprintln!("aborted in {took:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    mock.broker_up(ALL).unwrap();
    stage.relay().run_once();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

/// Signals within half a second are one.
const APART: Duration = Duration::from_millis(700);
/// Longer than a session may take that lets go of the stream.
const LET_GO_WITHIN: Duration = Duration::from_millis(3_500);

/// GNU timeout sends its signal twice, to the process and to its group.
#[test]
fn g8_two_signals_at_once_are_one() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "twice");
    let oracle = stage.oracle();
    let mut running = stage.relay().run();
    running.wait_for_log("streaming");
    stage.insert("A", 100);
    running.signal(Signal::TERM);
    running.signal(Signal::INT);
    running.stop();
    stage.relay().run_once();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

#[test]
fn g8_sigterm_while_postgres_is_away_is_a_clean_stop() {
    let broker = Broker::embedded();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "away");
    let mut running = stage.relay().expect_log("trying again").run();
    running.wait_for_log("caught up");
    cluster.stop(Stop::Immediate).unwrap();
    running.wait_for_log("trying again");
    let begun = Instant::now();
    running.stop();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn g8_a_drain_that_postgres_breaks_off_is_no_clean_stop() {
    let mock = MockCluster::new(1).unwrap();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "broken_off");
    // A third of it is how often the relay writes, by which it finds nobody at the other end.
    let set = format!("ALTER DATABASE {} SET wal_sender_timeout = '1s'", stage.slot());
    stage.sql().run(&set);
    let mut running = stuck(&stage, &mock, BROKEN_OFF);
    running.wait_for_log("cannot reach Kafka");
    running.signal(Signal::TERM);
    running.wait_for_log("\"unconfirmed\":7");
    cluster.stop(Stop::Kill).unwrap();
    assert_eq!(running.wait().code(), Some(69));
}

/// Seconds that Postgres's `fast` stop waits for a relay without Kafka, with some to spare on a busy machine. It waits
/// a minute for one that does not let go.
const FAST: Duration = Duration::from_secs(45);

#[test]
fn g8_a_drain_without_kafka_does_not_hold_up_a_fast_stop() {
    let mock = MockCluster::new(1).unwrap();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "hurried");
    let mut running = stuck(&stage, &mock, ABANDONED);
    running.wait_for_log("cannot reach Kafka");
    running.signal(Signal::TERM);
    running.wait_for_log("\"unconfirmed\":7");
    let begun = Instant::now();
    cluster.stop(Stop::Fast).unwrap();
    let took = begun.elapsed();
    eprintln!("Postgres stopped in {took:?}");
    assert!(took < FAST, "{took:?}");
    let error = running.wait_for_log(ABANDONED);
    assert!(error.contains("7 records unconfirmed"), "{error}");
    assert_eq!(running.wait().code(), Some(69));
    assert!(begun.elapsed() < FAST, "{:?}", begun.elapsed());
}

#[test]
fn g8_a_drain_outlives_the_sql_session_beside_it() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "beside");
    let oracle = stage.oracle();
    let proxy = FreezingProxy::start(&stage.database.address());
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let relay = impatient(relay).expect_log("cannot reach Kafka");
    let mut running = relay.set("shutdown.grace", "2m").run();
    stage.strand(&mock, 7);
    running.wait_for_log("cannot reach Kafka");
    running.signal(Signal::TERM);
    running.wait_for_log("\"unconfirmed\":7");
    proxy.cut(Kind::Sql);
    let_pass(LET_GO_WITHIN, "it does not give the drain up");
    mock.broker_up(ALL).unwrap();
    assert!(running.wait().success());
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

#[test]
fn g8_sigterm_after_letting_go_of_unconfirmed_records_is_no_clean_stop() {
    let mock = MockCluster::new(1).unwrap();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "let_go");
    let mut running = stuck(&stage, &mock, BROKEN_OFF);
    running.wait_for_log("cannot reach Kafka");
    cluster.stop(Stop::Fast).unwrap();
    running.wait_for_log("closing the replication stream");
    running.signal(Signal::TERM);
    let error = running.wait_for_log(ABANDONED);
    assert!(error.contains("7 records unconfirmed"), "{error}");
    assert_eq!(running.wait().code(), Some(69));
}
