//! A network that loses everything and tells nobody.

use std::time::{Duration, Instant};

use crate::stage::Stage;
use support::broker::Broker;
use support::freezing_proxy::FreezingProxy;
use support::postgres;
use support::wait::let_pass;

/// The relay is patient for five seconds at least; the system would be for a quarter of an hour.
const NOTICED: Duration = Duration::from_secs(40);
/// Longer than that patience.
const IDLE: Duration = Duration::from_secs(6);

#[test]
fn g1_a_network_that_loses_everything_is_noticed_within_heartbeats() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "silence");
    let oracle = stage.oracle();
    let timeout = format!("ALTER DATABASE {} SET wal_sender_timeout = '1500ms'", stage.slot());
    stage.sql().run(&timeout);
    let proxy = FreezingProxy::start(&stage.database.address());
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let mut running = relay.expect_log("Postgres has sent nothing for").run();
    stage.insert("A", 5);
    stage.wait_for_records(5);
    let_pass(IDLE, "idle, but alive: nothing is amiss");
    proxy.freeze();
    let begun = Instant::now();
    running.wait_for_log("Postgres has sent nothing for");
    let took = begun.elapsed();
    eprintln!("noticed after {took:?}");
    assert!(took < NOTICED, "{took:?}");
    stage.insert("A", 5);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}
