//! Signals that find no session at work.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rustix::process::Signal;

use crate::delivery::idle::impatient;
use crate::stage::Stage;
use support::broker::Broker;
use support::freezing_proxy::{FreezingProxy, Kind};
use support::postgres;
use support::relay::Running;
use support::wait::let_pass;

/// Signals within half a second are one.
const APART: Duration = Duration::from_millis(700);
/// A tenth of a second takes it, and more on a busy machine; every time-out that it could wait for instead is longer
/// than this.
const AT_ONCE: Duration = Duration::from_secs(20);
/// Errors as one line.
const JSON: &[&str] = &["--output", "json", "run"];

fn stop_at_once(running: Running) {
    let begun = Instant::now();
    running.stop();
    let took = begun.elapsed();
    eprintln!("stopped in {took:?}");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn g8_a_signal_at_the_first_line_of_the_log_is_a_clean_stop() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "first");
    let mut running = stage.relay().run();
    running.wait_for_log("starting");
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn g8_a_signal_while_postgres_does_not_answer_ends_at_once() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "mute");
    // The system takes the connection, and nobody ever reads from it.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut address = stage.database.address();
    address.port = mute.local_addr().unwrap().port();
    let running = stage.relay_at(&address).run();
    let _unanswered = mute.accept().unwrap();
    stop_at_once(running);
}

#[test]
fn g8_a_signal_while_the_stream_is_not_granted_ends_at_once() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "ungranted");
    let proxy = FreezingProxy::start(&stage.database.address());
    proxy.hold(Kind::Stream);
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let running = relay.run();
    proxy.wait_held();
    stop_at_once(running);
}

#[test]
fn g8_a_signal_does_not_wait_for_a_server_that_a_standby_asks() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "asking");
    let proxy = FreezingProxy::start(&stage.database.address());
    let mut holder = stage.relay().run();
    holder.wait_for_log("\"streaming\"");
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let mut standby = relay.run();
    standby.wait_for_log("standby");
    proxy.freeze();
    let_pass(APART, "a question is under way");
    stop_at_once(standby);
    holder.stop();
}

/// The line of a row that was left out is written before the row is passed over; nobody reads it.
#[test]
fn g4_g8_a_row_left_out_waits_for_its_line_and_a_signal_does_not() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "unread");
    let folder = tempfile::tempdir().unwrap();
    let relay = stage.relay().set("route.rejected", "skip").set("shutdown.grace", "1s");
    let running = relay.unread(folder.path()).run();
    let (first, last) = (stage.topic("A"), stage.topic("B"));
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', 'k', '{first}', '{{}}'), ('t', 'k', 'not a topic', '{{}}'), \
            ('t', 'k', '{last}', '{{}}')"
    ));
    stage.wait_for_records(1);
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(69));
    assert_eq!(stage.records().len(), 1, "what is behind the row waits, too");
}

#[test]
fn g8_a_signal_while_connecting_again_still_tells_what_is_owed() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "owing");
    let proxy = FreezingProxy::start(&stage.database.address());
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let relay = impatient(relay).allow_log("cannot reach Kafka").expect_log("trying again");
    let mut running = relay.expect_log("7 records unconfirmed").start(JSON);
    stage.strand(&mock, 7);
    running.wait_for_log("cannot reach Kafka");
    proxy.hold(Kind::Stream);
    proxy.cut(Kind::Stream);
    running.wait_for_log("trying again");
    proxy.wait_held();
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(69));
}

#[test]
fn g8_a_second_signal_does_not_wait_for_a_peer_that_has_gone_silent() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "farewell");
    let proxy = FreezingProxy::start(&stage.database.address());
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let mut running = relay.expect_log("aborting").expect_log("PR-X012").start(JSON);
    running.wait_for_log("caught up");
    proxy.freeze();
    running.signal(Signal::TERM);
    running.wait_for_log("draining");
    let_pass(APART, "the second signal is one of its own");
    let begun = Instant::now();
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(1));
    let took = begun.elapsed();
    eprintln!("aborted in {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}
