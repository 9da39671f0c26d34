//! Connections cut: the stream in the middle of a frame, the SQL connection beside it, or both.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Options, Stop};
use rustix::process::Signal;

use crate::load::{Load, prepare};
use crate::stage::Stage;
use support::broker::Broker;
use support::fault::link::{Fault, Kind, Link, Way};
use support::fault::proxy::{Proxy, blind};
use support::postgres;
use support::relay::Relay;
use support::sql::Sql;

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
    let relay = behind(&proxy, &stage).set("retry.max", "200ms").set("log.repeat_interval", "0s");
    let running = relay.expect_log("trying again").run();
    stage.wait_acknowledged(stage.log_end());
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
    prepare(&stage, &broker);
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address()).set("source.status_interval", "100ms");
    let mut running = relay.expect_log("trying again").run();
    let load = Load::start(&stage, &[(500, 1), (500, 40)]);
    for _ in 0..4 {
        running.wait_for_log("\"streaming\"");
        load.wait_committed(400);
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

/// A relay that reaches Postgres through the proxy, which knows a stream by its first message.
fn behind(proxy: &Proxy, stage: &Stage) -> Relay {
    let address = proxy.address(&stage.database.address());
    stage.relay().set("source.url", &format!("{}?sslmode=disable", address.url()))
}

/// The last position goes into a line that loses everything. At least once, an end that is called clean leaves
/// nothing that the next start repeats.
#[test]
fn g8_a_position_that_postgres_may_not_have_heard_is_told_again_before_the_end() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "unheard");
    let target = stage.database.address();
    let proxy = Proxy::postgres(&target, Box::new(blind));
    let stream_alone = |act: fn(&Link)| {
        move |link: &Link| {
            if link.kind == Kind::Stream {
                act(link);
            }
        }
    };
    for round in 1..=5 {
        let relay = behind(&proxy, &stage).set("retry.max", "200ms").allow_log("trying again");
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        proxy.each(stream_alone(|link| link.inject(Way::ToServer, Fault::BlackHole)));
        let before = stage.records().len();
        stage.insert("A", 20);
        stage.wait_for_records(before + 20);
        proxy.each(stream_alone(Link::cut));
        running.signal(Signal::TERM);
        let status = running.wait();
        assert!(status.success(), "{round}: {status}");
        let delivered = stage.records().len();
        stage.relay().run_once();
        assert_eq!(stage.records().len(), delivered, "{round}: repeated by the next start");
    }
}

/// Does this to SQL connections alone.
fn sql_alone(act: impl Fn(&Link) + Send + 'static) -> impl FnMut(&Link) + Send + 'static {
    move |link| {
        if link.kind == Kind::Sql {
            act(link);
        }
    }
}

#[test]
fn g5_a_cut_sql_connection_costs_no_session_and_a_fast_stop_is_still_noticed() {
    let broker = Broker::embedded();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "beside");
    let target = stage.database.address();
    let proxy = Proxy::postgres(&target, Box::new(blind));
    let mut running = behind(&proxy, &stage).allow_log("trying again").run();
    running.wait_for_log("\"streaming\"");
    proxy.each(sql_alone(Link::cut));
    running.wait_for_log("beside the stream broke and was reopened");
    // What an operator ends is ended with the word of a server that shuts down.
    stage.sql().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
            AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    );
    running.wait_for_log("beside the stream broke and was reopened");
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    let begun = Instant::now();
    cluster.stop(Stop::Fast).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    // The first session's end, and so far the only one.
    let end = running.wait_for_any(&["closing the replication stream", "trying again"]);
    assert!(end.contains("closing the replication stream"), "{end}");
    cluster.start_again().unwrap();
    running.wait_for_log("\"streaming\"");
    running.stop();
}

#[test]
fn g1_a_stream_that_nobody_can_watch_ends_and_begins_anew() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "unwatched");
    let target = stage.database.address();
    let proxy = Proxy::postgres(&target, Box::new(blind));
    let relay = behind(&proxy, &stage).set("retry.max", "200ms");
    let mut running = relay.expect_log("trying again").run();
    running.wait_for_log("\"streaming\"");
    proxy.greet(sql_alone(Link::cut));
    proxy.each(sql_alone(Link::cut));
    running.wait_for_log("the SQL connection beside the stream cannot be reopened");
    running.wait_for_log("trying again");
    proxy.heal();
    running.wait_for_log("\"streaming\"");
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
}

/// As for maintenance. A relay that ended, and every standby with it, would be missed afterwards.
#[test]
fn g8_a_database_that_is_closed_for_a_while_is_waited_for() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "closed");
        let relay = stage.relay().set("retry.max", "200ms").allow_log("trying again");
        let mut running = relay.expect_log("ALLOW_CONNECTIONS true").run();
        running.wait_for_log("\"streaming\"");
        stage.insert("A", 10);
        let (outside, name) = (Sql::connect(&cluster.url()), stage.slot());
        outside.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
        outside.run(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        ));
        running.wait_for_log("is not currently accepting connections");
        outside.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"));
        running.wait_for_log("\"streaming\"");
        stage.wait_acknowledged(stage.log_end());
        running.stop();
    }
}
