//! What a run costs, and migrations of a database that an earlier version created.

use super::{deliver, line, with_slot};
use crate::services::stage::Stage;
use support::unique;
use support::wait::wait_until;

/// What earlier files made otherwise than today's.
const EARLIER: &str = include_str!("earlier.sql");
const TODAY: [&str; 2] = [
    include_str!("../../../../migrations/0003_application.sql"),
    include_str!("../../../../migrations/0004_services.sql"),
];

#[test]
fn rows_of_one_age_are_deleted_without_reading_them_again_for_each_page() {
    const ROWS: u64 = 20_000;
    let stage = with_slot();
    stage.run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at)
             SELECT 't', n::text, 'e', '2020-01-01' FROM generate_series(1, {ROWS}) AS n;
         INSERT INTO processed_messages
             SELECT 'c' || n % 3, gen_random_uuid(), '2020-01-01' FROM generate_series(1, {ROWS}) AS n"
    ));
    deliver(&stage);
    stage.run("ANALYZE");
    // Or this session's own counts would come after it.
    stage.run("SELECT pg_stat_force_next_flush()");
    stage.run("SELECT pg_stat_reset()");
    let tables = ["processed_messages", "outbox"];
    let named = tables.map(|table| ["--table", table]).concat();
    let (status, out, stderr) =
        stage.maintain(&[&named[..], &["--batch", "500", "--pause", "1ms"]].concat());
    assert_eq!(
        (status, out),
        (0, tables.map(|table| line(table, ROWS, 0, false)).concat()),
        "{stderr}"
    );
    for table in tables {
        let count = |what: &str, of: &str| {
            stage.count(&format!(
                "SELECT coalesce(sum({what}), 0)::bigint FROM {of} WHERE relname = '{table}'"
            ))
        };
        // A process's counts are there when its sessions have ended.
        wait_until(table, || count("n_tup_del", "pg_stat_user_tables") == 20_000);
        let entries = count("idx_tup_read", "pg_stat_user_indexes");
        assert!((20_000..21_000).contains(&entries), "{table}: {entries} entries");
        // Nor are they skipped one by one to find the end of the previous page.
        let blocks = count("idx_blks_hit + idx_blks_read", "pg_statio_user_indexes");
        assert!(blocks < 1_000, "{table}: {blocks} blocks of the index");
    }
}

#[test]
fn migrations_can_be_repeated_also_on_tables_of_an_earlier_version() {
    let stage = Stage::set();
    let indexes = "SELECT count(*) FROM pg_indexes WHERE indexname LIKE '%\\_by\\_age'";
    let made = stage.count(indexes);
    stage.run(EARLIER);
    for _ in 0..2 {
        for file in TODAY {
            stage.run(file);
        }
        assert_eq!(stage.count(indexes), made);
        let others = "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%USING brin%' OR \
                      indexname ~ '_(created_at|processed_at|updated_at|ended|settled)$'";
        assert_eq!(stage.count(others), 0);
        let ended = "SELECT count(*) FROM sagas WHERE ended_at = updated_at AND put_off = 0";
        assert_eq!(stage.count(ended), 1, "the one that has ended");
        assert_eq!(stage.count("SELECT count(*) FROM sagas WHERE ended_at IS NULL"), 1);
        let found = "SELECT count(*) FROM gateway_operations WHERE reference = '7'";
        assert_eq!(stage.count(found), 2);
        let lasting =
            "SELECT count(*) FROM pg_constraint WHERE conname = 'gateway_operations_pkey'";
        assert_eq!(stage.count(lasting), 0, "a key that was forgotten can be booked again");
    }
    let (status, out, stderr) = stage.maintain(&["--table", "sagas"]);
    assert_eq!((status, out.contains("\"deleted\":1,")), (0, true), "{stderr}");
}

#[test]
fn a_table_that_cannot_be_cleaned_does_not_stop_the_others() {
    let stage = with_slot();
    stage.run(super::FILL);
    deliver(&stage);
    stage.run("ALTER TABLE processed_messages RENAME COLUMN processed_at TO elsewhere");
    let (status, out, stderr) = stage.maintain(&[]);
    assert_eq!(status, 78, "{stderr}");
    assert!(stderr.contains("error: cannot clean up `processed_messages`: a table or"), "{stderr}");
    assert!(out.contains(&line("idempotency_keys", 32, 0, false)), "{out}");
    assert!(out.contains(&line("outbox", 32, 0, false)), "{out}");
    stage.run("ALTER TABLE processed_messages RENAME COLUMN elsewhere TO processed_at");
    let (database, role) = (stage.database.name(), unique("reader"));
    stage.run(&format!(
        "CREATE ROLE {role}; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
         ALTER DATABASE {database} SET role = '{role}'"
    ));
    let (status, _, stderr) = stage.maintain(&[]);
    assert_eq!(status, 77, "{stderr}");
    assert!(stderr.contains("help: GRANT SELECT, UPDATE, DELETE ON"), "{stderr}");
}

#[test]
fn a_database_with_some_of_the_tables_is_cleaned_of_what_it_has() {
    let stage = with_slot();
    stage.run(super::FILL);
    deliver(&stage);
    // As a service has it that takes no requests and has no saga.
    stage.run(
        "DROP TABLE idempotency_keys, sagas, saga_history, payments, gateway_operations, reservations, \
             notifications",
    );
    let (status, out, stderr) = stage.maintain(&[]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains("tables=\"processed_messages, outbox\""), "{stderr}");
    let cleaned = ["processed_messages", "outbox"].map(|table| line(table, 32, 0, false));
    assert_eq!(out, cleaned.concat());
    // Who names one that is not there is told.
    let (status, _, stderr) = stage.maintain(&["--table", "sagas"]);
    assert!(status == 78 && stderr.contains("cannot clean up `sagas`"), "{status} {stderr}");
    stage.run("DROP TABLE processed_messages, outbox");
    let (status, _, stderr) = stage.maintain(&[]);
    assert!(status == 78 && stderr.contains("has none of the tables"), "{status} {stderr}");
}
