//! An outbox without rows in a database that is busy otherwise.

use std::time::Duration;

use postrider::sandbox::postgres::Cluster;
use rdkafka::mocking::MockCluster;

use crate::stage::Stage;
use support::broker::{Broker, take_down};
use support::postgres;
use support::relay::Relay;
use support::wait::stays;

/// The relay tells Postgres every ten seconds, and a busy machine adds to that.
const SOON: Duration = Duration::from_mins(1);

/// All brokers of an embedded cluster.
pub(crate) const ALL: i32 = -1;

/// A relay that notices soon when a broker takes a request and falls silent, as the embedded one may
/// when it goes down.
pub(crate) fn impatient(relay: Relay) -> Relay {
    relay.property("socket.timeout.ms", "3000").allow_log("REQTMOUT")
}

#[test]
fn g5_the_slot_advances_without_a_row() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "idle");
        let (oracle, tap) = (stage.oracle(), stage.tap());
        let mut running = stage.relay_at(&tap.address()).run();
        running.wait_for_log("caught up");
        make_noise(&stage);
        let took = stage.wait_acknowledged(stage.log_end());
        eprintln!("PostgreSQL {}: acknowledged after {took:?}", cluster.version());
        assert!(took < SOON, "{took:?}");
        elsewhere(cluster, &stage);
        running.stop();
        assert_eq!(stage.records().len(), 0);
        stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
    }
}

/// Traffic of another database alone.
fn elsewhere(cluster: &Cluster, stage: &Stage) {
    let other = postgres::Database::create(cluster, "elsewhere");
    other.sql().run("CREATE TABLE noise AS SELECT generate_series(1, 20000) AS n");
    let took = stage.wait_acknowledged(stage.log_end());
    assert!(took < SOON, "{took:?}");
}

#[test]
fn g1_g5_noise_acknowledges_nothing_past_an_unconfirmed_row() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "noise");
    // Brokers that are back within two seconds may not be missed at all.
    let running = impatient(stage.relay()).allow_log("cannot reach Kafka").run();
    stage.insert("A", 1);
    stage.wait_for_records(1);
    take_down(&mock, ALL);
    stage.insert("A", 1);
    let after_the_row = stage.log_end();
    for _ in 0..10 {
        make_noise(&stage);
        let meanwhile = Duration::from_millis(150);
        stays("the row is not passed", meanwhile, || stage.acknowledged() < after_the_row);
    }
    mock.broker_up(ALL).unwrap();
    stage.wait_acknowledged(after_the_row);
    running.stop();
    assert_eq!(stage.records().len(), 2);
}

/// Writes to a table that is none of the relay's business.
pub(crate) fn make_noise(stage: &Stage) {
    let sql = stage.sql();
    sql.run("CREATE TABLE IF NOT EXISTS noise (n int)");
    for _ in 0..20 {
        sql.run("INSERT INTO noise SELECT generate_series(1, 500)");
    }
}
