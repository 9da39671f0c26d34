//! Facts of the router, most of them asserted by Debezium's own tests; the file says how to compare.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::dry_run::{Answer, answers, connector};
use super::listed::Listed;
use super::tally::{Outcome, Tally};

#[derive(Debug, Deserialize)]
struct Case {
    id: String,
    config: Map<String, Value>,
    serde: Serde,
    op: String,
    types: Value,
    row: Value,
    expect: Value,
}

#[derive(Debug, Deserialize)]
struct Serde {
    key: String,
    value: String,
}

/// Runs every case, each in a process of its own.
pub(crate) fn run(text: &str, listed: &Listed) -> Tally {
    let mut file: Value = serde_json::from_str(text).unwrap();
    let cases: Vec<Case> = serde_json::from_value(file["cases"].take()).unwrap();
    assert_eq!(cases.len(), 49, "cases are neither lost nor added unnoticed");
    let mut tally = Tally::default();
    for case in cases {
        let line = json!({ "op": case.op, "types": case.types, "row": case.row }).to_string();
        let lines: &[String] = if case.op == "none" { &[] } else { &[line] };
        let answer = answers(&connector(&case.options()), lines).remove(0);
        let outcome = compare(&case.expect, &answer);
        tally.count(&case.id, &case.expect, (outcome, &answer), listed);
    }
    tally
}

impl Case {
    /// The connector's options: the router's with their prefix, and the converters.
    fn options(&self) -> Map<String, Value> {
        let mut all = Map::new();
        for (side, serde) in [("key", &self.serde.key), ("value", &self.serde.value)] {
            let class = match serde.as_str() {
                "json" => "org.apache.kafka.connect.json.JsonConverter",
                "binary" => "io.debezium.converters.BinaryDataConverter",
                _ => "org.apache.kafka.connect.storage.StringConverter",
            };
            all.insert(format!("{side}.converter"), class.into());
            if serde == "json" {
                all.insert(format!("{side}.converter.schemas.enable"), "false".into());
            }
        }
        for (option, value) in &self.config {
            let option = match option.as_str() {
                "field.name.adjustment.mode" => option.clone(),
                "decode.logical.messages" | "fields.null.include" => {
                    let class = "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent";
                    all.insert("transforms".to_owned(), "decode,outbox".into());
                    all.insert("transforms.decode.type".to_owned(), class.into());
                    format!("transforms.decode.{option}")
                }
                option => format!("transforms.outbox.{option}"),
            };
            all.insert(option, value.clone());
        }
        all.remove("transforms.decode.decode.logical.messages");
        all
    }
}

fn compare(expect: &Value, answer: &Answer) -> Outcome {
    let outcome = |is_same: bool, what| {
        if is_same { Outcome::Same } else { Outcome::Differs(vec![what]) }
    };
    if expect.get("dropped").is_some() {
        return outcome(answer.is("dropped"), "it is not dropped");
    }
    if let Some(error) = expect.get("error") {
        return match error["stage"].as_str() {
            Some("config") => outcome(*answer == Answer::Exit(78), "it is not refused at start"),
            _ => outcome(answer.is("rejected"), "it is not rejected"),
        };
    }
    let Some(record) = answer.record() else { return Outcome::Differs(vec!["there is no record"]) };
    if let Some(trace) = expect.get("traceparent_header") {
        let headers = record["headers"].as_array().unwrap();
        let is_sent = headers.iter().any(|header| header[0] == "traceparent");
        return outcome(trace.is_null() && !is_sent, "the trace is another");
    }
    if expect.get("topic").is_none() {
        return Outcome::Differs(vec!["it is a record"]);
    }
    let differing = differing(expect, record);
    if differing.is_empty() { Outcome::Same } else { Outcome::Differs(differing) }
}

/// In which respects a record differs.
fn differing(expect: &Value, record: &Value) -> Vec<&'static str> {
    let timestamp = match expect["timestamp"].as_str() {
        Some("processing_time") => &Value::Null,
        _ => &expect["timestamp"],
    };
    let same = [
        ("topic", record["topic"] == expect["topic"]),
        ("key", is_key(&expect["key"], &record["key"])),
        ("value", is_value(&expect["value"], &record["value"])),
        ("headers", are_headers(expect, &record["headers"])),
        ("timestamp", record["timestamp"] == *timestamp),
        ("partition", record["partition"] == expect["partition"]),
        ("tombstone", record["tombstone"] == expect["tombstone"]),
    ];
    same.into_iter().filter(|(_, is_same)| !is_same).map(|(member, _)| member).collect()
}

fn is_key(expect: &Value, key: &Value) -> bool {
    match expect["hex"].as_str() {
        Some(digits) => hex(key) == digits,
        None => key == expect,
    }
}

fn is_value(expect: &Value, value: &Value) -> bool {
    let parsed = || serde_json::from_str::<Value>(value.as_str()?).ok();
    match expect["kind"].as_str() {
        Some("null") => value.is_null(),
        Some("raw") => value == &expect["utf8"],
        Some("hex") => !value.is_null() && hex(value) == expect["hex"].as_str().unwrap(),
        Some("json") => parsed().is_some_and(|parsed| {
            let absent = expect["absent"].as_array().into_iter().flatten();
            let is_absent = |name: &Value| parsed.get(name.as_str().unwrap()).is_none();
            parsed == expect["json"] && absent.into_iter().all(is_absent)
        }),
        kind => panic!("the kind {kind:?} of value is not known"),
    }
}

/// The first ones, in order; all, if the case says so.
fn are_headers(expect: &Value, headers: &Value) -> bool {
    let (expected, headers) = (expect["headers"].as_array().unwrap(), headers.as_array().unwrap());
    let is_exact = expect.get("headers_exact").is_some_and(|exact| *exact != Value::Bool(false));
    headers.starts_with(expected) && (!is_exact || headers.len() == expected.len())
}

/// The bytes of a key or value as digits.
fn hex(bytes: &Value) -> String {
    match bytes.as_str() {
        Some(text) => {
            let digits = text.bytes().flat_map(|byte| [byte >> 4, byte & 15]);
            digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
        }
        None => bytes["$hex"].as_str().unwrap_or("none").to_owned(),
    }
}
