//! What a row takes with its indexes, against the table of `docs/patterns/cleaning-up.md`.
//!
//! Input: the page, and 100,000 rows of each kind as services write them. Invariant: the page is within a
//! tenth of what Postgres says.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use support::postgres::{self, Database};
use support::root;
use support::sql::Sql;

/// A version 7 UUID of the millisecond `n`, as the writer draws them; and a random one.
const UUID_7: &str = "(lpad(to_hex(1760000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) \
     || '8' || substr(md5(n::text), 4, 15))::uuid";
const UUID_4: &str = "md5(n::text)::uuid";
const AT: &str = "timestamptz '2026-01-01' + n * interval '1 ms'";

/// The page's name of the row, the table, how many rows, and a SELECT that makes them from `n`.
const KINDS: &[(&str, &str, usize, &str)] = &[
    (
        "an event of 200 bytes",
        "outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at, sequence, traceparent)",
        100_000,
        "UUID_7, 'order', (UUID_4)::text, 'OrderPlaced', \
         jsonb_build_object('order', (UUID_4)::text, 'note', repeat('x', 140)), AT, 1, \
         '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'",
    ),
    ("an aggregate", "outbox_sequences", 100_000, "'order', (UUID_4)::text, 5"),
    ("a message with an id of version 7", "processed_messages", 100_000, "'payments', UUID_7, AT"),
    ("a message whose id is random", "processed_messages", 100_000, "'payments', UUID_4, AT"),
    (
        "a request, a response of 83 bytes",
        "idempotency_keys (scope, key, fingerprint, status, headers, body, created_at)",
        100_000,
        "'tenant-7 POST /orders', (UUID_4)::text, sha256(n::text::bytea), 201, \
         '[[\"content-type\", \"application/json\"]]', repeat('x', 83)::bytea, AT",
    ),
    (
        "a saga that has ended, a state of 150 bytes",
        "sagas (kind, id, state, status, deadline, updated_at, ended_at)",
        100_000,
        "'order', (UUID_7)::text, jsonb_build_object('note', repeat('x', 125)), 'CONFIRMED', NULL, AT, AT",
    ),
    (
        "an entry of its history",
        "saga_history (kind, id, number, event, status, at, cause)",
        100_000,
        "'order', lpad((n / 5)::text, 36, '0'), n % 5, 'PaymentProcessed', 'PAID', AT, UUID_7",
    ),
    (
        "a partition",
        "consumer_offsets (consumer, topic, partition, next_offset)",
        1_000,
        "'payments', 'OrderPlaced', n, 1000000",
    ),
];

/// The bytes that the page says, by the name of the row.
fn documented(page: &str, name: &str) -> f64 {
    let row = page.lines().find(|line| line.contains(&format!("| {name} |")));
    let row = row.unwrap_or_else(|| panic!("the page has no row for {name}"));
    let bytes = row.split('|').nth(3).unwrap().trim();
    bytes.parse().unwrap()
}

fn measured(sql: &Sql, into: &str, rows: usize, select: &str) -> f64 {
    let table = into.split(' ').next().unwrap();
    let select = select.replace("UUID_7", UUID_7).replace("UUID_4", UUID_4).replace("AT", AT);
    sql.run(&format!("TRUNCATE {table}"));
    // In many statements: an index is built as its rows come, not in one sorted pass.
    for first in (1..=rows).step_by(1_000) {
        let last = first + 999;
        sql.run(&format!(
            "INSERT INTO {into} SELECT {select} FROM generate_series({first}, {last}) AS n"
        ));
    }
    let bytes: f64 =
        sql.value(&format!("SELECT pg_total_relation_size('{table}')")).parse().unwrap();
    bytes / f64::from(u32::try_from(rows).unwrap())
}

#[test]
fn a_row_takes_what_the_page_says() {
    let page = std::fs::read_to_string(root().join("docs/patterns/cleaning-up.md")).unwrap();
    let sql = Database::migrated(postgres::installed(), "sizing").sql();
    let mut wrong = Vec::new();
    for (name, into, rows, select) in KINDS {
        let bytes = measured(&sql, into, *rows, select);
        let told = documented(&page, name);
        if (told - bytes).abs() > bytes / 10.0 {
            wrong.push(format!("{name}: {bytes:.0}, and the page says {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
