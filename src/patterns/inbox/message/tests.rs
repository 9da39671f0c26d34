//! Tests with records of the relay (output of `postrider route`), Debezium and other producers.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const ID: &str = "0199f2a4-7c1e-7cc3-98c4-dc0c0c07398f";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const GOOD: [(&str, &[u8]); 2] = [("id", ID.as_bytes()), ("event_type", b"OrderPaid")];

fn record(headers: &[(&str, &[u8])], value: Option<&[u8]>) -> StoredRecord {
    let headers = headers.iter().map(|&(name, value)| (name.to_owned(), Some(value.to_vec())));
    StoredRecord {
        topic: "orders".into(),
        partition: 2,
        offset: 17,
        timestamp_ms: Some(5),
        key: Some(b"42".to_vec()),
        value: value.map(<[u8]>::to_vec),
        headers: headers.collect(),
    }
}

fn usual(headers: &[(&str, &[u8])], value: &[u8]) -> Message {
    with(&MessageFormat::new(), headers, value)
}

fn with(format: &MessageFormat, headers: &[(&str, &[u8])], value: &[u8]) -> Message {
    Message::read(record(headers, Some(value)), format).unwrap()
}

fn with_key(format: &MessageFormat, key: Option<&[u8]>) -> Result<String, InvalidMessage> {
    let record = StoredRecord { key: key.map(<[u8]>::to_vec), ..record(&GOOD, None) };
    let read = Message::read(record, format);
    read.map(|message| message.aggregate_id).map_err(|invalid| invalid.1)
}

fn invalid(format: &MessageFormat, headers: &[(&str, &[u8])], value: &[u8]) -> InvalidMessage {
    Message::read(record(headers, Some(value)), format).unwrap_err().1
}

#[test]
fn what_the_relay_writes_is_parsed() {
    let optional = [("aggregate_type", &b"order"[..]), ("sequence", b"7")];
    let record = record(&[&GOOD[..], &optional].concat(), Some(b"{\"amount\": 1.50}"));
    let message = Message::read(record.clone(), &MessageFormat::new()).unwrap();
    assert_eq!(message.id.to_string(), ID);
    assert_eq!((message.event_type.as_str(), message.aggregate_id.as_str()), ("OrderPaid", "42"));
    assert_eq!((message.aggregate_type.as_deref(), message.sequence), (Some("order"), Some(7)));
    assert_eq!(message.payload["amount"].as_f64(), Some(1.5));
    assert_eq!(message.payload_bytes(), Some(&b"{\"amount\": 1.50}"[..]));
    assert_eq!(message.record, record);
}

#[test]
fn a_null_value_is_a_null_payload_and_what_may_be_absent_may() {
    let record = StoredRecord { key: None, ..record(&GOOD, None) };
    let message = Message::read(record, &MessageFormat::new()).unwrap();
    assert_eq!(message.parse::<Option<i64>>().unwrap(), None);
    assert_eq!((message.payload_bytes(), message.sequence), (None, None));
    assert_eq!((message.payload, message.aggregate_type), (Value::Null, None));
    assert_eq!(message.aggregate_id, "");
}

#[test]
fn headers_go_by_the_names_that_are_in_use_or_by_the_one_that_is_set() {
    let debezium = [GOOD[0], ("eventType", b"OrderPaid"), ("aggregatetype", b"order")];
    let message = usual(&debezium, b"1");
    assert_eq!(
        (&*message.event_type, message.aggregate_type.as_deref()),
        ("OrderPaid", Some("order"))
    );
    let message = usual(&[GOOD[0], ("event_type", b""), ("type", b"OrderPaid")], b"1");
    assert_eq!(message.event_type, "OrderPaid");

    let renamed = MessageFormat::new()
        .id_header("idempotency-key")
        .event_type_header("kind")
        .aggregate_type_header("of")
        .sequence_header("number");
    let other = b"0199f2a4-7c1e-7cc3-98c4-dc0c0c07398a";
    let headers: [(&str, &[u8]); 5] = [
        ("id", other),
        ("idempotency-key", GOOD[0].1),
        ("kind", b"a"),
        ("of", b"b"),
        ("number", b"3"),
    ];
    let message = with(&renamed, &headers, b"1");
    assert_eq!((message.id.to_string().as_str(), message.event_type.as_str()), (ID, "a"));
    assert_eq!((message.aggregate_type.as_deref(), message.sequence), (Some("b"), Some(3)));
    let missing = invalid(&renamed, &GOOD, b"1");
    assert_eq!(missing.to_string(), "the header `idempotency-key` is missing");
}

#[test]
fn a_type_that_no_header_has_is_the_topics_or_a_fixed_one() {
    let empty = [GOOD[0], ("event_type", &b""[..])];
    for headers in [&GOOD[..1], &empty] {
        let of_topic = with(&MessageFormat::new().event_type_or_topic(), headers, b"1");
        let fixed = with(&MessageFormat::new().event_type_or("OrderPaid"), headers, b"1");
        assert_eq!((&*of_topic.event_type, &*fixed.event_type), ("orders", "OrderPaid"));
        let missing = invalid(&MessageFormat::new(), headers, b"1");
        assert_eq!(missing, InvalidMessage::Missing("event_type".into()));
    }
    let there = with(&MessageFormat::new().event_type_or_topic(), &GOOD, b"1");
    assert_eq!(there.event_type, "OrderPaid");
}

#[test]
fn ids_that_are_no_uuids_become_uuids_that_others_can_compute() {
    let of = |topic: &str, id: &str| {
        let record = record(&[("id", id.as_bytes()), GOOD[1]], None);
        let record = StoredRecord { topic: topic.into(), ..record };
        Message::read(record, &MessageFormat::new().text_ids()).unwrap().id.to_string()
    };
    // Computed in Python: uuid.uuid5(uuid.UUID('80e41daf-a7ea-464b-b400-181e1cf332e9'), 'orders/7')
    assert_eq!(of("orders", "7"), "9a1713df-5e21-50bf-bf14-d62a505539ba");
    assert_ne!(of("orders", "7"), of("payments", "7"));
    assert_eq!(of("orders", ID), ID);
    // 32 digits may also be a hash.
    assert_ne!(of("orders", &ID.replace('-', "")), ID);
}

#[test]
fn connects_json_is_unwrapped() {
    let format = MessageFormat::new().value(ValueFormat::ConnectJson);
    let struct_of = br#"{"schema":{"type":"struct","fields":[]},"payload":{"amount": 150}}"#;
    let message = with(&format, &GOOD, struct_of);
    assert_eq!(message.payload, json!({ "amount": 150 }));
    assert_eq!(message.payload_bytes(), Some(&b"{\"amount\": 150}"[..]));
    let text = br#"{"schema":{"type":"string","optional":true},"payload":"{\"amount\": 150}"}"#;
    assert_eq!(with(&format, &GOOD, text).payload, json!("{\"amount\": 150}"));
    let expanded = with(&format.clone().expand_json(), &GOOD, text);
    assert_eq!(expanded.payload, json!({ "amount": 150 }));
    assert_eq!(expanded.payload_bytes(), Some(&b"{\"amount\": 150}"[..]));
    let null = with(&format, &GOOD, br#"{"schema":null,"payload":null}"#);
    assert_eq!(null.payload, Value::Null);
}

#[test]
fn an_envelope_has_the_payload_and_what_no_header_has() {
    let format = MessageFormat::new().envelope().event_type_header("eventType");
    let value =
        br#"{"payload": [1], "eventType": "OrderPaid", "sequence": 7, "aggregate_type": null}"#;
    let message = with(&format, &GOOD[..1], value);
    assert_eq!((&*message.event_type, message.sequence), ("OrderPaid", Some(7)));
    assert_eq!((message.payload.clone(), message.aggregate_type.clone()), (json!([1]), None));
    assert_eq!(message.parse::<Vec<i64>>().unwrap(), [1]);
    let header = [GOOD[0], ("eventType", &b"OrderLost"[..])];
    assert_eq!(with(&format, &header, value).event_type, "OrderLost");

    let wrapped = br#"{"schema":{},"payload":{"payload":"x","eventType":"OrderPaid"}}"#;
    let message = with(&format.clone().value(ValueFormat::ConnectJson), &GOOD[..1], wrapped);
    assert_eq!((&*message.event_type, message.payload), ("OrderPaid", json!("x")));
    let tombstone = Message::read(record(&GOOD, None), &MessageFormat::new().envelope()).unwrap();
    assert_eq!((tombstone.payload, tombstone.bytes), (Value::Null, PayloadBytes::Whole));
}

#[test]
fn a_string_is_expanded_if_it_is_an_object_or_an_array() {
    let format = MessageFormat::new().expand_json();
    for (value, payload) in [
        (&br#""{\"a\":1}""#[..], json!({ "a": 1 })),
        (br#""[1]""#, json!([1])),
        (br#""5""#, json!("5")),
        (br#""{""#, json!("{")),
        (br#"{"a":"[]"}"#, json!({ "a": "[]" })),
    ] {
        assert_eq!(with(&format, &GOOD, value).payload, payload);
    }
    assert_eq!(usual(&GOOD, br#""[1]""#).payload, json!("[1]"));
}

#[test]
fn bytes_are_not_parsed() {
    let message = with(&MessageFormat::new().value(ValueFormat::Bytes), &GOOD, b"\xff\x01");
    assert_eq!((&message.payload, message.payload_bytes()), (&Value::Null, Some(&b"\xff\x01"[..])));
    assert!(message.parse::<Value>().is_err());
}

#[test]
fn keys_are_read_as_they_are_written() {
    let key = |format, key: &[u8]| with_key(&MessageFormat::new().key(format), Some(key));
    let wrapped = br#"{"schema":{"type":"string","optional":false},"payload":"42"}"#;
    assert_eq!(key(KeyFormat::Text, b"\"42\"").unwrap(), "\"42\"");
    assert_eq!(key(KeyFormat::Json, b"\"4\\u0032\"").unwrap(), "42");
    assert_eq!(key(KeyFormat::Json, b"42").unwrap(), "42");
    assert_eq!(key(KeyFormat::Json, b"null").unwrap(), "");
    assert_eq!(key(KeyFormat::ConnectJson, wrapped).unwrap(), "42");
    assert_eq!(key(KeyFormat::Bytes, b"\xff\x00").unwrap(), "\\xff00");
    for (format, malformed) in [
        (KeyFormat::Text, &b"\xff"[..]),
        (KeyFormat::Json, b"secret"),
        (KeyFormat::Json, b"{}"),
        (KeyFormat::Json, b""),
        (KeyFormat::ConnectJson, b"42"),
        (KeyFormat::ConnectJson, br#"{"schema":null}"#),
        (KeyFormat::ConnectJson, br#"{"payload":["secret"]}"#),
    ] {
        let error = key(format, malformed).unwrap_err();
        assert_eq!(error.code(), "malformed_key");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(with_key(&MessageFormat::new().key(format), None).unwrap(), "");
    }
}

#[test]
fn cloudevents_are_read_in_both_modes() {
    let attributes: [(&str, &[u8]); 3] =
        [("ce_specversion", b"1.0"), ("ce_id", ID.as_bytes()), ("ce_type", b"OrderPaid")];
    let binary = |media: &'static [u8], value: &[u8]| {
        usual(&[&attributes[..], &[("content-type", media)]].concat(), value)
    };
    let json = binary(b"application/json", b"{\"a\": 1}");
    assert_eq!((json.id.to_string().as_str(), &*json.event_type), (ID, "OrderPaid"));
    assert_eq!(json.payload, json!({ "a": 1 }));
    assert_eq!(binary(b"text/plain; charset=utf-8", b"5").payload, json!("5"));
    let bytes = binary(b"application/octet-stream", b"\xff");
    assert_eq!((&bytes.payload, bytes.payload_bytes()), (&Value::Null, Some(&b"\xff"[..])));

    let structured = |data: &str| {
        let headers = [("content-type", &b"application/cloudevents+json; charset=UTF-8"[..])];
        let value =
            format!("{{\"specversion\":\"1.0\",\"id\":\"{ID}\",\"type\":\"OrderPaid\"{data}}}");
        usual(&headers, value.as_bytes())
    };
    for (data, payload, bytes) in [
        (
            r#","datacontenttype":"application/json","data":{"a": 1}"#,
            json!({ "a": 1 }),
            Some(&b"{\"a\": 1}"[..]),
        ),
        (r#","datacontenttype":"text/plain","data":"a\nb""#, json!("a\nb"), Some(b"a\nb")),
        (
            r#","datacontenttype":"application/octet-stream","data_base64":"/wE=""#,
            Value::Null,
            Some(b"\xff\x01"),
        ),
        ("", Value::Null, None),
    ] {
        let message = structured(data);
        assert_eq!((message.id.to_string().as_str(), &*message.event_type), (ID, "OrderPaid"));
        assert_eq!((&message.payload, message.payload_bytes()), (&payload, bytes));
    }
    // A content type alone does not mark a CloudEvent, because other producers send it as well.
    assert_eq!(usual(&[GOOD[0], GOOD[1], ("content-type", b"text/plain")], b"5").payload, json!(5));
}

#[test]
fn an_invalid_message_names_what_is_wrong_and_quotes_nothing() {
    let with = |name, value: &'static [u8]| [GOOD[0], GOOD[1], (name, value)];
    let usual = MessageFormat::new();
    let connect = MessageFormat::new().value(ValueFormat::ConnectJson);
    let envelope = MessageFormat::new().envelope();
    let event = with("content-type", b"application/cloudevents+json");
    let text = [GOOD[0], GOOD[1], ("ce_specversion", &b"1.0"[..]), ("content-type", b"text/plain")];
    let cases = [
        (invalid(&usual, &GOOD[1..], b"1"), "missing_header", "`id`"),
        (invalid(&usual, &[("id", b""), GOOD[1]], b"1"), "missing_header", "`id`"),
        (invalid(&usual, &[("id", b"7"), GOOD[1]], b"1"), "malformed_header", "`id`"),
        (invalid(&usual, &[("id", b"\xff"), GOOD[1]], b"1"), "malformed_header", "`id`"),
        (invalid(&usual, &GOOD[..1], b"1"), "missing_header", "`event_type`"),
        (invalid(&usual, &with("sequence", b"x"), b"1"), "malformed_header", "`sequence`"),
        (
            invalid(&usual, &with("aggregate_type", b"\xff"), b"1"),
            "malformed_header",
            "`aggregate_type`",
        ),
        (invalid(&usual, &GOOD, b"{\"secret\": "), "malformed_payload", "line 1, column 11"),
        (invalid(&usual, &GOOD, b""), "malformed_payload", "JSON"),
        (invalid(&usual, &GOOD, &vec![b'['; 100_000]), "malformed_payload", "JSON"),
        (invalid(&connect, &GOOD, b"[\"secret\"]"), "malformed_payload", "`schema` and `payload`"),
        (
            invalid(&connect, &GOOD, b"{\"secret\":1}"),
            "malformed_payload",
            "`schema` and `payload`",
        ),
        (invalid(&connect, &GOOD, b"{\"secret"), "malformed_payload", "JSON"),
        (invalid(&envelope, &GOOD, b"{\"secret\":1}"), "malformed_payload", "member `payload`"),
        (
            invalid(&envelope, &GOOD[..1], b"{\"payload\":1,\"type\":[]}"),
            "malformed_header",
            "`type`",
        ),
        (invalid(&usual, &event, b"5"), "malformed_payload", "CloudEvent"),
        (
            invalid(&usual, &event, b"{\"data_base64\":\"secret!\"}"),
            "malformed_payload",
            "CloudEvent",
        ),
        (invalid(&usual, &text, b"\xff"), "malformed_payload", "UTF-8"),
    ];
    for (invalid, code, part) in cases {
        let told = invalid.to_string();
        assert_eq!(invalid.code(), code, "{told}");
        assert!(told.contains(part) && !told.contains("secret"), "{told}");
    }
}

#[test]
fn a_payload_is_parsed_into_a_type_and_a_failure_tells_only_where() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Paid {
        amount: f64,
    }
    assert_eq!(usual(&GOOD, b"{\"amount\": 1.50}").parse::<Paid>().unwrap(), Paid { amount: 1.5 });
    let failure = usual(&GOOD, b"{\n\"amount\": \"secret\"}").parse::<Paid>().unwrap_err();
    let Failure::Poison(why) = failure else { panic!("{failure:?}") };
    assert_eq!(why, "the payload is not what the consumer expects (line 2, column 18)");
}

#[test]
fn a_valid_trace_is_handed_on() {
    let with = |trace: &'static [u8]| {
        usual(&[GOOD[0], GOOD[1], ("traceparent", trace)], b"1").traceparent()
    };
    assert_eq!(with(TRACE.as_bytes()).unwrap().as_str(), TRACE);
    assert_eq!(with(b"secret"), None);
    assert_eq!(with(b"\xff"), None);
    assert_eq!(usual(&GOOD, b"1").traceparent(), None);
}

proptest! {
    #[test]
    fn any_record_is_a_message_or_is_returned_unchanged(
        id in proptest::collection::vec(any::<u8>(), 0..40),
        key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..10)),
        value in proptest::option::of("[\\[\\]{}\":,0-9a-z]{0,40}"),
        number in 0..12_u8,
    ) {
        let value = value.as_deref().map(str::as_bytes);
        let record = StoredRecord { key, ..record(&[("id", &id), GOOD[1]], value) };
        let values = [ValueFormat::Json, ValueFormat::ConnectJson, ValueFormat::Bytes];
        let keys = [KeyFormat::Text, KeyFormat::Json, KeyFormat::ConnectJson, KeyFormat::Bytes];
        let mut format = MessageFormat::new().value(values[usize::from(number % 3)]);
        format = format.key(keys[usize::from(number % 4)]).text_ids().expand_json();
        if number % 2 == 0 {
            format = format.envelope();
        }
        match Message::read(record.clone(), &format) {
            Ok(message) => prop_assert_eq!(message.record, record),
            Err(invalid) => prop_assert_eq!(invalid.0, record),
        }
    }
}
