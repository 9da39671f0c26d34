//! `shop maintain` deletes what is old enough, and nothing else.

use crate::stage::Stage;

/// Rows of every age in days, from today.
const FILL: &str = "
    INSERT INTO processed_messages SELECT 'c', gen_random_uuid(), now() - n * interval '6 hours'
        FROM generate_series(0, 199) AS n;
    INSERT INTO idempotency_keys
        SELECT 's', n::text, '', 200, '[]', '', now() - n * interval '6 hours'
        FROM generate_series(0, 199) AS n;
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at)
        SELECT 't', n::text, 'e', now() - n * interval '6 hours' FROM generate_series(0, 199) AS n;";

#[test]
fn old_rows_go_in_small_transactions_and_young_ones_stay() {
    let stage = Stage::set();
    stage.run(FILL);
    let told = |count: u64, dry_run: bool| {
        ["processed_messages", "idempotency_keys", "outbox"]
            .map(|table| {
                format!("{{\"table\":\"{table}\",\"deleted\":{count},\"dry_run\":{dry_run}}}\n")
            })
            .concat()
    };
    // 42 days of four rows each are 0 to 167, and 168 is just old enough.
    let (status, out, _) = stage.maintain(&["--older-than", "42d", "--dry-run"]);
    assert_eq!((status, out), (0, told(32, true)));
    let (status, out, _) =
        stage.maintain(&["--older-than", "42d", "--batch", "7", "--pause", "1ms"]);
    assert_eq!((status, out), (0, told(32, false)));
    let (status, out, _) = stage.maintain(&["--older-than", "42d"]);
    assert_eq!((status, out), (0, told(0, false)));
    for (table, column) in [
        ("processed_messages", "processed_at"),
        ("idempotency_keys", "created_at"),
        ("outbox", "created_at"),
    ] {
        assert_eq!(stage.count(&format!("SELECT count(*) FROM {table}")), 168, "{table}");
        let old =
            format!("SELECT count(*) FROM {table} WHERE {column} < now() - interval '42 days'");
        assert_eq!(stage.count(&old), 0, "{table}");
    }
}

#[test]
fn an_age_at_which_a_row_may_be_needed_is_refused() {
    let stage = Stage::set();
    stage.run(FILL);
    let (status, _, said) = stage.maintain(&["--older-than", "10d"]);
    assert_eq!(status, 2, "{said}");
    assert!(said.contains("`processed_messages` may be needed for 864 hours"), "{said}");
    let (status, _, said) = stage.maintain(&["--older-than", "10d", "--table", "outbox"]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM processed_messages"), 200);
}
