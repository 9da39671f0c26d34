//! Tests of routing oversized rows.

use serde_json::Value as Json;

use super::*;
use crate::outbox::fixture::{excerpt, kept};
use crate::outbox::{MessageSpec, OutboxSpec};
use crate::pgoutput::{Digest, Excerpt, LogicalMessage, VALUE_BYTES_KEPT};
use crate::route::{DestinationSpec, PatternSpec, RuleAction, RuleSpec};

const LARGE: &[u8] = &[b'x'; 100_000];

fn routed(case: &Case) -> Option<OwnedRecord> {
    let mut spec = spec();
    let mut router = Router::compile(&case.spec, &mut spec).expect("compiles");
    let mut outbox = Outbox::new(spec);
    describe(&mut outbox, TABLE, "outbox", &case.columns);
    let excerpt = excerpt(&case.row);
    let row = kept(&mut outbox, &excerpt).expect("a row").expect("of the outbox");
    let rejection = match router.route(&row) {
        Ok(None) => return None,
        Ok(Some(_)) => panic!("delivered"),
        Err(rejection) => rejection,
    };
    assert_eq!(rejection.code, RejectionCode::TooLarge);
    assert!(rejection.reason.contains("source.frame_max"), "{}", rejection.reason);
    Some(router.dead_letter(&row, &rejection, "dead"))
}

fn letter(case: &Case) -> OwnedRecord {
    routed(case).expect("a dead letter")
}

fn note(letter: &OwnedRecord) -> Json {
    serde_json::from_slice(letter.value.as_deref().expect("a value")).expect("JSON")
}

fn sha256(bytes: &[u8]) -> String {
    Digest::of(bytes).hexadecimal()
}

#[test]
fn g4_whichever_column_was_too_large_the_dead_letter_says_what_was_there() {
    for (column, (name, _)) in COLUMNS.into_iter().enumerate() {
        let letter = letter(&with(column, Text(LARGE)));
        let (note, is) = (note(&letter), |wanted: usize| column == wanted);
        assert!(letter.as_record().wire_size_max() < 10_000, "{name}");
        let id = if is(0) { "x".repeat(1024) } else { str::from_utf8(ID).unwrap().to_owned() };
        assert_eq!(note["id"], id, "{name}");
        let payload = if is(4) { LARGE } else { b"{\"a\": 1}" };
        assert_eq!(
            (&note["size"], &note["sha256"]),
            (&payload.len().into(), &sha256(payload).into())
        );
        assert!(note["row_size"].as_u64().unwrap() > 100_000, "{note}");
        let [cut] = note["cut"].as_array().unwrap().as_slice() else { panic!("{note}") };
        assert_eq!(cut["column"], name);
        assert_eq!((&cut["size"], &cut["sha256"]), (&100_000.into(), &sha256(LARGE).into()));
        // A cut value does not pass for a whole one.
        assert_eq!(letter.key.as_deref(), (!is(2)).then_some(&b"o-1"[..]), "{name}");
        assert_eq!(header(&letter, "id"), [(!is(0)).then_some(ID)]);
        assert_eq!(header(&letter, "event_type"), [(!is(3)).then_some(&b"OrderPaid"[..])]);
        let topic = if is(3) { vec![] } else { vec![Some(&b"OrderPaid"[..])] };
        assert_eq!(header(&letter, "postrider-topic"), topic, "{name}");
        assert_eq!(header(&letter, "postrider-error-code"), [Some(&b"too_large"[..])]);
        assert_eq!(header(&letter, "postrider-lsn"), [Some(&position_text(POSITION)[..])]);
        assert_eq!(letter.timestamp_ms, COMMIT_MS);
    }
}

#[test]
fn a_bytea_payload_is_told_as_the_bytes_that_it_is_and_null_as_null() {
    let raw: Vec<u8> = (0..20_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    let digits: Vec<u8> = raw.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
    let digits = digits.iter().filter_map(|digit| char::from_digit((*digit).into(), 16));
    let hexadecimal: &'static str = format!("\\x{}", digits.collect::<String>()).leak();
    let mut case = with(4, Text(hexadecimal.as_bytes()));
    case.columns[4].1 = BYTEA;
    let bytea = note(&letter(&case));
    assert_eq!((&bytea["size"], &bytea["sha256"]), (&20_000.into(), &sha256(&raw).into()));
    assert_eq!(bytea["cut"][0]["size"], 40_002, "as Postgres sends it");
    case.columns[4].1 = TEXT;
    assert_eq!(note(&letter(&case))["size"], 40_002);
    let mut null = with(4, Null);
    null.row[2] = Text(LARGE);
    let null = note(&letter(&null));
    assert_eq!((&null["size"], &null["sha256"]), (&Json::Null, &Json::Null));
}

fn rule(column: &str, action: RuleAction) -> RuleSpec {
    let pattern = PatternSpec::Glob("Order*".to_owned());
    RuleSpec { column: column.to_owned(), pattern, action }
}

#[test]
fn g4_a_rule_drops_a_large_row_only_when_it_sees_all_that_it_looks_at() {
    let by = |column: &str, action| {
        let rules = vec![rule(column, action)];
        RouteSpec { rules, ..RouteSpec::default() }
    };
    let mut case = Case::new(by("aggregate_type", RuleAction::Drop));
    case.row[4] = Text(LARGE);
    assert_eq!(routed(&case), None);
    case.row[3] = Text(LARGE);
    assert!(routed(&case).is_some());
    let to = DestinationSpec { topic: Some("orders".to_owned()), ..DestinationSpec::default() };
    let mut case = Case::new(by("aggregate_type", RuleAction::Send(to)));
    case.row[4] = Text(LARGE);
    assert_eq!(header(&letter(&case), "postrider-topic"), [Some(&b"orders"[..])]);
}

fn message_letter(prefix: &str, content: &str) -> OwnedRecord {
    let mut spec = OutboxSpec::new(Vec::new())
        .with_messages(MessageSpec { prefixes: vec!["*".to_owned()], null_is_missing: false });
    let rules = vec![rule("event_type", RuleAction::Drop)];
    let route = RouteSpec { rules, ..RouteSpec::default() };
    let mut router = Router::compile(&route, &mut spec).expect("compiles");
    let (lsn, prefix) = (crate::lsn::Lsn::new(9), prefix.as_bytes());
    let message = LogicalMessage { transactional: true, lsn, prefix, content: content.as_bytes() };
    let mut data = Vec::new();
    crate::pgoutput::encode::logical(&mut data, &message);
    let mut excerpt = Excerpt::begin(data.len());
    excerpt.take(&data).expect("well formed");
    let Ok(crate::pgoutput::Message::Logical(message)) = crate::pgoutput::decode(excerpt.message())
    else {
        panic!("a logical message")
    };
    let mut outbox = Outbox::new(spec);
    assert!(outbox.is_row_of(&message, Some(&excerpt)));
    let row = outbox.message_row(&message, Some(&excerpt), POSITION);
    let rejection = router.route(&row).expect_err("rejected");
    router.dead_letter(&row, &rejection, "dead")
}

#[test]
fn g4_a_large_logical_message_is_told_by_what_stands_before_its_large_member() {
    let large = "y".repeat(100_000);
    let known = r#""id":"m-1","aggregate_id":"k","event_type":"Order""#;
    let content = format!("{{{known},\"payload\":\"{large}\"}}");
    let letter = message_letter("outbox", &content);
    let told = note(&letter);
    assert_eq!(told["id"], "m-1");
    let size = content.len();
    let whole = sha256(content.as_bytes());
    assert_eq!((&told["size"], &told["sha256"]), (&size.into(), &whole.into()));
    assert_eq!(told["cut"][0]["column"], Json::Null);
    assert_eq!(letter.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(header(&letter, "postrider-table"), [Some(&b"message.outbox"[..])]);
    let letter = message_letter("outbox", &format!("{{\"payload\":\"{large}\",{known}}}"));
    let told = note(&letter);
    assert_eq!((&told["id"], &told["size"]), (&Json::Null, &size.into()));
    assert_eq!(letter.key, None);
}

#[test]
fn g4_a_dead_letter_fits_whatever_the_prefix_of_its_logical_message() {
    let letter = message_letter(&"p".repeat(3_000_000), "{}");
    assert!(letter.as_record().wire_size_max() < 10_000);
    let mut spec = OutboxSpec::new(Vec::new())
        .with_messages(MessageSpec { prefixes: vec!["*".to_owned()], null_is_missing: false });
    let mut router = Router::compile(&RouteSpec::default(), &mut spec).expect("compiles");
    let mut outbox = Outbox::new(spec);
    let (lsn, prefix) = (crate::lsn::Lsn::new(9), &vec![b'p'; 500_000]);
    let message = LogicalMessage { transactional: true, lsn, prefix, content: b"{}" };
    let row = outbox.message_row(&message, None, POSITION);
    let rejection = router.route(&row).expect_err("rejected");
    let letter = router.dead_letter(&row, &rejection, "dead");
    assert!(letter.as_record().wire_size_max() < 10_000);
}

proptest! {
    /// The note contains the excerpt's additions.
    #[test]
    fn g4_an_excerpt_gives_the_dead_letter_that_the_whole_row_gives(
        sizes in vec(0_usize..2 * VALUE_BYTES_KEPT, 6),
        types in vec(prop::sample::select(vec![20_u32, 23, 25, 1184, 2950, 3802]), 6),
    ) {
        let values: Vec<Vec<u8>> = sizes.iter().map(|size| vec![b'7'; *size]).collect();
        let row: Vec<_> = values.iter().map(|value| Text(value)).collect();
        let columns: Vec<_> = COLUMNS.iter().zip(&types).map(|((name, _), oid)| (*name, *oid)).collect();
        let mut spec = spec();
        let mut router = Router::compile(&RouteSpec::default(), &mut spec).expect("compiles");
        let mut outbox = Outbox::new(spec);
        describe(&mut outbox, TABLE, "outbox", &columns);
        let rejection = Rejection { code: RejectionCode::TooLarge, reason: "too large".to_owned() };
        let mut data = Vec::new();
        let whole = insert(&mut outbox, &mut data, TABLE, &row).expect("a row").expect("ours");
        let whole = router.dead_letter(&whole, &rejection, "dead");
        let excerpt = excerpt(&row);
        let kept = kept(&mut outbox, &excerpt).expect("a row").expect("ours");
        prop_assert!(router.route(&kept).is_err());
        let kept = router.dead_letter(&kept, &rejection, "dead");
        let (whole_note, kept_note) = (note(&whole), note(&kept));
        // A cut key or header is longer than a dead letter's limit.
        prop_assert_eq!(&whole.key, &kept.key);
        for name in ["id", "size", "sha256"] {
            prop_assert_eq!(&whole_note[name], &kept_note[name], "{}", name);
        }
        let told = |letter: &OwnedRecord| {
            let mut headers = letter.headers.clone();
            headers.retain(|(name, _)| name != "postrider-topic");
            headers
        };
        prop_assert_eq!(told(&whole), told(&kept));
    }
}
