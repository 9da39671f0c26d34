//! Failovers in which something goes wrong: two servers that both take writes, a slot that was not copied, and
//! transactions that are under way. What a relay delivers is what the promoted server has, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider::sandbox::postgres::Stop;
use rustix::process::{Pid, Signal, kill_process};

use super::pair::{Pair, delivered, rows, wait_for_copy};
use support::relay::Running;
use support::wait::stays;
use support::{kafka, postgres, topic, wait_for};

const ROWS: usize = 100;
/// Rows of a transaction that is under way when the primary dies.
const ROWS_OF_ONE: usize = 20_000;
/// How long nothing must come that would come at once.
const QUIET: Duration = Duration::from_secs(2);
const INSERT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                      SELECT 't', n % 10, 'A', '{}' FROM generate_series(1, 100) AS n";
const DELIVERIES: [&str; 2] = ["at_least_once", "exactly_once"];
const PROVEN: &str = "delivery resumes there";

/// The two servers, and a relay that streams; `None` after saying what this machine lacks.
fn streaming(stem: &str, delivery: &str) -> Option<(Pair, Running)> {
    let (options, kafka) = (postgres::eighteen_options()?, kafka::shared()?);
    let pair = Pair::start(&options, &kafka.bootstrap(), stem, true);
    topic::create(&kafka.bootstrap(), &pair.stage.topic("A"), 3, &[]);
    let mut running = pair.relay(delivery).run();
    running.wait_for_log("\"streaming\"");
    wait_for_copy(&pair.stage, &pair.after);
    pair.stage.insert("A", ROWS);
    pair.stage.wait_acknowledged(pair.stage.log_end());
    Some((pair, running))
}

/// Waits until all that the promoted server has is delivered and acknowledged, and nothing else was, exactly once
/// nothing twice.
fn assert_delivered(pair: &Pair, delivery: &str) {
    let kept = rows(&pair.after);
    let is_whole = || delivered(&pair.after).0.is_superset(&kept);
    wait_for("every row", || is_whole().then_some(()));
    pair.after.wait_acknowledged(pair.after.log_end());
    let (ids, records) = delivered(&pair.after);
    let more: BTreeSet<_> = ids.difference(&kept).collect();
    assert!(more.is_empty(), "{delivery}: the promoted server does not have {more:?}");
    assert!(delivery == "at_least_once" || records == ids.len(), "{delivery}: {records}");
}

/// The failover manager cannot reach the primary, and the relay can: `synchronized_standby_slots` keeps it from
/// delivering what the promoted server will not have.
#[test]
fn g1_g6_a_primary_that_lives_on_beside_the_promoted_one_delivers_nothing_of_its_own() {
    for delivery in DELIVERIES {
        let Some((mut pair, mut running)) = streaming("both_live", delivery) else { return };
        pair.promote();
        let before = pair.stage.acknowledged();
        pair.stage.insert("A", ROWS);
        let own = pair.stage.log_end();
        pair.after.insert("A", ROWS);
        let count = pair.stage.records().len();
        stays("nothing is delivered", QUIET, || pair.stage.records().len() == count);
        let acknowledged = pair.stage.acknowledged();
        assert!((before..own).contains(&acknowledged), "{before} {acknowledged} {own}");
        // At last it is fenced.
        pair.primary.stop(Stop::Kill).unwrap();
        running.wait_for_log(PROVEN);
        assert_delivered(&pair, delivery);
        running.stop();
    }
}

/// The standby does not receive, and the relay waits for it: what it lacks is not delivered before it dies with the
/// primary.
#[test]
fn g1_g6_rows_that_a_standby_behind_lacks_are_not_delivered_and_go_with_the_primary() {
    for delivery in DELIVERIES {
        let Some((mut pair, mut running)) = streaming("behind", delivery) else { return };
        let count = pair.stage.records().len();
        let receiver = pair.after.sql().value("SELECT pid FROM pg_stat_wal_receiver");
        let receiver = Pid::from_raw(receiver.parse().unwrap()).unwrap();
        kill_process(receiver, Signal::STOP).unwrap();
        pair.stage.insert("A", ROWS);
        stays("nothing is delivered", QUIET, || pair.stage.records().len() == count);
        let before = rows(&pair.stage).len();
        pair.primary.stop(Stop::Kill).unwrap();
        // It ends before it reads what came meanwhile.
        kill_process(receiver, Signal::TERM).unwrap();
        kill_process(receiver, Signal::CONT).unwrap();
        pair.promote();
        running.wait_for_log(PROVEN);
        let kept = rows(&pair.after).len();
        assert!(kept + ROWS <= before, "{delivery}: {kept} of {before}: the standby was behind");
        pair.after.insert("A", ROWS);
        assert_delivered(&pair, delivery);
        running.stop();
    }
}

/// The list of hosts leads to it whenever the promoted server is away. It has rows that nobody else has.
#[test]
fn g1_g6_an_old_primary_that_returns_is_refused_and_keeps_its_rows_to_itself() {
    for delivery in DELIVERIES {
        let Some((mut pair, mut running)) = streaming("returned", delivery) else { return };
        pair.fail_over();
        running.wait_for_log(PROVEN);
        pair.after.insert("A", ROWS);
        assert_delivered(&pair, delivery);
        pair.primary.start_again().unwrap();
        // Where everybody takes it for the primary.
        pair.stage.insert("A", ROWS);
        pair.stage.sql().run("ALTER SYSTEM SET synchronized_standby_slots = ''");
        pair.stage.sql().run("SELECT pg_reload_conf()");
        let (position, count) = (pair.stage.acknowledged(), pair.stage.records().len());
        pair.standby.stop(Stop::Fast).unwrap();
        assert_refused(running, "timeline 1, which does not descend from timeline 2");
        if delivery == "exactly_once" {
            // A supervisor starts it again, and it knows by its progress.
            assert_refused(pair.relay(delivery).run(), "does not descend from timeline 2");
        }
        assert_eq!(pair.stage.acknowledged(), position, "{delivery}: its slot stays where it is");
        assert_eq!(pair.stage.records().len(), count, "{delivery}: nothing of it is delivered");
        pair.primary.stop(Stop::Kill).unwrap();
        pair.standby.start_again().unwrap();
        pair.after.insert("A", ROWS);
        let running = pair.relay(delivery).run();
        assert_delivered(&pair, delivery);
        running.stop();
    }
}

fn assert_refused(running: Running, why: &str) {
    let outcome = running.outcome();
    assert_eq!(outcome.status.code(), Some(70), "{:?}", outcome.log);
    assert!(outcome.log.iter().any(|line| line.contains(why)), "{:?}", outcome.log);
    let fix = "stop it, and make it a standby";
    assert!(outcome.log.iter().any(|line| line.contains(fix)), "{:?}", outcome.log);
}

/// A slot that is not made for it is not copied, and a new one would pass over rows.
#[test]
fn g1_a_promoted_server_without_the_slot_ends_the_relay_which_makes_none() {
    let (Some(options), Some(kafka)) = (postgres::eighteen_options(), kafka::shared()) else {
        return;
    };
    for delivery in DELIVERIES {
        let mut pair = Pair::start(&options, &kafka.bootstrap(), "not_copied", false);
        topic::create(&kafka.bootstrap(), &pair.stage.topic("A"), 3, &[]);
        let relay = pair.relay(delivery).set("source.create", "auto");
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        pair.stage.insert("A", ROWS);
        pair.stage.wait_acknowledged(pair.stage.log_end());
        pair.wait_replayed();
        pair.fail_over();
        let outcome = running.outcome();
        assert_eq!(outcome.status.code(), Some(70), "{:?}", outcome.log);
        let slots = "SELECT count(*) FROM pg_replication_slots";
        assert_eq!(pair.after.sql().value(slots), "0", "{delivery}: {:?}", outcome.log);
    }
}

/// One is open and goes with the primary; the other one is prepared, and is committed by the promoted server.
#[test]
fn g1_g6_a_transaction_prepared_before_a_failover_is_delivered_once_it_is_committed_after_it() {
    for delivery in DELIVERIES {
        let Some((mut pair, mut running)) = streaming("prepared", delivery) else { return };
        let open = pair.stage.sql();
        open.run(&format!("BEGIN; {INSERT}"));
        pair.stage.sql().run(&format!("BEGIN; {INSERT}; PREPARE TRANSACTION 'two'"));
        // Some that are committed beside them, of which the slot moves on.
        pair.stage.insert("A", ROWS);
        pair.stage.wait_acknowledged(pair.stage.log_end());
        pair.wait_replayed();
        pair.fail_over();
        running.wait_for_log(PROVEN);
        let before = rows(&pair.after).len();
        pair.after.sql().run("COMMIT PREPARED 'two'");
        assert_eq!(rows(&pair.after).len(), before + ROWS, "the open one is gone");
        assert_delivered(&pair, delivery);
        running.stop();
    }
}

/// Some of its records are in Kafka when the primary dies.
#[test]
fn g1_g6_a_failover_in_the_midst_of_a_large_transaction_costs_and_repeats_nothing_exactly_once() {
    for delivery in DELIVERIES {
        let Some((mut pair, mut running)) = streaming("large", delivery) else { return };
        let before = pair.stage.records().len();
        pair.stage.insert("A", ROWS_OF_ONE);
        pair.wait_replayed();
        pair.stage.wait_for_records(before + 1);
        pair.fail_over();
        running.wait_for_log(PROVEN);
        assert_delivered(&pair, delivery);
        running.stop();
    }
}
