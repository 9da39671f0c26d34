//! In steady state a row costs no allocation between the frame and the record (G3).
//!
//! Input: frames as the server sends them. Output: a failed test when decoding, the relation cache
//! or the router allocates for a row that is like the ones before it. Allocations are counted by thread, so
//! the other tests of the program do not matter.

#![expect(clippy::expect_used, clippy::panic, reason = "a panic here is a failed test")]

use std::hint::black_box;

use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, Position, TableName, type_oid};
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Column, Message, PgTime, decode};
use postrider::route::{
    ColumnStyle, DestinationSpec, FormatSpec, PatternSpec, RouteSpec, Router, RuleAction, RuleSpec,
};

const TABLE: u32 = 16_394;
const ROWS: u64 = 10_000;

const COLUMNS: [(&[u8], u32); 6] = [
    (b"id", type_oid::UUID),
    (b"aggregate_type", type_oid::TEXT),
    (b"aggregate_id", type_oid::TEXT),
    (b"event_type", type_oid::TEXT),
    (b"payload", type_oid::BYTEA),
    (b"traceparent", type_oid::TEXT),
];

/// A row whose id and payload have to be made, in 7 kinds and various sizes.
fn insert(out: &mut Vec<u8>, number: u64) {
    let id = u128::from(number).to_be_bytes();
    let kind = format!("OrderKind{}", number % 7);
    let payload = format!("\\x{}", "ab".repeat(usize::try_from(number % 400).unwrap_or(0)));
    out.clear();
    let row = [
        Column::Binary(&id),
        Column::Text(b"Order"),
        Column::Text(b"order-1"),
        Column::Text(kind.as_bytes()),
        Column::Text(payload.as_bytes()),
        Column::Text(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ];
    encode::insert(out, TABLE, &row);
}

fn rooms(spec: &RouteSpec) -> (Outbox, Router) {
    let mut outbox = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let router = Router::compile(spec, &mut outbox).expect("compiles");
    let mut outbox = Outbox::new(outbox);
    let mut data = Vec::new();
    let table = Table { id: TABLE, schema: b"public", name: b"outbox", columns: &COLUMNS };
    encode::relation(&mut data, &table);
    let Ok(Message::Relation(relation)) = decode(&data) else { panic!("a Relation was encoded") };
    outbox.relation(&relation);
    (outbox, router)
}

/// By globs and expressions in turn, over two columns; only the last one matches, some rows.
fn rule(number: usize) -> RuleSpec {
    let (column, pattern) = if number.is_multiple_of(2) {
        ("event_type", PatternSpec::Glob(if number == 6 { "*Kind3" } else { "No*" }.to_owned()))
    } else {
        ("aggregate_type", PatternSpec::Regex("No(.*)".to_owned()))
    };
    let topic = Some(format!("rule-{number}"));
    let action = RuleAction::Send(DestinationSpec { topic, ..DestinationSpec::default() });
    RuleSpec { column: column.to_owned(), pattern, action }
}

/// What the pipeline does with a row, except for the books.
fn relay(outbox: &mut Outbox, router: &mut Router, data: &[u8], index: u64) -> usize {
    let Ok(Message::Insert(insert)) = decode(data) else { panic!("an Insert was encoded") };
    let position = Position { commit_lsn: Lsn::new(1), index, commit_time: PgTime(0) };
    let row = outbox.row(&insert, position).expect("a row").expect("of the outbox");
    let record = router.route(&row).expect("routed").expect("sent");
    black_box(&record);
    record.weight()
}

#[test]
fn g3_a_row_allocates_nothing_in_steady_state() {
    let by_regex = RouteSpec {
        regex: "Order(.*)".to_owned(),
        topic: "o-$1".to_owned(),
        ..RouteSpec::default()
    };
    let by_rules = RouteSpec { rules: (0..7).map(rule).collect(), ..RouteSpec::default() };
    let format = FormatSpec { columns: ColumnStyle::Debezium, ..FormatSpec::default() };
    let as_debezium = RouteSpec { format, ..RouteSpec::default() };
    for spec in [RouteSpec::default(), by_regex, by_rules, as_debezium] {
        let (mut outbox, mut router) = rooms(&spec);
        let mut frames = vec![Vec::new(); usize::try_from(ROWS).expect("small")];
        for (number, frame) in (0..).zip(&mut frames) {
            insert(frame, number);
        }
        // Every topic is met, and the scratch grows to the largest row.
        for (number, frame) in (0..).zip(frames.iter().take(500)) {
            relay(&mut outbox, &mut router, frame, number);
        }
        let mut weight = 0;
        let info = allocation_counter::measure(|| {
            for (number, frame) in (0..).zip(&frames) {
                weight += relay(&mut outbox, &mut router, frame, number);
            }
        });
        assert!(weight > 1_000_000);
        assert_eq!((info.count_total, info.bytes_total), (0, 0));
    }
}

#[test]
fn the_counter_counts() {
    let (mut outbox, mut router) = rooms(&RouteSpec::default());
    let mut frame = Vec::new();
    insert(&mut frame, 1);
    let info = allocation_counter::measure(|| {
        relay(&mut outbox, &mut router, &frame, 0);
    });
    assert!(info.count_total > 0, "the first row of a session allocates");
}
