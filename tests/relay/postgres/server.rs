//! Postgres stopped, restarted and killed under the relay.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Cluster, Options, Stop};
use rdkafka::mocking::MockCluster;

use crate::delivery::idle::{ALL, impatient};
use crate::load::{Load, prepare};
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Relay;
use support::wait::let_pass;

/// A cluster of each version, for this test alone.
fn clusters() -> impl Iterator<Item = Cluster> {
    let options = std::iter::once(Options::default()).chain(postgres::eighteen_options());
    options.map(|options| postgres::start(&options))
}

/// A relay that has with outages of Postgres, and looks often whether it is back.
fn patient(relay: Relay) -> Relay {
    relay.allow_log("trying again").set("retry.max", "500ms")
}

/// How long a fast stop may take on a busy machine. The server waits a minute for a relay that does not let go.
const FAST: Duration = Duration::from_secs(45);

/// `pg_ctl stop -m fast`, and how long it took.
fn stop_fast(cluster: &mut Cluster) -> Duration {
    let begun = Instant::now();
    cluster.stop(Stop::Fast).unwrap();
    begun.elapsed()
}

#[test]
fn g5_a_fast_stop_does_not_wait_for_an_idle_relay() {
    let broker = Broker::embedded();
    for mut cluster in clusters() {
        let stage = Stage::new(&cluster, &broker.bootstrap(), "fast");
        let oracle = stage.oracle();
        let mut running = patient(stage.relay()).run();
        stage.insert("A", 10);
        stage.wait_for_records(10);
        let took = stop_fast(&mut cluster);
        eprintln!("PostgreSQL {}, idle relay: stopped in {took:?}", cluster.version());
        assert!(took < FAST, "{took:?}");
        running.wait_for_log("closing the replication stream");
        cluster.start_again().unwrap();
        stage.insert("A", 10);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &[]).assert_at_least_once();
    }
}

#[test]
fn g1_a_fast_stop_waits_seconds_for_a_relay_without_kafka() {
    for mut cluster in clusters() {
        let mock = MockCluster::new(1).unwrap();
        let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "stuck");
        let oracle = stage.oracle();
        let mut running = impatient(patient(stage.relay())).expect_log("cannot reach Kafka").run();
        stage.strand(&mock, 10);
        running.wait_for_log("cannot reach Kafka");
        let took = stop_fast(&mut cluster);
        eprintln!("PostgreSQL {}, Kafka down: stopped in {took:?}", cluster.version());
        assert!(took < FAST, "{took:?}");
        cluster.start_again().unwrap();
        mock.broker_up(ALL).unwrap();
        stage.insert("A", 10);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &[]).assert_at_least_once();
    }
}

#[test]
fn g1_g2_restarts_and_crashes_of_postgres_lose_nothing() {
    let broker = Broker::best();
    for mut cluster in clusters() {
        let stage = Stage::new(&cluster, &broker.bootstrap(), "restart");
        prepare(&stage, &broker);
        let oracle = stage.oracle();
        let tap = stage.tap();
        let mut running = patient(stage.relay_at(&tap.address())).run();
        let load = Load::start(&stage, &[(300, 1), (600, 30)]);
        for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
            running.wait_for_log("streaming");
            load.wait_committed(600);
            cluster.restart(how).unwrap();
        }
        running.wait_for_log("streaming");
        load.stop();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let verdict = stage.verdict(&oracle, &tap.statuses());
        eprintln!(
            "PostgreSQL {}: {} rows, {} repeated",
            cluster.version(),
            verdict.committed,
            verdict.duplicated.len()
        );
        verdict.assert_at_least_once();
    }
}

/// A session that streamed for so long counts as healthy; what comes after it does not.
const HEALTHY: Duration = Duration::from_secs(11);

#[test]
fn the_retry_budget_runs_out_also_after_a_healthy_session() {
    let broker = Broker::embedded();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "budget");
    let relay = patient(stage.relay()).set("retry.give_up_after", "2s").expect_log("PR-P");
    let mut running = relay.start(&["--output", "json", "run"]);
    running.wait_for_log("\"streaming\"");
    let_pass(HEALTHY, "the session comes to count as healthy");
    let begun = Instant::now();
    cluster.stop(Stop::Kill).unwrap();
    assert_eq!(running.wait().code(), Some(69));
    let took = begun.elapsed();
    assert!((2_000..30_000).contains(&took.as_millis()), "{took:?}");
}
