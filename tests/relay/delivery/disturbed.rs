//! A relay whose commits are disturbed on their way to Kafka, one kind after the other. `make endtxn`
//! does it a thousand times under load.

use std::time::Duration;

use crate::servers_and_clients::ends::{SOCKET_TIMEOUT, shared};
use crate::stage::Stage;
use support::fault::cluster;
use support::fault::endtxn::Injection;
use support::fault::link::{BOTH, Fault};
use support::kafka::Options;
use support::postgres;
use support::relay_http::RelayHttp;

/// What is done, and whether a client must notice.
const INJECTIONS: [(Injection, bool); 7] = [
    (Injection::Delay(Duration::from_millis(200)), false),
    (Injection::Delay(SOCKET_TIMEOUT.saturating_mul(3)), true),
    (Injection::DropRequest, true),
    (Injection::DropResponse, true),
    (Injection::CutBefore, true),
    (Injection::CutAfter, true),
    (Injection::Duplicate, false),
];

#[test]
fn g6_a_relay_that_loses_sight_of_a_commit_notices_and_delivers_once() {
    let Some(cluster) = shared() else { return };
    let stage = Stage::new(postgres::installed(), &cluster.bootstrap(), "ends");
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage
        .relay_at(&tap.address())
        .set("kafka.delivery", "exactly_once")
        .set("retry.max", "200ms")
        .property("socket.timeout.ms", &SOCKET_TIMEOUT.as_millis().to_string());
    // It warns of each; how often is counted below.
    let mut running = relay.allow_log("").run();
    let face = RelayHttp::of(&mut running);
    let noticed = || face.count(r#"postrider_restarts_total{reason="ambiguous_commit"}"#);
    let mut expected = 0;
    for (injection, is_noticeable) in INJECTIONS {
        let mut next = Some(injection);
        // The other tests' producers have names of their own.
        cluster.end_txns.plan(move |producer, _| {
            let is_relay = producer.transactional_id.starts_with("postrider.");
            is_relay.then(|| next.take()).flatten()
        });
        stage.insert("A", 20);
        stage.wait_acknowledged(stage.log_end());
        expected += u64::from(is_noticeable);
        assert_eq!(noticed().unwrap_or(0), expected, "{injection:?}");
    }
    running.stop();
    let went_on = cluster.end_txns.went_on();
    assert!(!went_on.iter().any(|one| one.transactional_id.starts_with("postrider.")));
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_exactly_once();
    assert_eq!(verdict.committed, INJECTIONS.len() * 20);
}

/// The stream is open while earlier producers are fenced and progress is read, which takes many round trips.
#[test]
fn g6_brokers_far_away_do_not_end_a_session_of_a_server_with_little_patience() {
    let Some(cluster) = cluster::start(&Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &cluster.bootstrap(), "far");
    let relay = stage.relay().set("kafka.delivery", "exactly_once");
    relay.prepare();
    stage.insert("A", 10);
    let timeout = format!("ALTER DATABASE {} SET wal_sender_timeout = '3s'", stage.slot());
    stage.sql().run(&timeout);
    cluster.proxy.greet(|link| {
        for way in BOTH {
            link.inject(way, Fault::Latency(Duration::from_millis(300)));
        }
    });
    let running = relay.allow_log("cannot reach Kafka").run();
    stage.wait_acknowledged(stage.log_end());
    // It has warned of no session that ended.
    running.stop();
}
