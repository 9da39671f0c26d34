//! Status updates that are held on their way to Postgres.

use std::time::Duration;

use crate::stage::Stage;
use postrider::sandbox::postgres::Options;
use support::broker::Broker;
use support::fault::link::{BOTH, Fault, Way};
use support::wait::stays;
use support::{postgres, wait_for};

#[test]
fn a_held_status_update_acknowledges_nothing_until_it_is_released() {
    let broker = Broker::best();
    // What other tests write would move the end of the log beyond the rows'.
    let cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "held");
    let oracle = stage.oracle();
    let status_log = stage.tap();
    let running =
        stage.relay_at(&status_log.address()).set("source.status_interval", "100ms").run();
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    status_log.tap().hold();
    stage.insert("A", 10);
    let end = stage.log_end();
    stage.wait_for_records(20);
    // It has been sent, and waits.
    wait_for("the status update", || {
        status_log.statuses().iter().any(|status| status.flush >= end).then_some(())
    });
    let held = Duration::from_millis(300);
    stays("nothing is acknowledged", held, || stage.acknowledged() < end);
    status_log.tap().release();
    stage.wait_acknowledged(end);
    running.stop();
    stage.verdict(&oracle, &status_log.statuses()).assert_exactly_once();
}

#[test]
fn a_tapped_connection_can_suffer_as_well() {
    const LATENCY: Duration = Duration::from_millis(80);
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "slow_line");
    let oracle = stage.oracle();
    let status_log = stage.tap();
    for way in BOTH {
        status_log.tap().proxy().inject(way, Fault::Latency(LATENCY));
    }
    status_log.tap().proxy().inject(Way::ToClient, Fault::Throttle { bytes_per_s: 128 * 1024 });
    let running =
        stage.relay_at(&status_log.address()).set("source.status_interval", "100ms").run();
    for _ in 0..20 {
        stage.insert("A", 50);
    }
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &status_log.statuses()).assert_exactly_once();
}
