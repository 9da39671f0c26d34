//! Two relays, and the one that holds the slot is not what it was.

use std::time::Duration;

use rustix::process::Signal;

use crate::load::Load;
use crate::trial::{Trial, trials};
use support::freezing_proxy::{FreezingProxy, Kind};
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::wait::let_pass;
use support::{postgres, wait_for};

/// The server gives up a client that says nothing for so long.
const WAL_SENDER_TIMEOUT: &str = "2s";
/// Rows per second and rows per transaction of each writer.
const WRITERS: [(u32, u32); 2] = [(200, 1), (300, 20)];

/// Where a Kafka transaction holds records that are stored and not committed.
const OPEN: &str = "commit_due=stop@5";
/// The relay's transactions may take a minute; the brokers look for older ones every ten seconds.
const ABORTED_WITHIN: Duration = Duration::from_secs(75);

/// Whatever a relay says that has been replaced: its peers are gone, and others have taken them over.
fn forgiving(relay: &Relay) -> Relay {
    relay.clone().allow_log("")
}

fn impatient_server(trial: &Trial) {
    trial.stage.sql().run(&format!(
        "ALTER DATABASE {} SET wal_sender_timeout = '{WAL_SENDER_TIMEOUT}'",
        trial.stage.slot()
    ));
}

/// A second relay, which waits for the slot.
fn standby(relay: &Relay) -> Running {
    let mut running = forgiving(relay).run();
    running.wait_for_log("standby:");
    running
}

/// Waits until a relay is a standby, or has ended because another one has fenced it.
fn wait_replaced(running: &mut Running) {
    let words = running.wait_for_any(&["standby:", "another producer", "another relay"]);
    eprintln!("replaced: {words}");
}

/// Ends the load, both relays once all of it is delivered: the one that has the slot, and the one that had it.
fn end(trial: &Trial, load: Load, holder: Running, replaced: Running) {
    load.stop();
    trial.wait_settled();
    holder.stop();
    replaced.kill();
}

#[test]
fn row_14_a_frozen_relay_thaws_as_a_standby() {
    for trial in trials("frozen") {
        impatient_server(&trial);
        let mut first = forgiving(&trial.relay()).run();
        first.wait_for_log("\"streaming\"");
        let load = trial.load(&WRITERS);
        let mut second = standby(&trial.relay());
        first.signal(Signal::STOP);
        second.wait_for_log("\"streaming\"");
        trial.stage.wait_acknowledged(trial.stage.log_end());
        first.signal(Signal::CONT);
        wait_replaced(&mut first);
        end(&trial, load, second, first);
        trial.assert_kept();
    }
}

#[test]
fn row_15_of_two_relays_that_start_together_one_waits() {
    for trial in trials("together") {
        let load = trial.load(&WRITERS);
        let mut relays = [trial.relay().run(), trial.relay().run()];
        let faces = relays.each_mut().map(RelayHttp::of);
        let role = |face: &RelayHttp| face.probe("/readyz").1["role"].as_str().map(str::to_owned);
        wait_for("one of each role", || {
            let mut roles: Vec<_> = faces.iter().filter_map(role).collect();
            roles.sort();
            (roles == ["active", "standby"]).then_some(())
        });
        load.wait_committed(500);
        load.stop();
        trial.wait_settled();
        relays.into_iter().for_each(Running::stop);
        // Neither has disturbed the other.
        trial.assert_once();
    }
}

#[test]
fn row_16_a_relay_whose_slot_is_taken_by_force_steps_back() {
    for trial in trials("forced") {
        let mut first =
            forgiving(&trial.relay().set("retry.initial", "2s").set("retry.max", "2s")).run();
        first.wait_for_log("\"streaming\"");
        let load = trial.load(&WRITERS);
        let mut second = standby(&trial.relay());
        trial.stage.wait_acknowledged(trial.stage.log_end());
        let holder = trial.stage.slot_value("active_pid");
        trial.stage.sql().run(&format!("SELECT pg_terminate_backend({holder})"));
        second.wait_for_log("\"streaming\"");
        wait_replaced(&mut first);
        end(&trial, load, second, first);
        trial.assert_kept();
    }
}

/// A relay that sleeps between taking the slot and looking at it, while its stream is ended and another
/// relay carries on: what it finds when it wakes up is the work of the other, and no fault.
#[test]
fn g1_a_relay_that_sleeps_before_it_looks_at_its_slot_wakes_up_as_a_standby() {
    for cluster in postgres::versions() {
        for (place, delivery) in [
            ("slot_taken", "exactly_once"),
            ("progress_read", "exactly_once"),
            ("progress_read", "at_least_once"),
        ] {
            sleep_before_looking(&Trial::new(cluster, "asleep", delivery), place);
        }
    }
}

fn sleep_before_looking(trial: &Trial, place: &str) {
    let relay = forgiving(&trial.relay());
    let mut sleeper = relay.clone().variable("FAILPOINT", &format!("{place}=stop")).run();
    sleeper.wait_frozen();
    let sleepers = trial.stage.slot_value("active_pid");
    trial.stage.sql().run(&format!("SELECT pg_terminate_backend({sleepers})"));
    // One that wakes up before it fences ends a Kafka transaction of the other.
    let mut other = relay.run();
    other.wait_for_log("\"streaming\"");
    trial.stage.insert("A", 50);
    trial.wait_settled();
    sleeper.signal(Signal::CONT);
    sleeper.wait_for_log("is no longer held by this relay's stream");
    other.stop();
    sleeper.wait_for_log("\"streaming\"");
    trial.stage.insert("A", 50);
    trial.wait_settled();
    sleeper.stop();
    trial.assert_kept();
}

#[test]
fn row_17_a_relay_cut_off_from_postgres_alone_is_replaced() {
    for trial in trials("cut_off") {
        impatient_server(&trial);
        let proxy = FreezingProxy::start(&trial.stage.database.address());
        let mut first = forgiving(&trial.relay().set("source.url", &proxy.url())).run();
        first.wait_for_log("\"streaming\"");
        let load = trial.load(&WRITERS);
        let mut second = standby(&trial.relay());
        proxy.freeze();
        // Nor may it come back by itself, however soon it notices.
        proxy.hold(Kind::Sql);
        second.wait_for_log("\"streaming\"");
        trial.stage.wait_acknowledged(trial.stage.log_end());
        end(&trial, load, second, first);
        trial.assert_kept();
    }
}

/// A producer that sleeps between the last record of a Kafka transaction and its commit, while another
/// relay takes over, and wants to commit when it wakes up.
#[test]
fn row_56_a_fenced_producer_writes_nothing_more() {
    let trial = Trial::new(postgres::installed(), "fenced", "exactly_once");
    impatient_server(&trial);
    let mut first = forgiving(&trial.relay()).variable("FAILPOINT", OPEN).run();
    first.wait_for_log("\"streaming\"");
    let load = trial.load(&WRITERS);
    first.wait_frozen();
    let mut second = standby(&trial.relay());
    second.wait_for_log("\"streaming\"");
    trial.stage.wait_acknowledged(trial.stage.log_end());
    first.signal(Signal::CONT);
    wait_replaced(&mut first);
    end(&trial, load, second, first);
    trial.assert_once();
}

/// The same without another relay, for longer than the brokers keep a transaction open: they abort it
/// and fence its producer.
#[test]
fn row_57_a_transaction_that_outlives_its_timeout_is_sent_again() {
    let trial = Trial::new(postgres::installed(), "timed_out", "exactly_once");
    let slot = trial.stage.slot();
    // The stream stays, so that it is the transaction that fails.
    trial.stage.sql().run(&format!("ALTER DATABASE {slot} SET wal_sender_timeout = 0"));
    let mut relay = forgiving(&trial.relay()).variable("FAILPOINT", OPEN).run();
    relay.wait_for_log("\"streaming\"");
    let load = trial.load(&WRITERS);
    relay.wait_frozen();
    load.stop();
    let_pass(ABORTED_WITHIN, "the brokers abort the transaction");
    relay.signal(Signal::CONT);
    // Which of the two it hears depends on how fast the brokers are.
    relay.wait_for_any(&["fenced", "the end of a Kafka transaction is uncertain"]);
    trial.wait_settled();
    relay.stop();
    trial.assert_once();
}
