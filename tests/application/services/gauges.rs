//! Open orders and payments are on the metrics, and no poll scans a whole table for them.

use crate::services::maintenance::{deliver, with_slot};
use crate::services::stage::Stage;
use support::wait::wait_until;

/// 10,000 times, half of them more than 42 days ago.
const STORY: &str = "
    CREATE TEMP TABLE story AS
        SELECT n, gen_random_uuid() AS id, now() - n * interval '12 minutes' AS at
        FROM generate_series(1, 10000) AS n";
/// A row of the table for each.
const SAGAS: &str = "
    INSERT INTO sagas (kind, id, state, status, updated_at, ended_at)
        SELECT 'order', id, '{}', 'CONFIRMED', at, at FROM story";
const PAYMENTS: &str = "
    INSERT INTO payments (order_id, order_placed, amount_cents, status, updated_at)
        SELECT id, '{}', 1, 'REFUNDED', at FROM story";
/// Rows of the other tables that are swept, and what goes with them.
const OTHERS: &str = "
    INSERT INTO processed_messages SELECT 'c', id, at FROM story;
    INSERT INTO idempotency_keys SELECT 's', n::text, '', 200, '[]', '', at FROM story;
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
        SELECT 't', n::text, 'e', '{}', at FROM story;
    INSERT INTO saga_history SELECT 'order', id, number, '', '', at
        FROM story, generate_series(1, 3) AS number;
    INSERT INTO gateway_operations SELECT 'charge-' || id, 'charge', 1, NULL, at FROM story;
    INSERT INTO reservations SELECT id, 'tea', 1, 'RELEASED', at FROM story;
    INSERT INTO outbox_sequences SELECT kind, id, 4
        FROM story, (VALUES ('order'), ('payment'), ('reservation')) AS known (kind);
    INSERT INTO stock VALUES ('tea', 1)";

fn fill(stage: &Stage, rows: &[&str]) {
    stage.run(STORY);
    for rows in rows {
        stage.run(rows);
    }
    stage.run("ANALYZE");
    // A session hands over its counts once a second at most, and this one has built indexes.
    stage.run("SELECT pg_stat_force_next_flush()");
    stage.run("SELECT pg_stat_reset()");
}

/// Postgres counts every scan; a process's counts are there when its sessions have ended.
fn assert_read_by_index(stage: &Stage, tables: &[&str]) {
    for table in tables {
        let count = |what: &str| {
            let sql =
                format!("SELECT {what}::bigint FROM pg_stat_user_tables WHERE relname = '{table}'");
            stage.count(&sql)
        };
        wait_until(table, || count("idx_scan") > 0);
        assert_eq!(count("seq_scan"), 0, "{table} is scanned sequentially");
    }
}

#[test]
fn a_run_does_no_sequential_scan() {
    let stage = with_slot();
    fill(&stage, &[SAGAS, PAYMENTS, OTHERS]);
    deliver(&stage);
    // Counting with large pages; deleting with so many that Postgres plans once for all of them.
    stage.maintain(&["--dry-run"]);
    let (status, out, stderr) = stage.maintain(&["--batch", "500", "--pause", "1ms"]);
    assert_eq!(status, 0, "{stderr}");
    // 42 days of 120 rows each stay, but for the one that is just old enough.
    assert_eq!(out.matches("\"deleted\":4961,\"held_back\":0").count(), 6, "{out}");
    assert_read_by_index(
        &stage,
        &[
            "processed_messages",
            "idempotency_keys",
            "sagas",
            "saga_history",
            "payments",
            "gateway_operations",
            "reservations",
            "outbox_sequences",
            "outbox",
        ],
    );
}

#[test]
fn open_and_overdue_orders_are_on_the_metrics_though_their_deadlines_were_postponed() {
    let stage = Stage::set();
    stage.run(
        "INSERT INTO sagas (kind, id, state, status, deadline) SELECT 'order', gen_random_uuid(),
             '{\"payment\": \"awaited\", \"stock\": \"awaited\", \"given_up\": false}', 'PENDING',
             now() + (n - 2.5) * interval '1 hour' FROM generate_series(1, 5) AS n",
    );
    fill(&stage, &[SAGAS]);
    let given_up = "SELECT count(*) FROM outbox WHERE event_type = 'OrderTimedOut'";
    let service = stage.start(&["orders", "--patience", "1h"]);
    wait_until("OrderTimedOut", || stage.count(given_up) == 2);
    service.stop();
    // For this process, no deadline has passed: they are postponed.
    let service = stage.start(&["orders", "--patience", "1h"]);
    service.wait_for(&[
        "\n# TYPE shop_sagas_open gauge\nshop_sagas_open 5\n",
        "\n# TYPE shop_sagas_overdue gauge\nshop_sagas_overdue 2\n",
    ]);
    service.stop();
    assert_read_by_index(&stage, &["sagas"]);
}

#[test]
fn open_and_due_payments_are_on_the_metrics() {
    let stage = Stage::set();
    stage.run(
        "INSERT INTO payments (order_id, order_placed, amount_cents, status, next_attempt_at)
         SELECT gen_random_uuid(), '{}', 1, CASE n WHEN 2 THEN 'REFUNDING' ELSE 'PENDING' END,
             now() + (n - 2.5) * interval '1 hour' FROM generate_series(1, 5) AS n",
    );
    fill(&stage, &[PAYMENTS]);
    // These two are locked: they stay due.
    let other = stage.database.sql();
    other.run("BEGIN; SELECT FROM payments WHERE next_attempt_at < now() FOR UPDATE");
    let service = stage.start(&["payments"]);
    service.wait_for(&["\nshop_payments_open 5\n", "\nshop_payments_due 2\n"]);
    other.run("COMMIT");
    service.wait_for(&["\nshop_payments_open 3\n", "\nshop_payments_due 0\n"]);
    service.stop();
    assert_read_by_index(&stage, &["payments"]);
}
