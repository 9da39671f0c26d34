//! Tests of the router with decoded rows.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::outbox::fixture::{POSITION, TABLE, describe, insert, spec};
use crate::outbox::type_oid::{BYTEA, INT4, INT8, JSONB, TEXT, TIMESTAMP, TIMESTAMPTZ, UUID};
use crate::outbox::{Outbox, OutboxRow};
use crate::pgoutput::Column::{self, Binary, Null, Text};
use crate::record::{DeadLetter, LetterSource, StoredRecord};

mod large;

/// 2026-01-01 00:00:00.123 UTC.
const COMMIT_MS: i64 = 1_767_225_600_123;

const ID: &[u8] = b"da8d6de6-3b77-45ff-8f44-57db55a7a06c";

const COLUMNS: [(&str, u32); 6] = [
    ("id", UUID),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", JSONB),
    ("extra", TEXT),
];

const ROW: [Column<'static>; 6] =
    [Text(ID), Text(b"Order"), Text(b"o-1"), Text(b"OrderPaid"), Text(b"{\"a\": 1}"), Null];

/// The default routing of [`ROW`] with one other column.
fn with(column: usize, value: Column<'static>) -> Case {
    let mut case = Case::new(RouteSpec::default());
    case.row[column] = value;
    case
}

struct Case {
    spec: RouteSpec,
    columns: Vec<(&'static str, u32)>,
    row: Vec<Column<'static>>,
}

impl Case {
    fn new(spec: RouteSpec) -> Self {
        Self { spec, columns: COLUMNS.to_vec(), row: ROW.to_vec() }
    }

    fn extra(spec: RouteSpec, type_oid: u32, value: Column<'static>) -> Self {
        let mut case = Self::new(spec);
        case.columns[5].1 = type_oid;
        case.row[5] = value;
        case
    }

    fn run<T>(&self, judge: impl FnOnce(&mut Router, &OutboxRow<'_>) -> T) -> T {
        let mut spec = spec();
        let mut router = Router::compile(&self.spec, &mut spec).expect("compiles");
        let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
        describe(&mut outbox, TABLE, "outbox", &self.columns);
        let row = insert(&mut outbox, &mut data, TABLE, &self.row).expect("a row");
        judge(&mut router, &row.expect("of the outbox"))
    }

    fn record(&self) -> OwnedRecord {
        self.run(|router, row| {
            let record = router.route(row).expect("routed").expect("not dropped");
            assert!(record.wire_size_max() <= self.spec.max_record_bytes);
            record.to_owned()
        })
    }

    fn rejection(&self) -> Rejection {
        self.run(|router, row| router.route(row).expect_err("rejected"))
    }

    fn dead_letter(&self) -> OwnedRecord {
        self.run(|router, row| {
            let rejection = router.route(row).expect_err("rejected");
            let letter = router.dead_letter(row, &rejection, "dead");
            assert_eq!((letter.topic.as_str(), letter.partition), ("dead", None));
            letter
        })
    }
}

fn header<'a>(record: &'a OwnedRecord, name: &str) -> Vec<Option<&'a [u8]>> {
    record.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_deref()).collect()
}

fn names(record: &OwnedRecord) -> Vec<&str> {
    record.headers.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_row_becomes_the_documented_record() {
    let record = Case::new(RouteSpec::default()).record();
    let owned = |name: &str, value: &[u8]| (name.to_owned(), Some(value.to_vec()));
    assert_eq!(
        record,
        OwnedRecord {
            topic: "OrderPaid".to_owned(),
            partition: None,
            key: Some(b"o-1".to_vec()),
            value: Some(b"{\"a\": 1}".to_vec()),
            headers: vec![
                owned("id", ID),
                owned("event_type", b"OrderPaid"),
                owned("aggregate_type", b"Order"),
                owned("postrider-lsn", b"000000016B374D84.0000000003"),
            ],
            timestamp_ms: COMMIT_MS,
        }
    );
}

#[test]
fn keys_and_payloads_keep_null_empty_and_bytes_apart() {
    assert_eq!(with(2, Null).record().key, None);
    assert_eq!(with(2, Text(b"")).record().key, Some(vec![]));
    assert_eq!(with(2, Text(b"\xFF\x00")).record().key, Some(b"\xFF\x00".to_vec()));
    assert_eq!(with(4, Null).record().value, None);
    assert_eq!(with(4, Text(b" ")).record().value, Some(b" ".to_vec()));
    let mut raw = with(4, Text(b"\\x00ff"));
    raw.columns[4].1 = BYTEA;
    assert_eq!(raw.record().value, Some(b"\x00\xFF".to_vec()));
    let mut binary = with(4, Binary(b"\x01{}"));
    binary.row[0] = Binary(&[0xDA; 16]);
    let record = binary.record();
    assert_eq!(record.value, Some(b"{}".to_vec()));
    assert_eq!(header(&record, "id"), [Some(&b"dadadada-dada-dada-dada-dadadadadada"[..])]);
}

#[test]
fn empty_payloads_are_tombstones_only_on_request_and_never_as_bytea() {
    let tombstone = RouteSpec { empty_payload: EmptyPayload::Tombstone, ..RouteSpec::default() };
    for (value, type_oid, expected) in [
        (Text(b""), TEXT, None),
        (Text(b" \n\t\x00 "), TEXT, None),
        (Null, TEXT, None),
        (Text(b" x "), TEXT, Some(b" x ".to_vec())),
        (Text(b"\\x"), BYTEA, Some(vec![])),
    ] {
        let mut case = Case::new(tombstone.clone());
        (case.row[4], case.columns[4].1) = (value, type_oid);
        assert_eq!(case.record().value, expected, "{value:?}");
    }
}

#[test]
fn headers_follow_their_columns() {
    let spec = RouteSpec {
        headers: ["extra:a", "id", "extra:a"].map(|text| text.parse().expect("a header")).to_vec(),
        id_header: "idempotency-key".to_owned(),
        lsn_header: false,
        ..RouteSpec::default()
    };
    let record = Case::extra(spec.clone(), BYTEA, Text(b"\\xff")).record();
    assert_eq!(names(&record), ["idempotency-key", "a", "id", "a"]);
    assert_eq!(header(&record, "a"), [Some(&b"\xFF"[..]), Some(&b"\xFF"[..])]);
    assert_eq!(header(&Case::extra(spec, TEXT, Null).record(), "a"), [None, None]);
}

#[test]
fn a_trace_travels_where_there_is_one() {
    let mut case = Case::extra(RouteSpec::default(), TEXT, Text(b"00-ab-cd-01"));
    assert_eq!(header(&case.record(), "traceparent"), [None; 0]);
    case.columns[5].0 = "traceparent";
    assert_eq!(header(&case.record(), "traceparent"), [Some(&b"00-ab-cd-01"[..])]);
    case.row[5] = Null;
    assert_eq!(header(&case.record(), "traceparent"), [None; 0]);
    case.spec.headers.push("traceparent".parse().expect("a header"));
    assert_eq!(header(&case.record(), "traceparent"), [None], "asked for by name");
}

#[test]
fn timestamps_come_from_the_commit_or_a_column() {
    let spec = |unit| RouteSpec {
        timestamp: TimestampSource::Column { name: "extra".to_owned(), unit },
        ..RouteSpec::default()
    };
    let case = |type_oid, value| Case::extra(spec(EpochUnit::Milliseconds), type_oid, value);
    for (type_oid, value, expected) in [
        (TIMESTAMPTZ, Text(b"2019-03-24 21:52:59.9999+01"), 1_553_460_779_999),
        (TIMESTAMP, Text(b"2019-03-24 20:52:59"), 1_553_460_779_000),
        (TIMESTAMPTZ, Binary(&[0; 8]), 946_684_800_000),
        (INT8, Text(b"1553460779000"), 1_553_460_779_000),
        (INT4, Binary(&[0, 0, 0, 5]), 5),
        (TIMESTAMPTZ, Null, COMMIT_MS),
    ] {
        assert_eq!(case(type_oid, value).record().timestamp_ms, expected, "{value:?}");
    }
    let micros = Case::extra(spec(EpochUnit::Microseconds), INT8, Text(b"1553460779000999"));
    assert_eq!(micros.record().timestamp_ms, 1_553_460_779_000);
    for (type_oid, value) in [
        (TIMESTAMPTZ, Text(&b"infinity"[..])),
        (TIMESTAMPTZ, Text(b"1969-12-31 23:59:59+00")),
        (INT8, Text(b"-1")),
        (TEXT, Text(b"1553460779000")),
        (TIMESTAMPTZ, Binary(&[0; 7])),
    ] {
        let rejection = case(type_oid, value).rejection();
        assert_eq!(rejection.code, RejectionCode::InvalidValue, "{value:?}");
        assert!(rejection.reason.contains("`extra`"));
    }
}

#[test]
fn g4_rows_that_cannot_go_are_rejected_with_the_right_code() {
    let code = |case: Case| case.rejection().code;
    assert_eq!(code(with(3, Null)), RejectionCode::NoRoute);
    assert_eq!(code(with(3, Text(b""))), RejectionCode::NoRoute);
    assert_eq!(code(with(3, Text(b"\xFF"))), RejectionCode::NoRoute);
    assert_eq!(code(with(3, Text(b"a/b"))), RejectionCode::InvalidTopic);
    assert_eq!(code(with(0, Null)), RejectionCode::MissingValue);
    assert_eq!(code(with(0, Binary(&[1]))), RejectionCode::InvalidValue);
    assert_eq!(code(with(4, Binary(b"\x09"))), RejectionCode::InvalidValue);
    let mut small = RouteSpec { max_record_bytes: 400, ..RouteSpec::default() };
    let size = Case::new(RouteSpec::default()).record().as_record().wire_size_max();
    assert!(size < 400);
    let mut case = Case::new(small.clone());
    case.row[4] = Text(&[b'x'; 400]);
    assert_eq!(code(case), RejectionCode::TooLarge);
    small.max_record_bytes = size;
    assert_eq!(Case::new(small.clone()).record().topic, "OrderPaid");
    small.max_record_bytes = size - 1;
    assert_eq!(code(Case::new(small)), RejectionCode::TooLarge);
}

#[test]
fn an_empty_value_routes_where_the_template_gives_a_name() {
    let topic = "outbox.event.${routedByValue}".to_owned();
    let mut case = Case::new(RouteSpec { topic, ..RouteSpec::default() });
    case.row[3] = Text(b"");
    assert_eq!(case.record().topic, "outbox.event.");
}

#[test]
fn g4_a_dead_letter_carries_the_row_and_the_reason() {
    let mut case = with(3, Text(b"a/b"));
    case.row[4] = Binary(b"\x07unreadable");
    case.row[3] = Text(b"a/b");
    let letter = case.dead_letter();
    assert_eq!(
        names(&letter),
        [
            "postrider-error-code",
            "postrider-error",
            "postrider-table",
            "postrider-lsn",
            "postrider-topic",
            "id",
            "event_type",
            "aggregate_type"
        ]
    );
    assert_eq!(header(&letter, "postrider-error-code"), [Some(&b"invalid_topic"[..])]);
    assert_eq!(header(&letter, "postrider-table"), [Some(&b"public.outbox"[..])]);
    assert_eq!(header(&letter, "postrider-lsn"), [Some(&position_text(POSITION)[..])]);
    assert_eq!(header(&letter, "postrider-topic"), [Some(&b"a/b"[..])]);
    assert_eq!(header(&letter, "id"), [Some(ID)]);
    assert_eq!(letter.key, Some(b"o-1".to_vec()));
    assert_eq!(letter.value, Some(b"\x07unreadable".to_vec()), "as it came over the wire");
    assert_eq!(letter.timestamp_ms, COMMIT_MS);
    let unrouted = with(3, Null).dead_letter();
    assert_eq!(header(&unrouted, "postrider-topic"), [None; 0]);
    assert_eq!(header(&with(0, Null).dead_letter(), "id"), [None]);
}

#[test]
fn a_dead_letter_names_its_stream_before_the_rows_own_headers() {
    let [system, database, slot, stream] =
        ["7", "shop", "postrider", "a"].map(|it| Some(it.to_owned()));
    let source = LetterSource { system, database, slot, stream };
    let letter = with(3, Text(b"a/b")).run(|router, row| {
        router.name_source(&source);
        let rejection = router.route(row).expect_err("rejected");
        router.dead_letter(row, &rejection, "dead")
    });
    let letter = untimed(letter, COMMIT_MS);
    assert_eq!(
        names(&letter)[4..11],
        [
            "postrider-topic",
            "postrider-system",
            "postrider-database",
            "postrider-slot",
            "postrider-stream",
            "postrider-commit-timestamp",
            "id",
        ]
    );
    let record = StoredRecord { headers: letter.headers, ..StoredRecord::default() };
    let read = DeadLetter::read(record).expect("a dead letter");
    assert_eq!((read.source(), read.id()), (Some(&source), Some(ID)));
}

#[test]
fn g4_a_dead_letter_fits_whatever_made_the_row_too_large() {
    const BIG: &[u8] = &[b'x'; 100_000];
    for column in [0, 2, 3, 4] {
        let mut case = with(column, Text(BIG));
        case.spec.max_record_bytes = 60_000;
        let letter = case.dead_letter();
        assert!(letter.as_record().wire_size_max() < 10_000, "column {column}");
        let value: serde_json::Value =
            serde_json::from_slice(letter.value.as_deref().expect("a value")).expect("JSON");
        let (size, id) = if column == 4 { (100_000, ID) } else { (8, ID) };
        assert_eq!(value["size"], size, "column {column}");
        if column != 0 {
            assert_eq!(value["id"].as_str().map(str::as_bytes), Some(id));
        }
    }
    let mut case = with(4, Text(BIG));
    case.spec.max_record_bytes = 60_000;
    let letter = case.dead_letter();
    let value = String::from_utf8(letter.value.expect("a value")).expect("text");
    // head -c 100000 /dev/zero | tr '\0' x | sha256sum
    assert!(
        value.contains("d69e68988157833272305aaf21f453c800346e8a3640db6578e260215542e5d4"),
        "{value}"
    );
    assert_eq!(letter.key, Some(b"o-1".to_vec()));
}

#[test]
fn g4_a_refused_record_becomes_a_dead_letter_too() {
    let case = Case::new(RouteSpec::default());
    let mut record = case.record();
    let refuse = |record: &OwnedRecord, code| {
        let rejection = Rejection { code, reason: "the broker said no".to_owned() };
        case.run(|router, _| router.dead_letter_of_refused(record, &rejection, "dead", COMMIT_MS))
    };
    let letter = refuse(&record, RejectionCode::Refused);
    assert_eq!(
        names(&letter),
        [
            "postrider-error-code",
            "postrider-error",
            "postrider-lsn",
            "postrider-topic",
            "id",
            "event_type",
            "aggregate_type"
        ]
    );
    assert_eq!(header(&letter, "postrider-topic"), [Some(&b"OrderPaid"[..])]);
    assert_eq!((&letter.key, &letter.value), (&record.key, &record.value));
    assert_eq!(letter.timestamp_ms, COMMIT_MS);
    let dated = OwnedRecord { timestamp_ms: 7, ..record.clone() };
    let letter = refuse(&dated, RejectionCode::Refused);
    assert_eq!(header(&letter, "postrider-timestamp"), [Some(&b"7"[..])]);
    assert_eq!(letter.timestamp_ms, COMMIT_MS, "what is stamped 1970 is gone at once");
    let letter = untimed(letter, COMMIT_MS);
    assert_eq!(letter.timestamp_ms, NO_TIMESTAMP);
    let explained = ["postrider-topic", "postrider-timestamp", "postrider-commit-timestamp", "id"];
    assert_eq!(names(&letter)[3..7], explained);
    let commit_ms = COMMIT_MS.to_string();
    assert_eq!(header(&letter, "postrider-commit-timestamp"), [Some(commit_ms.as_bytes())]);
    // The broker's limit can be lower than the configured one.
    record.value = Some(vec![b'x'; 5000]);
    let letter = refuse(&record, RejectionCode::TooLarge);
    assert!(letter.value.is_some_and(|value| value.starts_with(b"{\"id\":\"da8d6de6-")));
    record.value = None;
    assert_eq!(refuse(&record, RejectionCode::TooLarge).value, None, "a tombstone stays one");
}

#[test]
fn positions_sort_as_text() {
    let text = |lsn, index| {
        let commit_lsn = crate::lsn::Lsn::new(lsn);
        position_text(crate::outbox::Position { commit_lsn, index, ..POSITION })
    };
    let rising = [
        text(9, 9_999_999_999),
        text(10, 0),
        text(10, 9),
        text(10, 10),
        text(0x1_0000_0000, 0),
        text(u64::MAX, 9_999_999_999),
    ];
    assert!(rising.is_sorted_by(|a, b| a < b));
    assert_eq!(&text(0xAB, 12), b"00000000000000AB.0000000012");
}

fn any_column() -> impl Strategy<Value = (u8, Vec<u8>)> {
    (0_u8..3, vec(any::<u8>(), 0..24))
}

proptest! {
    #[test]
    fn g7_any_row_is_a_record_or_a_dead_letter_that_fits(
        cells in vec(any_column(), 6),
        types in vec(prop::sample::select(vec![16_u32, 17, 20, 21, 23, 25, 1114, 1184, 2950, 3802, 600]), 6),
        by_time: bool,
        limit in 2_000_usize..4_000,
    ) {
        let mut route = RouteSpec { max_record_bytes: limit, ..RouteSpec::default() };
        route.headers.push("extra".parse().expect("a header"));
        if by_time {
            let unit = EpochUnit::Microseconds;
            route.timestamp = TimestampSource::Column { name: "extra".to_owned(), unit };
        }
        let row: Vec<_> = cells.iter().map(|(kind, bytes)| match kind {
            0 => Null,
            1 => Text(bytes),
            _ => Binary(bytes),
        }).collect();
        let columns: Vec<_> = COLUMNS.iter().zip(&types).map(|((name, _), oid)| (*name, *oid)).collect();
        let mut spec = spec();
        let mut router = Router::compile(&route, &mut spec).expect("compiles");
        let (mut outbox, mut data) = (Outbox::new(spec), Vec::new());
        describe(&mut outbox, TABLE, "outbox", &columns);
        let row = insert(&mut outbox, &mut data, TABLE, &row).expect("a row").expect("ours");
        let routed = router.route(&row).map(|record| record.expect("not dropped").to_owned());
        let rejection = match routed {
            Ok(first) => {
                prop_assert!(first.as_record().wire_size_max() <= limit);
                prop_assert!(check_topic(&first.topic).is_ok());
                let again = router.route(&row).expect("as before").expect("sent").to_owned();
                prop_assert_eq!(first, again);
                return Ok(());
            }
            Err(rejection) => rejection,
        };
        let letter = router.dead_letter(&row, &rejection, "dead");
        prop_assert!(letter.as_record().wire_size_max() <= limit);
    }
}
