//! `shop maintain` deletes old rows, and nothing else.

mod dead_letters;
mod ended;
mod outbox;
mod plan;
mod retention;
mod running;

use std::sync::OnceLock;

use postrider::sandbox::postgres::{Cluster, Options};

use crate::services::stage::Stage;
use support::postgres;
use support::wait::wait_until;

/// A stage on the cluster of the tests with slots, where no transaction is open for long: it would hold the slots
/// of all databases back.
fn quiet() -> Stage {
    static QUIET: OnceLock<Cluster> = OnceLock::new();
    Stage::on(QUIET.get_or_init(|| postgres::shared(&Options::default())))
}

/// The same with the slot that the relay would have made.
pub(crate) fn with_slot() -> Stage {
    let stage = quiet();
    create_slot(&stage);
    stage
}

fn create_slot(stage: &Stage) {
    let slot = stage.database.name();
    stage.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
}

/// Rows of every age in days, from today: 200 of them, 32 of which are older than 42 days.
const FILL: &str = "
    INSERT INTO processed_messages SELECT 'c', gen_random_uuid(), now() - n * interval '6 hours'
        FROM generate_series(0, 199) AS n;
    INSERT INTO idempotency_keys
        SELECT 's', n::text, '', 200, '[]', '', now() - n * interval '6 hours'
        FROM generate_series(0, 199) AS n;
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at)
        SELECT 't', n::text, 'e', now() - n * interval '6 hours' FROM generate_series(0, 199) AS n;";

/// The relay delivers all that is committed, and the slot passes it: what other tests have open when this begins
/// is waited for.
pub(crate) fn deliver(stage: &Stage) {
    let (slot, now) = (stage.database.name(), stage.count("SELECT pg_current_xact_id()"));
    let passed = format!(
        "SELECT count(*) FROM pg_replication_slots
         WHERE slot_name = '{slot}' AND catalog_xmin::text::bigint > {now}"
    );
    wait_until("the slot to pass", || {
        advance(stage);
        stage.count(&passed) == 1
    });
}

/// The slot advances by what it may. A checkpoint logs the running transactions.
fn advance(stage: &Stage) {
    let slot = stage.database.name();
    stage.run("CHECKPOINT");
    stage.run(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"));
}

fn line(table: &str, deleted: u64, held_back: u64, dry_run: bool) -> String {
    format!(
        "{{\"table\":\"{table}\",\"deleted\":{deleted},\"held_back\":{held_back},\
         \"dry_run\":{dry_run}}}\n"
    )
}

#[test]
fn old_rows_are_deleted_in_small_transactions_and_young_ones_stay() {
    let stage = with_slot();
    stage.run(FILL);
    deliver(&stage);
    let tables = ["processed_messages", "idempotency_keys", "outbox"];
    let named = tables.map(|table| ["--table", table]).concat();
    let maintain = |args: &[&str]| {
        let (status, out, _) =
            stage.maintain(&[&named[..], &["--older-than", "42d"], args].concat());
        (status, out)
    };
    let expected =
        |count: u64, dry_run: bool| tables.map(|table| line(table, count, 0, dry_run)).concat();
    // 42 days of four rows each are 0 to 167, and 168 is just old enough.
    assert_eq!(maintain(&["--dry-run"]), (0, expected(32, true)));
    assert_eq!(maintain(&["--dry-run", "--batch", "7"]), (0, expected(32, true)));
    assert_eq!(maintain(&["--batch", "7", "--pause", "1ms"]), (0, expected(32, false)));
    assert_eq!(maintain(&[]), (0, expected(0, false)));
    for (table, column) in tables.into_iter().zip(["processed_at", "created_at", "created_at"]) {
        assert_eq!(stage.count(&format!("SELECT count(*) FROM {table}")), 168, "{table}");
        let old =
            format!("SELECT count(*) FROM {table} WHERE {column} < now() - interval '42 days'");
        assert_eq!(stage.count(&old), 0, "{table}");
    }
}

#[test]
fn a_locked_row_is_left_for_the_next_run() {
    let stage = Stage::set();
    stage.run(FILL);
    let other = stage.database.sql();
    other.run("BEGIN; SELECT FROM idempotency_keys WHERE key = '199' FOR UPDATE");
    let maintain = || stage.maintain(&["--table", "idempotency_keys", "--batch", "5"]).1;
    assert_eq!(maintain(), line("idempotency_keys", 31, 0, false));
    other.run("COMMIT");
    assert_eq!(maintain(), line("idempotency_keys", 1, 0, false));
}

#[test]
fn an_age_at_which_a_row_may_be_needed_is_refused() {
    let stage = with_slot();
    stage.run(FILL);
    let (status, _, stderr) = stage.maintain(&["--older-than", "10d"]);
    assert_eq!(status, 2, "{stderr}");
    assert!(stderr.contains("`processed_messages` must be kept for 864 hours"), "{stderr}");
    let (status, _, stderr) = stage.maintain(&["--older-than", "10d", "--table", "outbox"]);
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(stage.count("SELECT count(*) FROM processed_messages"), 200);
}
