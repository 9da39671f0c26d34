//! Connections cut in the middle of a frame.

use std::time::Duration;

use super::load::Load;
use super::stage::Stage;
use crate::support::broker::Broker;
use crate::support::fault::link::{Fault, Kind, Way};
use crate::support::fault::proxy::{Proxy, blind};
use crate::support::postgres;

/// Rows of some 300 bytes each, in transactions of ten.
const TRANSACTIONS: usize = 1_000;

#[test]
fn g1_g2_connections_cut_inside_a_frame_are_taken_up_again() {
    // In the login, in the first frames, and ever later; odd, so that no boundary is hit.
    const CUTS: [u64; 8] = [37, 391, 1_777, 9_973, 100_003, 400_009, 900_001, 1_600_001];
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "severed");
    let oracle = stage.oracle();
    let sql = stage.sql();
    for number in 0..TRANSACTIONS {
        sql.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', n % 10, 'A', jsonb_build_object('n', {number}, 'text', repeat('x', 250)) \
             FROM generate_series(1, 10) AS n"
        ));
    }
    let target = stage.database.address();
    let proxy = Proxy::postgres(&target, Box::new(blind));
    let mut cuts = CUTS.iter();
    // SQL sessions carry little and live on; it is the stream that is cut.
    proxy.greet(move |link| {
        if link.kind == Kind::Stream
            && let Some(bytes) = cuts.next()
        {
            link.inject(Way::ToClient, Fault::CutAfter(*bytes));
        }
    });
    let address = proxy.address(&target);
    let relay = stage.relay().set("retry.max", "200ms").set("log.repeat_interval", "0s");
    // The proxy recognises the stream by its first message.
    let relay = relay.set("source.url", &format!("{}?sslmode=disable", address.url()));
    let running = relay.expect_log("trying again").run();
    stage.wait_acknowledged(stage.log_end());
    std::thread::sleep(Duration::from_millis(100));
    running.stop();
    let verdict = stage.verdict(&oracle, &[]);
    eprintln!("{} rows, {} repeated", verdict.committed, verdict.duplicated.len());
    verdict.assert_at_least_once();
    assert_eq!(verdict.committed, TRANSACTIONS * 10);
}

#[test]
fn g1_g2_connections_cut_under_load_are_taken_up_again() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "cut");
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address()).set("source.status_interval", "100ms");
    let mut running = relay.expect_log("trying again").run();
    let load = Load::start(&stage, &[(500, 1), (500, 40)]);
    for _ in 0..4 {
        running.wait_for_log("\"streaming\"");
        std::thread::sleep(Duration::from_millis(400));
        tap.cut();
    }
    running.wait_for_log("\"streaming\"");
    load.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    eprintln!("{} rows, {} repeated", verdict.committed, verdict.duplicated.len());
    verdict.assert_at_least_once();
}
