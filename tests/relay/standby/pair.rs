//! Two relays, one slot.

use std::time::{Duration, Instant};

use crate::load::{Load, prepare};
use crate::stage::Stage;
use support::broker::Broker;
use support::freezing_proxy::FreezingProxy;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::{kafka, postgres, topic};

/// A takeover may take this much longer than promised on a machine busy with other tests.
const PATIENCE: u32 = 25;

fn standby(relay: &Relay) -> (Running, RelayHttp) {
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    // Who has it, before the words of the server, which name a number alone.
    let holder = running.wait_for_log("is in use by process");
    assert!(holder.contains("(postrider") && holder.contains("pg_terminate_backend"), "{holder}");
    running.wait_for_log("standby:");
    (running, face)
}

fn assert_waiting(face: &RelayHttp) {
    // It is told a few times a second.
    face.wait_count("postrider_state{state=\"standby\"}", 1);
    let (status, health) = face.probe("/readyz");
    assert_eq!((status, &health["role"]), (200, &"standby".into()), "{health}");
    assert_eq!(face.probe("/readyz?role=active").0, 503);
}

#[test]
fn g1_g2_a_standby_takes_over_within_a_second_or_two() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "standby");
    prepare(&stage, &broker);
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address());
    let mut first = relay.run();
    first.wait_for_log("streaming");
    let load = Load::start(&stage, &[(300, 1), (300, 20)]);

    let (mut second, face) = standby(&relay);
    assert_waiting(&face);
    first.stop();
    let free = Instant::now();
    second.wait_for_log("streaming");
    let after_stop = free.elapsed();
    face.wait_ready(200);
    assert_eq!(face.probe("/readyz?role=active").0, 200);

    let (mut third, face) = standby(&relay);
    assert_waiting(&face);
    second.kill();
    let free = Instant::now();
    third.wait_for_log("streaming");
    let after_kill = free.elapsed();
    eprintln!("took over {after_stop:?} after a clean stop, {after_kill:?} after kill -9");

    load.stop();
    stage.wait_acknowledged(stage.log_end());
    third.stop();
    stage.verdict(&oracle, &tap.statuses()).assert_at_least_once();
    assert!(after_stop < Duration::from_secs(1) * PATIENCE, "{after_stop:?}");
    assert!(after_kill < Duration::from_secs(2) * PATIENCE, "{after_kill:?}");
}

#[test]
fn without_waiting_a_held_slot_is_exit_code_75() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "held");
    let mut first = stage.relay().run();
    first.wait_for_log("streaming");
    let relay = stage.relay().expect_log("PR-P009");
    let mut second = relay.start(&["--output", "json", "run", "--no-wait"]);
    let error = second.wait_for_log("PR-P009");
    assert!(error.contains(stage.slot()), "{error}");
    assert_eq!(second.wait().code(), Some(75));
    first.stop();
}

/// The walsender of a session whose end it has not noticed is no other relay.
#[test]
fn without_waiting_a_slot_held_by_ones_own_ghost_is_waited_for() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "ghost");
    let timeout = format!("ALTER DATABASE {} SET wal_sender_timeout = '2s'", stage.slot());
    stage.sql().run(&timeout);
    let proxy = FreezingProxy::start(&stage.database.address());
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let mut running = relay.expect_log("trying again").start(&["run", "--no-wait"]);
    running.wait_for_log("caught up");
    proxy.haunt();
    running.wait_for_log("which streamed to this relay before, still holds the slot");
    running.wait_for_log("\"streaming\"");
    stage.insert("A", 1);
    stage.wait_for_records(1);
    running.stop();
}

/// Nothing else asks its brokers before it has to take over.
#[test]
fn a_standby_whose_brokers_do_not_answer_is_warned_of() {
    let stage = Stage::new(postgres::installed(), &Broker::best().bootstrap(), "unready");
    let mut first = stage.relay().run();
    first.wait_for_log("streaming");
    let relay = stage.relay().set("kafka.brokers", "127.0.0.1:1");
    let (mut second, _) = standby(&relay.allow_log("could not take over"));
    let told = second.wait_for_log("this standby could not take over:");
    assert!(told.contains("kafka.brokers"), "{told}");
    second.stop();
    first.stop();
}

#[test]
fn g8_a_standby_ends_at_once_when_told() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "unneeded");
    let mut first = stage.relay().run();
    first.wait_for_log("streaming");
    let (second, _) = standby(&stage.relay());
    let begun = Instant::now();
    second.stop();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    first.stop();
}

/// Set-up and first start by two at once, as where both come with the same deployment: what the slower
/// one writes of a beginning does not undo what the faster one has delivered.
#[test]
fn g6_two_first_starts_at_once_begin_one_stream() {
    let Some(kafka) = kafka::shared() else { return };
    for _ in 0..3 {
        let stage = Stage::migrated(postgres::installed(), &kafka.bootstrap(), "firsts");
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
        }
        let relay = stage.relay().unprepared().set("kafka.delivery", "exactly_once");
        let relay = relay.allow_log("is in use by process").allow_log("standby:");
        let setups = [(); 2].map(|()| relay.start(&["setup"]));
        let ends = setups.map(|setup| setup.wait().code());
        assert_eq!(ends, [Some(0); 2]);
        let oracle = stage.oracle();
        stage.insert("A", 100);
        let [one, two] = [(); 2].map(|()| relay.run());
        stage.insert("A", 100);
        stage.wait_acknowledged(stage.log_end());
        one.stop();
        stage.insert("A", 100);
        stage.wait_acknowledged(stage.log_end());
        two.stop();
        let verdict = stage.verdict(&oracle, &[]);
        verdict.assert_exactly_once();
        assert_eq!(verdict.delivered, 300);
    }
}
