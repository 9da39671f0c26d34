//! kill -9 at every named place of the relay, in both kinds of delivery. Needs the feature
//! `failpoints`, with which `make test` builds.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use postrider::failpoint::PLACES;

use crate::stage::Stage;
use support::wait::let_pass;
use support::{is_full, kafka, postgres, topic};

/// Rows in each of the transactions.
const ROWS: usize = 40;
/// After so long the relay must have died, on a machine busy with other tests.
const LIMIT: Duration = Duration::from_mins(2);
/// Passes of a place up to the one at which the relay dies: in the first transaction, the second, and a later one.
const TIMES: [u32; 3] = [1, 2, 9];
/// Places that only exactly-once delivery passes.
const OF_TRANSACTIONS: [&str; 6] = [
    "transaction_begun",
    "record_sent",
    "progress_sent",
    "commit_due",
    "commit_asked",
    "committed",
];
/// Passed once, or not by these rows.
const RARE: [&str; 9] = [
    "backfill_intended",
    "backfill_slot_made",
    "repair_slot_dropped",
    "repair_compared",
    "slot_taken",
    "progress_read",
    "draining",
    "drained",
    "dead_letter_sent",
];

#[test]
fn g1_g6_a_kill_at_any_place_loses_nothing_and_repeats_nothing() {
    for (place, first) in PLACES.iter().filter(|place| !RARE.contains(place)).zip(0..) {
        for times in times_of(first) {
            die_at(place, times, "exactly_once", "A");
        }
    }
}

#[test]
fn g1_a_kill_at_any_place_loses_nothing() {
    let places = PLACES.iter().filter(|place| !RARE.contains(place));
    for place in places.filter(|place| !OF_TRANSACTIONS.contains(place)) {
        die_at(place, 5, "at_least_once", "A");
    }
}

#[test]
fn g4_g6_a_kill_between_a_dead_letter_and_its_commit_repeats_neither() {
    for times in TIMES {
        die_at("dead_letter_sent", times, "exactly_once", "no such topic");
    }
}

/// One of `TIMES` per place, in turn; with `FULL=1` all of them.
fn times_of(place: usize) -> Vec<u32> {
    if is_full() { TIMES.to_vec() } else { vec![TIMES[place % TIMES.len()]] }
}

/// A relay that dies at a place, and another one that carries on.
fn die_at(place: &str, times: u32, delivery: &str, event_type: &str) {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "place");
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let relay = stage
        .relay_at(&tap.address())
        .set("kafka.delivery", delivery)
        .set("kafka.transaction_age", "1ms")
        .set("source.status_interval", "50ms")
        .allow_log("dead letter");
    let mut doomed = relay.clone().variable("FAILPOINT", &format!("{place}=kill@{times}")).run();
    doomed.wait_for_log("\"streaming\"");
    let (mut committed, begun) = (0, Instant::now());
    while !doomed.has_ended() {
        assert!(begun.elapsed() < LIMIT, "{place}@{times} was never passed");
        stage.insert(event_type, ROWS);
        committed += ROWS;
        let_pass(Duration::from_millis(20), "transactions come one by one");
    }
    let status = doomed.outcome().status;
    assert_eq!(status.signal(), Some(9), "{place}@{times}: {status}");
    let running = relay.run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    eprintln!("{place}@{times}, {delivery}: {} repeated", verdict.duplicated.len());
    match delivery {
        "exactly_once" => verdict.assert_exactly_once(),
        _ => verdict.assert_at_least_once(),
    }
    assert_eq!(verdict.delivered, committed, "{place}@{times}");
}
