//! A long run logs its progress, and stops between two transactions when told to.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::{FILL, create_slot, deliver, quiet};
use crate::services::stage::{Stage, terminate};
use support::http::get;
use support::wait::wait_until;

/// At one row each 20 ms, work for half a minute: these tests are done long before.
const ROWS: i64 = 1_500;
const SLOWLY: [&str; 6] = ["--table", "idempotency_keys", "--batch", "1", "--pause", "20ms"];

fn fill(stage: &Stage) {
    stage.run(&format!(
        "INSERT INTO idempotency_keys SELECT 's', n::text, '', 200, '[]', '', \
             now() - interval '60 days' - n * interval '1 second' \
         FROM generate_series(1, {ROWS}) AS n"
    ));
}

fn left(stage: &Stage) -> i64 {
    stage.count("SELECT count(*) FROM idempotency_keys")
}

#[test]
fn a_run_that_is_stopped_logs_progress_and_prints_its_result() {
    let stage = Stage::set();
    fill(&stage);
    let mut child = Command::new(env!("CARGO_BIN_EXE_shop"))
        .arg("maintain")
        .args(SLOWLY)
        .env("DATABASE_URL", stage.database_url())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let progress = log.find(|line| line.contains(" cleaning ")).expect("progress is logged");
    let number = progress.split("deleted=").nth(1).unwrap().split(' ').next().unwrap();
    let (so_far, left_then) = (number.parse::<i64>().unwrap(), left(&stage));
    assert!(so_far > 0 && so_far <= ROWS - left_then, "{progress}");
    terminate(&child);
    let rest: Vec<String> = log.collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{rest:?}");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["deleted"].as_i64(), Some(ROWS - left(&stage)));
    assert!(left(&stage) > 0);
}

#[test]
fn metrics_grow_during_a_run_and_it_stops_when_told_to() {
    let stage = Stage::set();
    fill(&stage);
    let service = stage.start(&[&["maintain", "--every", "1h"], &SLOWLY[..]].concat());
    let deleted = || {
        let page = get(&service.address, "/metrics").body;
        let value = page.split("\nshop_maintenance_rows_deleted_total ").nth(1).unwrap();
        value.lines().next().unwrap().parse::<i64>().unwrap()
    };
    let first = deleted();
    wait_until("more to be deleted", || deleted() > first);
    assert!(left(&stage) > 0, "the run is not finished");
    service.stop();
    assert!(left(&stage) > 0);
}

#[test]
fn a_run_without_a_slot_is_counted_and_repeated() {
    let stage = quiet();
    let slot = stage.database.name();
    let service =
        stage.start(&["maintain", "--every", "500ms", "--table", "outbox", "--slot", slot]);
    let held_back = |rows: u64| format!("\nshop_maintenance_outbox_rows_held_back {rows}\n");
    let skipped = || service.metric("shop_maintenance_outbox_left_alone_total");
    wait_until("two runs", || skipped() >= 2);
    service.wait_for(&[&held_back(0)]);
    create_slot(&stage);
    stage.run(FILL);
    service.wait_for(&[&held_back(32)]);
    deliver(&stage);
    service.wait_for(&[&held_back(0)]);
    let log = service.stop().join("\n");
    assert!(log.contains(&format!("has no logical replication slot `{slot}`")), "{log}");
    assert_eq!(stage.count("SELECT count(*) FROM outbox"), 168);
}
