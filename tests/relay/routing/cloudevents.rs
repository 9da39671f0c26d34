//! CloudEvents in a running relay, held against the Kafka protocol binding 1.0.2 and the JSON event
//! format 1.0.2 by expectations that were written by hand.

use serde_json::{Value, json};

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::topic::Stored;

fn insert(stage: &Stage, id: u32, event_type: &str, payload: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES
         ('da8d6de6-3b77-45ff-8f44-57db55a7a00{id}', 'order', 'o 1', '{event_type}', {payload})"
    ));
}

/// Delivers all rows; records and dead letters in the order of their positions.
fn deliver(format: &str) -> (Stage, Vec<Stored>) {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "events");
    let relay = stage
        .relay()
        .set("format.value", format)
        .set("route.by", "aggregate_type")
        .set("route.headers", "aggregate_type:kind");
    insert_all(&stage);
    relay.expect_log("became a dead letter").run_once();
    let mut records = stage.records();
    records.sort_by_key(|record| record.header("postrider-lsn").unwrap().to_owned());
    (stage, records)
}

/// JSON that is not to be rewritten, none, bytes, text, and a row whose `type` is empty.
fn insert_all(stage: &Stage) {
    let retype = |to: &str| stage.sql().run(&format!("ALTER TABLE outbox ALTER payload TYPE {to}"));
    insert(
        stage,
        1,
        "shop.paid",
        r#"'{"n": 1.50, "big": 123456789012345678901234567890, "z": 1e2}'"#,
    );
    insert(stage, 2, "shop.paid", "NULL");
    retype("bytea USING NULL");
    insert(stage, 3, "shop.paid", r"'\x00ff62'");
    insert(stage, 4, "shop.paid", r"'\x'");
    retype("text USING NULL");
    insert(stage, 5, "shop.\"päid\"", "E'a \"b\"\\n{}'");
    insert(stage, 6, "", "'x'");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// What an event's `time` must be: that of its record.
fn time(stage: &Stage, record: &Stored) -> String {
    let stamp = record.timestamp_ms.unwrap();
    stage.sql().value(&format!(
        "SELECT to_char(to_timestamp({stamp} / 1000.0) AT TIME ZONE 'UTC', \
         'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
    ))
}

fn id(n: usize) -> String {
    format!("da8d6de6-3b77-45ff-8f44-57db55a7a00{n}")
}

#[test]
fn binary_mode_has_attributes_in_headers_and_the_payload_as_it_is() {
    let (stage, records) = deliver("cloudevents_binary");
    let [events @ .., letter] = records.as_slice() else { panic!() };
    let json: &[u8] = br#"{"n": 1.50, "z": 100, "big": 123456789012345678901234567890}"#;
    let wanted: [(&str, &str, Option<&[u8]>); 5] = [
        ("application/json", "shop.paid", Some(json)),
        ("", "shop.paid", None),
        ("application/octet-stream", "shop.paid", Some(b"\x00\xffb")),
        ("application/octet-stream", "shop.paid", Some(b"")),
        ("text/plain; charset=utf-8", "shop.\"päid\"", Some(b"a \"b\"\n{}")),
    ];
    assert_eq!(events.len(), wanted.len());
    for (n, (event, (content_type, event_type, value))) in (1..).zip(events.iter().zip(wanted)) {
        assert_eq!(event.topic, stage.topic("order"));
        assert_eq!(event.key.as_deref(), Some(&b"o 1"[..]));
        assert_eq!(event.value.as_deref(), value, "{n}");
        let headers: Vec<(&str, &str)> = event
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), text(value.as_deref().unwrap())))
            .collect();
        let (id, time) = (id(n), time(&stage, event));
        let mut wanted = vec![
            ("id", id.as_str()),
            ("ce_specversion", "1.0"),
            ("ce_id", &id),
            ("ce_source", "public.outbox"),
            ("ce_type", event_type),
            ("ce_subject", "o 1"),
            ("ce_time", &time),
        ];
        if !content_type.is_empty() {
            wanted.push(("content-type", content_type));
        }
        wanted.push(("kind", "order"));
        wanted.push(("postrider-lsn", event.header("postrider-lsn").unwrap()));
        assert_eq!(headers, wanted, "{n}");
    }
    assert_no_event(letter);
}

#[test]
fn structured_mode_has_everything_in_one_object() {
    let (stage, records) = deliver("cloudevents_structured");
    let [events @ .., letter] = records.as_slice() else { panic!() };
    let json = r#"{"n": 1.50, "z": 100, "big": 123456789012345678901234567890}"#;
    let wanted = [
        (json!({"datacontenttype": "application/json"}), Some(format!("\"data\":{json}}}"))),
        // NULL: a tombstone, which is no event.
        (Value::Null, None),
        (
            json!({"datacontenttype": "application/octet-stream", "data_base64": "AP9i"}),
            Some("\"data_base64\":\"AP9i\"}".to_owned()),
        ),
        (json!({"datacontenttype": "application/octet-stream", "data_base64": ""}), None),
        (
            json!({
                "datacontenttype": "text/plain; charset=utf-8", "data": "a \"b\"\n{}",
                "type": "shop.\"päid\"",
            }),
            None,
        ),
    ];
    assert_eq!(events.len(), wanted.len());
    for (n, (event, (members, ending))) in (1..).zip(events.iter().zip(&wanted)) {
        if members.is_null() {
            assert_eq!((event.value.as_ref(), event.header("content-type")), (None, None), "{n}");
            continue;
        }
        let value = text(event.value.as_deref().unwrap());
        // JSON goes in as Postgres prints it, digit for digit.
        assert!(ending.as_ref().is_none_or(|ending| value.ends_with(ending)), "{value}");
        let mut all = json!({
            "specversion": "1.0", "id": id(n), "source": "public.outbox", "type": "shop.paid",
            "subject": "o 1", "time": time(&stage, event),
        });
        for (name, member) in members.as_object().unwrap() {
            all[name] = member.clone();
        }
        let mut found: Value = serde_json::from_str(value).unwrap();
        if n == 1 {
            assert!(found.as_object_mut().unwrap().remove("data").is_some());
        }
        assert_eq!(found, all, "{n}");
        let headers: Vec<(&str, &str)> = event
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), text(value.as_deref().unwrap())))
            .collect();
        let content_type = "application/cloudevents+json; charset=UTF-8";
        let position = event.header("postrider-lsn").unwrap();
        let id = id(n);
        let wanted = [
            ("id", id.as_str()),
            ("content-type", content_type),
            ("kind", "order"),
            ("postrider-lsn", position),
        ];
        assert_eq!(headers, wanted, "{n}");
    }
    assert_no_event(letter);
}

/// An event without a type is none.
fn assert_no_event(letter: &Stored) {
    assert_eq!(letter.header("postrider-error-code"), Some("missing_value"), "{letter:?}");
    assert!(letter.header("postrider-error").unwrap().contains("`event_type`"));
    assert_eq!(letter.value.as_deref(), Some(&b"x"[..]));
}
