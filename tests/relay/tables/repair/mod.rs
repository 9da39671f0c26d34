//! A stream whose slot was lost, dropped or moved: what is missing in Kafka arrives, once.

mod beginning;
mod interrupted;
mod outcomes;
mod shapes;
mod unknown;
mod unreadable;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{OTHERS_WRITE, empty_stage, insert_in_time, json};
use crate::stage::Stage;
use support::relay::{Outcome, Relay};
use support::wait::wait_until;

/// How progress is kept: exactly once; at least once with it; at least once without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Once,
    Kept,
    Plain,
}

const MODES: [Mode; 3] = [Mode::Once, Mode::Kept, Mode::Plain];

/// A relay of this mode, with small Kafka transactions.
fn relay(stage: &Stage, mode: Mode) -> Relay {
    let relay = stage.relay().allow_log(OTHERS_WRITE).unprepared();
    let relay = relay.set("kafka.transaction_age", "1ms").set("kafka.max_in_flight", "1MiB");
    match mode {
        Mode::Once => relay.set("kafka.delivery", "exactly_once"),
        Mode::Kept => {
            relay.set("progress.at_least_once", "true").set("source.status_interval", "50ms")
        }
        Mode::Plain => relay,
    }
}

/// A stream that has delivered so many rows.
fn streamed(bootstrap: &str, stem: &str, mode: Mode, rows: usize) -> (Stage, Relay) {
    let stage = empty_stage(bootstrap, stem);
    let relay = relay(&stage, mode);
    begin(&stage, &relay);
    insert_in_time(&stage, "A", rows);
    relay.run_once();
    (stage, relay)
}

/// A slot as a backfill of no row makes it.
fn begin(stage: &Stage, relay: &Relay) {
    assert_eq!(json(relay, &["backfill", "--execute"])["finished"], true);
    free(stage);
}

/// The same, whose slot is gone, with so many rows behind it that nobody has delivered.
fn lost(
    bootstrap: &str,
    stem: &str,
    mode: Mode,
    (rows, missing): (usize, usize),
) -> (Stage, Relay) {
    let (stage, relay) = streamed(bootstrap, stem, mode, rows);
    drop_slot(&stage);
    insert_in_time(&stage, "A", missing);
    (stage, relay)
}

/// Whoever had the slot is told a moment later that its client is gone.
fn free(stage: &Stage) {
    wait_until("the slot to be free", || stage.slot_value("count(*) FILTER (WHERE active)") == "0");
}

/// Moves the slot by hand to the end of the log, once nobody has it.
fn advance(stage: &Stage) {
    let slot = stage.slot();
    let sql = format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())");
    wait_until("the slot to be free", || stage.sql().try_run(&sql).is_ok());
}

/// Until it can be seen from the slot that it has passed every row: other tests have transactions open.
fn wait_passed(stage: &Stage) {
    let slot = stage.slot();
    let left = format!(
        "SELECT count(*) FROM outbox WHERE age(xmin) <= (SELECT age(catalog_xmin) \
         FROM pg_replication_slots WHERE slot_name = '{slot}')"
    );
    wait_until("the slot to have passed all rows", || {
        stage.sql().run("CHECKPOINT");
        // Somebody may read it; then it moves by itself.
        let _ = stage.sql().try_run(&format!(
            "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"
        ));
        stage.sql().value(&left) == "0"
    });
}

fn drop_slot(stage: &Stage) {
    free(stage);
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{}')", stage.slot()));
}

fn has_slot(stage: &Stage) -> bool {
    stage.slot_value("count(*)") == "1"
}

fn repair(relay: &Relay, options: &[&str]) -> Value {
    json(relay, &[&["repair", "--execute", "--drop-slot"], options].concat())
}

fn plan(relay: &Relay, options: &[&str]) -> Value {
    json(relay, &[&["repair"], options].concat())["plan"].clone()
}

/// Nothing is missing, which is no failure: whoever goes on by the exit code goes on.
fn assert_not_needed(relay: &Relay) {
    let done = json(relay, &["repair", "--execute"]);
    assert_eq!((&done["finished"], &done["needed"]), (&true.into(), &false.into()), "{done}");
    let why = done["summary"]["nothing_to_repair"].as_str().unwrap();
    assert!(why.starts_with("nothing is to be repaired"), "{done}");
    assert_eq!(done["summary"]["confirmed"], 0);
    let outcome = relay.start(&["repair", "--execute"]).outcome();
    assert!(outcome.status.success(), "{:?}", outcome.log);
    assert!(outcome.stdout.contains(why), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("pg_drop"), "no advice does harm: {}", outcome.stdout);
}

/// Ends with this exit code and this error code.
fn refused(relay: &Relay, arguments: &[&str], exit: i32, code: &str) -> Outcome {
    let outcome = relay.clone().allow_log("").start(arguments).outcome();
    assert_eq!(outcome.status.code(), Some(exit), "{:?} {}", outcome.log, outcome.stdout);
    assert!(outcome.log.concat().contains(code), "{code}: {:?}", outcome.log);
    outcome
}

/// How often each id is in the topics.
fn copies(stage: &Stage) -> BTreeMap<String, usize> {
    let mut copies = BTreeMap::new();
    for record in stage.records() {
        *copies.entry(record.header("id").unwrap().to_owned()).or_default() += 1;
    }
    copies
}

/// Every row of the tables is in the topics, once.
fn assert_each_once(stage: &Stage, tables: &[&str]) {
    let copies = copies(stage);
    let ids = tables.iter().map(|table| format!("SELECT id::text FROM {table}"));
    let ids = stage.sql().rows(&ids.collect::<Vec<_>>().join(" UNION ALL "));
    assert_eq!(copies.len(), ids.len(), "as many as there are");
    for id in ids {
        let id = id[0].as_deref().unwrap();
        assert_eq!(copies.get(id), Some(&1), "{id}");
    }
}
