//! Transactions that are huge, tiny, foreign or open for long, and what is no insert at all.

use crate::trial::{TOPIC, trials};
use support::relay_http::RelayHttp;

/// Above what the relay needs for its budget of 8 MiB in flight and the build that the tests use; far
/// below what is written here.
const MEMORY_MAX: f64 = 64.0 * 1024.0 * 1024.0;

const MEMORY: &str = "process_resident_memory_bytes";

#[test]
fn row_36_what_is_no_insert_makes_no_record() {
    for trial in trials("no_insert") {
        let running = trial.relay().run();
        let sql = trial.stage.sql();
        for _ in 0..3 {
            trial.stage.insert(TOPIC, 20);
            sql.run("UPDATE outbox SET payload = '{}' WHERE aggregate_id < '5'");
            sql.run("DELETE FROM outbox WHERE aggregate_id > '7'");
            sql.run("VACUUM FULL outbox");
            sql.run("CLUSTER outbox USING outbox_pkey");
            trial.stage.insert(TOPIC, 20);
            sql.run("REINDEX TABLE outbox");
            sql.run("TRUNCATE outbox");
            sql.run("VACUUM FREEZE outbox");
        }
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_once().delivered, 120);
    }
}

#[test]
fn row_38_a_huge_transaction_passes_through_little_memory() {
    for trial in trials("huge") {
        let mut running = trial.relay().set("kafka.max_in_flight", "8MiB").run();
        let face = RelayHttp::of(&mut running);
        trial.stage.insert(TOPIC, 300_000);
        trial.wait_settled();
        let memory = face.metric(MEMORY).unwrap();
        running.stop();
        eprintln!("{}: {} MiB", trial.delivery, memory / f64::from(1 << 20));
        assert!(memory < MEMORY_MAX, "{memory}");
        assert_eq!(trial.assert_once().delivered, 300_000);
    }
}

#[test]
fn row_39_many_tiny_and_foreign_transactions_pass_through_little_memory() {
    for trial in trials("tiny") {
        let mut running = trial.relay().set("kafka.max_in_flight", "8MiB").run();
        let face = RelayHttp::of(&mut running);
        let sql = trial.stage.sql();
        sql.run("CREATE TABLE foreign_rows (n int); SET synchronous_commit = off");
        sql.run(&format!(
            "DO $$ BEGIN FOR n IN 1..10000 LOOP \
             INSERT INTO foreign_rows VALUES (n); COMMIT; \
             INSERT INTO foreign_rows VALUES (n); COMMIT; \
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('t', n % 10, '{TOPIC}', '{{}}'); COMMIT; \
             END LOOP; END $$"
        ));
        sql.run("SET synchronous_commit = on; INSERT INTO foreign_rows VALUES (0)");
        trial.wait_settled();
        let memory = face.metric(MEMORY).unwrap();
        running.stop();
        eprintln!("{}: {} MiB", trial.delivery, memory / f64::from(1 << 20));
        assert!(memory < MEMORY_MAX, "{memory}");
        assert_eq!(trial.assert_once().delivered, 10_000);
    }
}

#[test]
fn row_40_a_long_open_transaction_holds_up_nothing() {
    for trial in trials("long_open") {
        let running = trial.relay().run();
        let open = trial.stage.sql();
        open.run(&format!(
            "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('t', '1', '{TOPIC}', '{{}}')"
        ));
        let begun = trial.stage.log_end();
        for number in 1..=10 {
            trial.stage.insert(TOPIC, 20);
            open.run(&format!(
                "SAVEPOINT s; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('t', '1', '{TOPIC}', '{{}}'); {} s",
                if number % 2 == 0 { "RELEASE" } else { "ROLLBACK TO" }
            ));
        }
        trial.wait_settled();
        let restart: u64 = trial.stage.slot_value("restart_lsn - '0/0'").parse().unwrap();
        assert!(restart <= begun, "Postgres let go of an open transaction");
        assert_eq!(trial.stage.records().len(), 200);
        open.run("COMMIT");
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_once().delivered, 206);
    }
}
