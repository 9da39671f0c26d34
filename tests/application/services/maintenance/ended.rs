//! Rows of an order are deleted long after they changed last; those that undoing it would need stay.

use super::line;
use crate::services::stage::Stage;
use support::http::get;

/// Five orders, which are 60 days old but for the young one: one that was undone, one that is open, one
/// that ended recently, one whose payment was never executed, one that was confirmed.
const ORDERS: &str = "
    CREATE TEMP TABLE story AS
        SELECT n, ('00000000-0000-0000-0000-00000000000' || n)::uuid AS id,
            CASE n WHEN 3 THEN now() - interval '40 days' ELSE now() - interval '60 days' END AS at
        FROM generate_series(1, 5) AS n;
    INSERT INTO orders SELECT id, 'a', 1, '', at, 'tea', 1 FROM story;
    INSERT INTO sagas (kind, id, state, status, deadline, updated_at, ended_at)
        SELECT 'order', id, '{}', '', CASE n WHEN 2 THEN at END, at,
            CASE WHEN n IN (1, 3, 5) THEN at END FROM story WHERE n <> 4;
    INSERT INTO saga_history SELECT 'order', id, number, '', '', at
        FROM story, generate_series(1, 3) AS number WHERE n <> 4;
    INSERT INTO payments (order_id, order_placed, amount_cents, status, updated_at)
        SELECT id, '{}', 1, (ARRAY['REFUNDED', 'CHARGED', 'REFUNDED', 'PENDING', 'CHARGED'])[n], at FROM story;
    INSERT INTO gateway_operations SELECT kind || '-' || id, kind, 1, NULL, at
        FROM story, (VALUES ('charge'), ('refund')) AS known (kind);
    INSERT INTO reservations
        SELECT id, 'tea', 1, CASE WHEN n IN (1, 3) THEN 'RELEASED' ELSE 'RESERVED' END, at
            FROM story WHERE n <> 4;
    INSERT INTO outbox_sequences SELECT kind, id, 4
        FROM story, (VALUES ('order'), ('payment'), ('reservation'), ('account')) AS known (kind);";

#[test]
fn rows_of_an_order_are_deleted_long_after_its_end_and_never_before() {
    let stage = Stage::set();
    stage.run(ORDERS);
    let maintain = |args: &[&str]| {
        let tables = ["--table", "sagas", "--table", "payments", "--table", "reservations"];
        let (status, out, stderr) = stage.maintain(&[&tables, args].concat());
        assert_eq!(status, 0, "{stderr}");
        out
    };
    let expected = |dry_run| {
        let with = |table, deleted, along: &str| {
            let line = line(table, deleted, 0, dry_run);
            line.replace(",\"dry_run\"", &format!(",\"along\":{{{along}}},\"dry_run\""))
        };
        [
            with("sagas", 2, "\"outbox_sequences\":2,\"saga_history\":6"),
            with("payments", 1, "\"gateway_operations\":2,\"outbox_sequences\":1"),
            with("reservations", 1, "\"outbox_sequences\":1"),
        ]
        .concat()
    };
    assert_eq!(maintain(&["--dry-run"]), expected(true));
    assert_eq!(maintain(&["--batch", "1"]), expected(false));
    let left = |table, column, is_like| {
        let sql = format!("SELECT count(*) FROM {table} WHERE {column}::text {is_like}");
        stage.count(&sql)
    };
    for (table, column, of_others) in [
        ("sagas", "id", 2),
        ("saga_history", "id", 6),
        ("payments", "order_id", 4),
        ("gateway_operations", "key", 8),
        ("reservations", "order_id", 3),
    ] {
        assert_eq!(left(table, column, "LIKE '%01'"), 0, "{table}");
        assert_eq!(left(table, column, "NOT LIKE '%01'"), of_others, "{table}");
    }
    // Aggregates that still exist keep their sequence.
    assert_eq!(left("outbox_sequences", "aggregate_id", "LIKE '%01'"), 1);
    assert_eq!(left("outbox_sequences", "aggregate_type", "= 'account'"), 5);
    assert_eq!(left("orders", "id", "LIKE '%'"), 5, "orders are never deleted");
    // Nor are charges and reservations that stand, whether the order is open or confirmed.
    for is_its in ["LIKE '%02'", "LIKE '%05'"] {
        assert_eq!(left("payments", "order_id", is_its), 1);
        assert_eq!(left("reservations", "order_id", is_its), 1);
    }
}

#[test]
fn an_order_shows_how_it_ended_though_its_saga_is_gone() {
    let stage = Stage::set();
    stage.run(ORDERS);
    stage.run("UPDATE orders SET status = 'CONFIRMED'");
    let (status, out, stderr) = stage.maintain(&["--table", "sagas"]);
    assert_eq!((status, out.contains("\"deleted\":2,")), (0, true), "{stderr}");
    let service = stage.orders();
    let order = get(&service.address, "/orders/00000000-0000-0000-0000-000000000001");
    assert_eq!((order.status, order.json()["status"].as_str()), (200, Some("CONFIRMED")));
    service.stop();
}
