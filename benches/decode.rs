//! The cost of a row from its frame to its record: decoding, relation cache, routing.

#![expect(clippy::unwrap_used, reason = "a bench that goes wrong should stop")]

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, Position, TableName, type_oid};
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Column, Message, PgTime, decode};
use postrider::route::{
    DestinationSpec, FieldSpec, FormatSpec, PatternSpec, RouteSpec, Router, RuleAction, RuleSpec,
    ValueFormat,
};

fn main() {
    divan::main();
}

/// Rows of one run: enough that the clock's resolution does not show, few enough for the cache.
const ROWS: usize = 1_000;

/// Like the load the relay is measured with: 50 kinds, 312 bytes of payload on average.
const KINDS: usize = 50;
const PAYLOAD_BYTES: usize = 312;

const TABLE: u32 = 16_394;
const COLUMNS: [(&[u8], u32); 6] = [
    (b"id", type_oid::UUID),
    (b"aggregate_type", type_oid::TEXT),
    (b"aggregate_id", type_oid::TEXT),
    (b"event_type", type_oid::TEXT),
    (b"payload", type_oid::JSONB),
    (b"created_at", type_oid::TIMESTAMPTZ),
];

fn rows() -> Vec<Vec<u8>> {
    let row = |number: usize| {
        let payload =
            format!("{{\"number\": {number}, \"text\": \"{}\"}}", "x".repeat(PAYLOAD_BYTES - 29));
        let kind = format!("OrderKind{}", number % KINDS);
        let key = format!("order-{number}");
        let mut data = Vec::new();
        let row = [
            Column::Text(b"da8d6de6-3b77-45ff-8f44-57db55a7a06c"),
            Column::Text(b"Order"),
            Column::Text(key.as_bytes()),
            Column::Text(kind.as_bytes()),
            Column::Text(payload.as_bytes()),
            Column::Text(b"2026-01-01 00:00:00.123456+00"),
        ];
        encode::insert(&mut data, TABLE, &row);
        data
    };
    (0..ROWS).map(row).collect()
}

/// A routing by its name.
fn spec(routing: &str) -> RouteSpec {
    let format = |value| FormatSpec { value, ..FormatSpec::default() };
    let mut spec = RouteSpec::default();
    match routing {
        "regex" => "Order(?<routedByValue>.*)".clone_into(&mut spec.regex),
        "seven_rules" => spec.rules = (0..7).map(rule).collect(),
        "json" => spec.format = format(ValueFormat::Json),
        "expanded" => {
            spec.format = FormatSpec { expand_json: true, ..format(ValueFormat::Json) };
        }
        "json_schema" => {
            spec.format = format(ValueFormat::JsonSchema);
            spec.envelope = vec![FieldSpec::of_column("event_type")];
        }
        "cloudevents" => spec.format = format(ValueFormat::CloudEventsBinary),
        _ => {}
    }
    spec
}

/// By globs and expressions in turn, over two columns; none of the first six matches any row.
fn rule(number: usize) -> RuleSpec {
    let pattern = if number.is_multiple_of(2) {
        PatternSpec::Glob(if number == 6 {
            "OrderKind4*".to_owned()
        } else {
            format!("No{number}*")
        })
    } else {
        PatternSpec::Regex(format!("No(?<rest>.*){number}"))
    };
    let column = if number.is_multiple_of(2) { "event_type" } else { "aggregate_type" };
    let topic = Some(format!("rule-{number}"));
    let action = RuleAction::Send(DestinationSpec { topic, ..DestinationSpec::default() });
    RuleSpec { column: column.to_owned(), pattern, action }
}

fn rooms(spec: &RouteSpec) -> (Outbox, Router) {
    let mut outbox = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
    let router = Router::compile(spec, &mut outbox).unwrap();
    let mut outbox = Outbox::new(outbox);
    let mut data = Vec::new();
    let table = Table { id: TABLE, schema: b"public", name: b"outbox", columns: &COLUMNS };
    encode::relation(&mut data, &table);
    if let Message::Relation(relation) = decode(&data).unwrap() {
        outbox.relation(&relation);
    }
    (outbox, router)
}

fn counted<'a, 'b>(bencher: Bencher<'a, 'b>, rows: &[Vec<u8>]) -> Bencher<'a, 'b> {
    let bytes: usize = rows.iter().map(Vec::len).sum();
    bencher.counter(ItemsCount::new(rows.len())).counter(BytesCount::new(bytes))
}

/// Bytes to message alone.
#[divan::bench]
fn frame_to_message(bencher: Bencher<'_, '_>) {
    let rows = rows();
    counted(bencher, &rows).bench_local(|| {
        for data in &rows {
            black_box(decode(black_box(data)).unwrap());
        }
    });
}

/// Bytes to row: what comes before routing.
#[divan::bench]
fn frame_to_row(bencher: Bencher<'_, '_>) {
    let rows = rows();
    let (mut outbox, _) = rooms(&RouteSpec::default());
    counted(bencher, &rows).bench_local(|| {
        for (index, data) in (0..).zip(&rows) {
            let Message::Insert(insert) = decode(black_box(data)).unwrap() else { continue };
            let position = Position { commit_lsn: Lsn::new(1), index, commit_time: PgTime(0) };
            black_box(outbox.row(&insert, position).unwrap().unwrap());
        }
    });
}

/// The whole way; routing is what this costs more than `frame_to_row`.
#[divan::bench(args = ["default", "regex", "seven_rules", "json", "expanded", "json_schema", "cloudevents"])]
fn frame_to_record(bencher: Bencher<'_, '_>, routing: &str) {
    let rows = rows();
    let (mut outbox, mut router) = rooms(&spec(routing));
    counted(bencher, &rows).bench_local(|| {
        for (index, data) in (0..).zip(&rows) {
            let Message::Insert(insert) = decode(black_box(data)).unwrap() else { continue };
            let position = Position { commit_lsn: Lsn::new(1), index, commit_time: PgTime(0) };
            let row = outbox.row(&insert, position).unwrap().unwrap();
            black_box(router.route(&row).unwrap());
        }
    });
}
