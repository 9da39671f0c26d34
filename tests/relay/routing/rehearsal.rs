//! `postrider route --from-database` on real tables: it prints what `run` then sends.

use postrider::sandbox::postgres::Address;
use serde_json::{Value, json};

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::{Outcome, Relay};
use support::topic::Stored;

/// A table of every kind of column whose form is not obvious.
const SCHEMA: &str = "
    CREATE TYPE mood AS ENUM ('happy', 'so so');
    CREATE DOMAIN email AS text CHECK (value LIKE '%@%');
    CREATE DOMAIN amount AS int4;
    CREATE DOMAIN few AS amount CHECK (value < 10);
    CREATE DOMAIN spirits AS mood;
    CREATE TABLE outbox (
        event_type text NOT NULL, id uuid PRIMARY KEY, aggregate_type varchar(9) NOT NULL,
        gone int, aggregate_id bytea, payload jsonb, c_bytes bytea, c_zoned timestamptz,
        c_stamp timestamp NOT NULL, c_stamp3 timestamp(3), c_date date, c_time time,
        c_timetz timetz, c_price numeric(10,2), c_number numeric, c_flag bool NOT NULL,
        c_float float8, c_big bigint, c_mood mood, c_email email, c_amount amount NOT NULL,
        c_few few, c_spirits spirits, c_array text[], c_interval interval, c_char char(4),
        c_json json, twice int GENERATED ALWAYS AS (c_amount * 2) STORED);
    ALTER TABLE outbox DROP COLUMN gone";

const COLUMNS: &str = "c_bytes,c_zoned,c_stamp,c_stamp3,c_date,c_time,c_timetz,c_price,c_number,\
    c_flag,c_float,c_big,c_mood,c_email,c_amount,c_few,c_spirits,c_array,c_interval,c_char,c_json";

/// Full, empty, strange, and two that are no records.
const ROWS: &str = r#"
    INSERT INTO outbox VALUES
    ('A', 'da8d6de6-3b77-45ff-8f44-57db55a7a001', 'order', '\x6b', '{"n": 1.50, "a": [1, 2]}',
     '\x6162', '2024-02-29 12:00:00.5+02', '2019-03-24 20:52:59.123456', '2019-03-24 20:52:59.123',
     '2024-02-29', '23:59:59.9', '12:00:00+02', 1.5, 1.50, true, 0.1, -9223372036854775808,
     'so so', 'a@b', 7, 3, 'happy', '{a,NULL,"b c"}', '1 day 02:00', 'ab', '{"z" :1.0}'),
    ('A', 'da8d6de6-3b77-45ff-8f44-57db55a7a002', 'order', NULL, NULL, NULL, NULL,
     '1970-01-01', NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, 0, NULL,
     NULL, NULL, NULL, NULL, NULL),
    ('B', 'da8d6de6-3b77-45ff-8f44-57db55a7a003', '', '\xff00', '[{"a": 1}, {"b": null}]',
     '\xff', '0044-03-15 BC', 'infinity', '-infinity', '0044-03-15 BC', '24:00', '00:00-12', 0, 'NaN',
     true, 'NaN', 0, 'happy', '@', -1, -1, NULL, '{}', '-1 mon', '', '[]'),
    ('a topic', 'da8d6de6-3b77-45ff-8f44-57db55a7a004', 'o', '\x', '"text"', '\x', NULL,
     '2024-01-01', NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, 0, NULL,
     NULL, NULL, NULL, NULL, NULL)"#;

/// A database whose own settings print nearly everything in another way.
fn shop(bootstrap: &str, schema: &str) -> Stage {
    let stage = Stage::empty(postgres::installed(), bootstrap, "rehearsal");
    for setting in [
        "timezone = 'Asia/Tokyo'",
        "datestyle = 'German, DMY'",
        "intervalstyle = 'iso_8601'",
        "bytea_output = 'escape'",
        "extra_float_digits = -10",
    ] {
        stage.sql().run(&format!("ALTER DATABASE {} SET {setting}", stage.slot()));
    }
    stage.sql().run(schema);
    stage
}

fn route(relay: &Relay, limit: &str) -> Outcome {
    relay.start(&["route", "--from-database", "--limit", limit]).outcome()
}

/// The lines, which must have come without an error.
fn lines(relay: &Relay, limit: &str) -> Vec<Value> {
    let Outcome { status, stdout, log } = route(relay, limit);
    assert!(status.success(), "{}", log.join("\n"));
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A record as `route` would have printed it: without its partition, which is the brokers' business,
/// and without the commit time.
fn printed(record: &Stored, has_timestamp: bool) -> Value {
    let bytes = |bytes: Option<&Vec<u8>>| match bytes.map(|it| (it, std::str::from_utf8(it))) {
        None => Value::Null,
        Some((_, Ok(text))) => text.into(),
        Some((it, Err(_))) => {
            let digits: Vec<String> = it.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({"$hex": digits.concat()})
        }
    };
    let headers: Vec<Value> = without_position(record)
        .map(|(name, value)| json!([name, bytes(value.as_ref())]))
        .collect();
    json!({
        "topic": record.topic, "key": bytes(record.key.as_ref()),
        "value": bytes(record.value.as_ref()), "headers": headers, "partition": null,
        "timestamp": record.timestamp_ms.filter(|_| has_timestamp),
        "tombstone": record.value.is_none(),
    })
}

fn without_position(record: &Stored) -> impl Iterator<Item = &(String, Option<Vec<u8>>)> {
    record.headers.iter().filter(|(name, _)| name != "postrider-lsn")
}

/// Compares what is printed with what is sent; returns the lines.
fn rehearse(stage: &Stage, relay: &Relay) -> Vec<Value> {
    relay.clone().creates_slot().run_once();
    stage.sql().run(ROWS);
    let mut lines = lines(relay, "100");
    let position = |line: &mut Value| {
        let headers = line["headers"].as_array_mut().into_iter().flatten();
        assert!(headers.filter(|header| header[0] == "postrider-lsn").count() <= 1);
        if let Some(headers) = line["headers"].as_array_mut() {
            headers.retain(|header| header[0] != "postrider-lsn");
        }
    };
    lines.iter_mut().for_each(position);
    relay.clone().expect_log("became a dead letter").run_once();
    let records = stage.records();
    assert_eq!(records.len(), lines.len(), "{lines:#?}\n{records:#?}");
    for (number, line) in (1..).zip(&lines) {
        let id = format!("da8d6de6-3b77-45ff-8f44-57db55a7a00{number}");
        let of_row = |record: &&Stored| record.header("id") == Some(&id);
        let record = records.iter().find(of_row).unwrap();
        match record.header("postrider-error-code") {
            None => assert_eq!(*line, printed(record, line["timestamp"].is_number())),
            Some(code) => {
                assert_eq!(line["rejected"], true);
                assert_eq!(
                    (&line["code"], line["reason"].as_str()),
                    (&code.into(), record.header("postrider-error"),)
                );
            }
        }
    }
    lines
}

fn relay(stage: &Stage) -> Relay {
    stage.relay().set("route.headers", &format!("event_type,aggregate_type,{COLUMNS}"))
}

#[test]
fn it_prints_what_is_sent_in_the_native_forms() {
    let broker = Broker::embedded();
    let stage = shop(&broker.bootstrap(), SCHEMA);
    let lines = rehearse(&stage, &relay(&stage));
    let header = |name: &str| {
        let headers = lines[0]["headers"].as_array().unwrap();
        headers.iter().find(|header| header[0] == name).unwrap()[1].clone()
    };
    assert_eq!(
        (&lines[0]["key"], &lines[0]["value"]),
        (&"k".into(), &r#"{"a": [1, 2], "n": 1.50}"#.into(),)
    );
    for (name, text) in [
        ("c_zoned", "2024-02-29 10:00:00.5+00"),
        ("c_stamp", "2019-03-24 20:52:59.123456"),
        ("c_price", "1.50"),
        ("c_flag", "t"),
        ("c_float", "0.1"),
        ("c_mood", "so so"),
        ("c_few", "3"),
        ("c_interval", "1 day 02:00:00"),
        ("c_char", "ab  "),
    ] {
        assert_eq!(header(name), text, "{name}");
    }
    assert_eq!(lines[3]["code"], "invalid_topic");
}

#[test]
fn it_prints_what_is_sent_in_the_forms_of_connect() {
    let broker = Broker::embedded();
    for (columns, value, key, timestamp) in [
        ("postgres", "json", "json", "c_zoned"),
        ("debezium", "json", "raw", ""),
        ("debezium", "json_schema", "json_schema", "c_zoned"),
        ("postgres", "json_schema", "json_schema", ""),
    ] {
        let stage = shop(&broker.bootstrap(), SCHEMA);
        let relay = relay(&stage)
            .set("format.columns", columns)
            .set("format.value", value)
            .set("format.key", key)
            .set("format.expand_json", "true")
            .set("route.envelope", COLUMNS)
            .set("outbox.timestamp", timestamp);
        let lines = rehearse(&stage, &relay);
        let stamps: Vec<&Value> = lines.iter().map(|line| &line["timestamp"]).collect();
        let first = if timestamp.is_empty() { Value::Null } else { 1_709_200_800_500_i64.into() };
        assert_eq!(stamps, [&first, &Value::Null, &Value::Null, &Value::Null]);
        // A time before 1970 is none that Kafka has.
        let is_rejected = !timestamp.is_empty();
        assert_eq!(lines[2]["code"] == "invalid_value", is_rejected, "{}", lines[2]);
        let records = if is_rejected { &lines[..2] } else { &lines[..3] };
        let values: Vec<Value> = records
            .iter()
            .map(|line| serde_json::from_str(line["value"].as_str().unwrap()).unwrap())
            .collect();
        let payload = if value == "json" { &values[0] } else { &values[0]["payload"] };
        assert_eq!(payload["payload"], json!({"a": [1, 2], "n": 1.5}));
        assert_eq!((&payload["c_few"], &payload["c_flag"]), (&3.into(), &true.into()));
    }
}

#[test]
fn a_partitioned_table_is_one_table() {
    let broker = Broker::embedded();
    let schema = "
        CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, event_type text,
            payload jsonb) PARTITION BY LIST (event_type);
        CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('A');
        CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT";
    let stage = shop(&broker.bootstrap(), schema);
    let relay = stage.relay().creates_slot();
    relay.run_once();
    for n in 0..6 {
        stage.sql().run(&format!(
            "INSERT INTO outbox VALUES ('da8d6de6-3b77-45ff-8f44-57db55a7a00{n}', 't', 'k',
             substr('ABABCA', {n} + 1, 1), '{n}')"
        ));
    }
    let mut lines: Vec<(Value, Value)> = lines(&relay, "100")
        .into_iter()
        .map(|line| (line["value"].clone(), line["topic"].clone()))
        .collect();
    relay.run_once();
    let records = stage.records();
    let mut sent: Vec<(Value, Value)> = records
        .iter()
        .map(|record| printed(record, false))
        .map(|line| (line["value"].clone(), line["topic"].clone()))
        .collect();
    for list in [&mut lines, &mut sent] {
        list.sort_by_key(|(value, _)| value.as_str().unwrap().to_owned());
    }
    assert_eq!(lines, sent);
    assert_eq!(lines.len(), 6);
}

#[test]
fn it_reads_the_newest_and_touches_nothing() {
    let stage = Stage::new(postgres::installed(), "127.0.0.1:1", "newest");
    stage.insert("A", 5);
    stage.insert("B", 2);
    let before = stage.acknowledged();
    let topics = |limit: &str| {
        let lines = lines(&stage.relay(), limit);
        let topic = |line: &Value| {
            line["topic"].as_str().unwrap().strip_prefix(&stage.topic("")).unwrap().to_owned()
        };
        lines.iter().map(topic).collect::<String>()
    };
    assert_eq!(topics("3"), "ABB");
    assert_eq!(topics("100"), "AAAAABB");
    assert_eq!(route(&stage.relay(), "0").status.code(), Some(2));
    assert_eq!(stage.acknowledged(), before);
    assert_eq!(stage.slot_value("active"), "f");
}

#[test]
fn what_cannot_be_read_is_said() {
    let stage = Stage::new(postgres::installed(), "127.0.0.1:1", "unreadable");
    stage.sql().run("CREATE VIEW seen AS SELECT * FROM outbox");
    let refused = |relay: Relay, exit: i32, words: &[&str]| {
        let Outcome { status, stdout, log } = route(&relay, "5");
        let log = log.join("\n");
        assert_eq!((status.code(), stdout.as_str()), (Some(exit), ""), "{log}");
        for words in [words, &["help"]].concat() {
            assert!(log.contains(words), "no `{words}` in {log}");
        }
    };
    let relay = stage.relay();
    refused(relay.clone().set("source.tables", "public.nowhere"), 78, &["PR-P032", "nowhere"]);
    refused(relay.clone().set("source.tables", "public.seen"), 78, &["PR-P033", "a view"]);
    let address = stage.database.address();
    let reader = stage.database.create_role("route_reader", "");
    refused(
        relay.clone().set("source.url", &reader.url()),
        77,
        // As JSON, which the log is.
        &[r#"GRANT SELECT ON \"public\".\"outbox\" TO \"route_reader\""#],
    );
    let elsewhere = Address { port: 1, ..address };
    refused(relay.set("source.url", &elsewhere.url()), 69, &["PR-P001", "127.0.0.1:1"]);
    stage.sql().run("DROP ROLE route_reader");
}

/// Of a large table the end is read, and more of it where rows were deleted there.
#[test]
fn the_last_rows_of_a_large_table_are_those_of_its_end() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "route_large");
    stage.insert("A", 200_000);
    let pages = stage.sql().value("SELECT pg_relation_size('outbox') / 8192 > 1024");
    assert_eq!(pages, "t", "more than one end");
    let last = || {
        let route = ["route", "--from-database", "--limit", "3"];
        let Outcome { status, stdout, log } = stage.relay().start(&route).outcome();
        assert_eq!(status.code(), Some(0), "{}", log.join("\n"));
        let lines = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line.to_string()).collect::<Vec<_>>()
    };
    let numbers = |lines: &[String], wanted: [u32; 3]| {
        let has = |(line, n): (&String, u32)| line.contains(&format!("{n}"));
        assert!(lines.len() == 3 && lines.iter().zip(wanted).all(has), "{lines:?}");
    };
    numbers(&last(), [199_998, 199_999, 200_000]);
    stage.sql().run("DELETE FROM outbox WHERE (payload->>'n')::int > 1000");
    numbers(&last(), [998, 999, 1_000]);
}
