//! Any row of any column types is a record, or a dead letter that fits the limit (G4, G7).
//!
//! Six bytes choose the column types, one the routing; the rest is the tuple as on the wire.

use std::sync::OnceLock;

use postrider::lsn::Lsn;
use postrider::outbox::{Outbox, OutboxSpec, Position, TableName, type_oid};
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Message, PgTime, decode};
use postrider::route::{
    ColumnStyle, EmptyPayload, EpochUnit, FieldSpec, RouteSpec, Router, TimestampSource,
    ValueFormat, check_topic,
};

const TABLE: u32 = 1;
const LIMIT: usize = 8_000;

const TYPES: [u32; 14] = [
    type_oid::TEXT,
    type_oid::BYTEA,
    type_oid::BOOL,
    type_oid::INT2,
    type_oid::INT4,
    type_oid::INT8,
    type_oid::UUID,
    type_oid::JSON,
    type_oid::JSONB,
    type_oid::TIMESTAMP,
    type_oid::TIMESTAMPTZ,
    type_oid::CHAR,
    600,
    20_000,
];

const NAMES: [&[u8]; 6] =
    [b"id", b"aggregate_type", b"aggregate_id", b"event_type", b"payload", b"extra"];

/// Tries one input.
pub(crate) fn run(data: &[u8]) {
    let Some((types, data)) = data.split_first_chunk::<6>() else { return };
    let Some((&choice, tuple)) = data.split_first() else { return };
    let (spec, mut router) = compiled(choice);
    let mut outbox = Outbox::new(spec);

    let type_oid = |choice: &u8| TYPES[usize::from(*choice) % TYPES.len()];
    let columns: Vec<_> = NAMES.into_iter().zip(types.iter().map(type_oid)).collect();
    let mut described = Vec::new();
    let table = Table { id: TABLE, schema: b"public", name: b"outbox", columns: &columns };
    encode::relation(&mut described, &table);
    let Ok(Message::Relation(relation)) = decode(&described) else { panic!("a Relation") };
    outbox.relation(&relation);

    let mut inserted = vec![b'I', 0, 0, 0, 1, b'N'];
    inserted.extend(tuple);
    let Ok(Message::Insert(insert)) = decode(&inserted) else { return };
    let position =
        Position { commit_lsn: Lsn::new(u64::MAX), index: u64::MAX, commit_time: PgTime(0) };
    let Ok(row) = outbox.row(&insert, position) else { return };
    let row = row.expect("of the outbox");
    let rejection = match router.route(&row) {
        Ok(None) => return,
        Ok(Some(record)) => {
            assert!(check_topic(record.topic).is_ok());
            assert!(record.wire_size_max() <= LIMIT);
            assert!(record.timestamp_ms >= 0);
            return;
        }
        Err(rejection) => rejection,
    };
    let letter = router.dead_letter(&row, &rejection, "dead");
    assert!(letter.as_record().wire_size_max() <= LIMIT);
}

/// Each of the choices is compiled once: that takes longer than most inputs.
fn compiled(choice: u8) -> (OutboxSpec, Router) {
    static COMPILED: [OnceLock<(OutboxSpec, Router)>; 256] = [const { OnceLock::new() }; 256];
    let compiled = COMPILED[usize::from(choice)].get_or_init(|| {
        let mut spec = OutboxSpec::new(vec![TableName::new("public", "outbox")]);
        let router = Router::compile(&routing(choice), &mut spec).expect("compiles");
        (spec, router)
    });
    compiled.clone()
}

fn routing(choice: u8) -> RouteSpec {
    let mut spec = RouteSpec { max_record_bytes: LIMIT, ..RouteSpec::default() };
    spec.headers.push(FieldSpec::of_column("extra"));
    spec.lsn_header = choice & 1 == 0;
    if choice & 2 != 0 {
        spec.empty_payload = EmptyPayload::Tombstone;
    }
    if choice & 4 != 0 {
        let unit = if choice & 8 == 0 { EpochUnit::Milliseconds } else { EpochUnit::Microseconds };
        spec.timestamp = TimestampSource::Column { name: "extra".to_owned(), unit };
    }
    if choice & 32 != 0 {
        spec.format.columns = ColumnStyle::Debezium;
        spec.format.expand_json = true;
    }
    let formats = [
        ValueFormat::Raw,
        ValueFormat::Json,
        ValueFormat::JsonSchema,
        ValueFormat::CloudEventsStructured,
    ];
    spec.format.value = formats[usize::from(choice >> 6)];
    if spec.format.value.takes_envelope() {
        spec.envelope.push(FieldSpec::of_column("extra"));
    }
    if choice & 16 != 0 {
        "([a-z]+)(.*)".clone_into(&mut spec.regex);
        "t.$2-$1".clone_into(&mut spec.topic);
    }
    spec
}
