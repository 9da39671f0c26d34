//! Outbox rows are deleted when the slot has passed them; without a slot they stay.

use super::{FILL, advance, create_slot, deliver, line, quiet, with_slot};
use postrider::sandbox::postgres::Options;

use crate::services::stage::Stage;
use support::postgres;
use support::wait::wait_until;

const OUTBOX: [&str; 2] = ["--table", "outbox"];

/// The last line.
fn last(out: &str) -> &str {
    out.lines().last().unwrap()
}

#[test]
fn without_a_slot_the_outbox_is_skipped_and_the_rest_is_cleaned() {
    let stage = quiet();
    stage.run(FILL);
    let slot = stage.database.name();
    // A physical slot has no catalog_xmin.
    stage.run(&format!("SELECT pg_create_physical_replication_slot('{slot}', true)"));
    let words = format!("has no logical replication slot `{slot}`");
    for (dry_run, keys) in [("--dry-run", 200), ("--batch=100", 168)] {
        let (status, out, stderr) = stage.maintain(&[dry_run]);
        assert_eq!(status, 78, "{stderr}");
        assert!(stderr.contains(&words), "{stderr}");
        assert!(stderr.contains("help: set --slot to the relay's slot"), "{stderr}");
        assert!(last(&out).starts_with("{\"table\":\"outbox\",\"deleted\":0,"), "{out}");
        assert!(last(&out).contains("\"left_alone\":\"the outbox was not cleaned up: "), "{out}");
        assert_eq!(stage.count("SELECT count(*) FROM idempotency_keys"), keys);
    }
    assert_eq!(stage.count("SELECT count(*) FROM outbox"), 200);
    stage.run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    create_slot(&stage);
    deliver(&stage);
    let (status, out, stderr) = stage.maintain(&[]);
    assert_eq!((status, last(&out)), (0, line("outbox", 32, 0, false).trim_end()), "{stderr}");
}

#[test]
fn a_lost_slot_keeps_the_outbox_whole() {
    // A cluster of its own: it is configured.
    let cluster = postgres::start(&Options::default());
    let stage = Stage::on(&cluster);
    stage.run(FILL);
    create_slot(&stage);
    deliver(&stage);
    stage.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'");
    stage.run("SELECT pg_reload_conf()");
    let lost = "SELECT count(*) FROM pg_replication_slots WHERE wal_status = 'lost'";
    // The checkpointer may not have read the setting yet.
    wait_until("the slot to be lost", || {
        for _ in 0..4 {
            stage.run("SELECT pg_logical_emit_message(false, '', 'x'); SELECT pg_switch_wal()");
        }
        stage.run("CHECKPOINT");
        stage.count(lost) == 1
    });
    let (status, out, stderr) = stage.maintain(&OUTBOX);
    assert_eq!(status, 70, "{stderr}");
    let lost = format!("replication slot `{}` is lost", stage.database.name());
    assert!(stderr.contains(&lost), "{stderr}");
    assert!(stderr.contains("help: resend undelivered rows from the table"), "{stderr}");
    assert!(out.contains("\"left_alone\""), "{out}");
    assert_eq!(stage.count("SELECT count(*) FROM outbox"), 200);
}

#[test]
fn rows_that_the_slot_has_not_passed_stay_however_old_they_are() {
    let stage = with_slot();
    stage.run(FILL);
    for args in [["--dry-run"], ["--batch=5"]] {
        let (status, out, _) = stage.maintain(&[&OUTBOX[..], &args].concat());
        let expected = line("outbox", 0, 32, args == ["--dry-run"]);
        assert_eq!((status, out), (0, expected));
    }
    deliver(&stage);
    // Rows that are inserted again keep their time, and the slot has to pass them again.
    stage.run(
        "WITH again AS (DELETE FROM outbox WHERE aggregate_id = '199' RETURNING *)
         INSERT INTO outbox SELECT * FROM again",
    );
    assert_eq!(stage.maintain(&OUTBOX).1, line("outbox", 31, 1, false));
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE aggregate_id = '199'"), 1);
    deliver(&stage);
    assert_eq!(stage.maintain(&OUTBOX).1, line("outbox", 1, 0, false));
}

#[test]
fn a_row_of_a_transaction_that_was_open_for_long_stays_until_its_commit_is_delivered() {
    let stage = with_slot();
    let slow = stage.database.sql();
    // The savepoint gives the row a transaction number of its own.
    slow.run(
        "BEGIN; SELECT pg_current_xact_id(); SAVEPOINT inner_one;
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at)
         VALUES ('t', 'slow', 'e', now() - interval '50 days'); RELEASE inner_one",
    );
    stage.run(FILL);
    // The slot passes the row's insert, and what committed meanwhile, but not the slow commit.
    for _ in 0..2 {
        advance(&stage);
    }
    slow.run("COMMIT");
    assert_eq!(stage.maintain(&OUTBOX).1, line("outbox", 0, 33, false));
    deliver(&stage);
    assert_eq!(stage.maintain(&OUTBOX).1, line("outbox", 33, 0, false));
}
