//! A case of `fixtures/routing/eventrouter.json`, as a real table, a row in it, and a connector.

use serde_json::{Map, Value, json};

use support::postgres::Database;
use support::sql::Sql;
use support::topic::Stored;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/routing/eventrouter.json");

const ROUTER: &str = "transforms.outbox.";
const DECODER: &str =
    "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent";

/// One of them; its members are explained at the top of the file.
#[derive(Debug, Clone)]
pub(super) struct Case(Value);

/// What is expected of one record.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    case: &'a Case,
    value: Value,
}

impl Case {
    pub(super) fn load(id: &str) -> Self {
        let text = std::fs::read_to_string(FILE).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let case = file["cases"].as_array().unwrap().iter().find(|case| case["id"] == id);
        Self(case.unwrap_or_else(|| panic!("no case `{id}`")).clone())
    }

    pub(super) fn id(&self) -> &str {
        self.0["id"].as_str().unwrap()
    }

    pub(super) fn expect(&self, member: &str) -> &Value {
        &self.0["expect"][member]
    }

    /// The same case with another expectation.
    pub(super) fn expecting(&self, member: &str, value: Value) -> Self {
        let mut case = self.clone();
        case.0["expect"][member] = value;
        case
    }

    /// Creates the table and its publication.
    pub(super) fn create_table(&self, sql: &Sql) {
        let mut columns: Vec<String> =
            members(&self.0["types"]).iter().map(|(name, kind)| definition(name, kind)).collect();
        if columns.is_empty() {
            return sql.run("CREATE PUBLICATION outbox");
        }
        if self.is_change() {
            // These cases name the id alone; no outbox has one column.
            let others = ["aggregatetype", "aggregateid", "type", "payload"];
            columns.extend(others.map(|name| format!("{name} text")));
        }
        let columns = columns.join(", ");
        sql.run(&format!(
            "CREATE TABLE outbox ({columns}); ALTER TABLE outbox REPLICA IDENTITY FULL"
        ));
        sql.run("CREATE PUBLICATION outbox FOR TABLE outbox");
    }

    /// Whether it is about what happens to a row after its insert.
    pub(super) fn is_change(&self) -> bool {
        self.0["op"] == "u" || self.0["op"] == "d"
    }

    /// The statement that makes the row or the message.
    pub(super) fn insert(&self) -> String {
        let row = &self.0["row"];
        if let Some(message) = row.get("message") {
            let content = message["content_json"].to_string();
            let prefix = literal(&message["prefix"]);
            let transactional = &message["transactional"];
            let content = literal(&Value::from(content));
            return format!("SELECT pg_logical_emit_message({transactional}, {prefix}, {content})");
        }
        let row = row.get("before").unwrap_or(row);
        let names: Vec<&str> = members(row).keys().map(String::as_str).collect();
        let values: Vec<String> = members(row).values().map(literal).collect();
        format!("INSERT INTO outbox ({}) VALUES ({})", names.join(", "), values.join(", "))
    }

    /// What becomes of that row later.
    pub(super) fn change(&self) -> &'static str {
        if self.0["op"] == "u" { "UPDATE outbox SET id = id" } else { "DELETE FROM outbox" }
    }

    /// The connector as Kafka Connect would be given it.
    pub(super) fn connector(&self, database: &Database) -> String {
        let address = database.address();
        let mut settings = json!({
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1",
            "database.port": address.port.to_string(),
            "database.user": address.user,
            "database.password": address.password,
            "database.dbname": database.name(),
            "topic.prefix": "shop",
            "slot.name": database.name(),
            "publication.name": "outbox",
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        });
        for side in ["key", "value"] {
            let serde = self.0["serde"][side].as_str().unwrap();
            settings[format!("{side}.converter")] = converter(serde).into();
            if serde == "json" {
                settings[format!("{side}.converter.schemas.enable")] = "false".into();
            }
        }
        let config = members(&self.0["config"]);
        if config.contains_key("decode.logical.messages") {
            settings["transforms"] = "decode,outbox".into();
            settings["transforms.decode.type"] = DECODER.into();
            settings["message.prefix.include.list"] = self.0["row"]["message"]["prefix"].clone();
        } else {
            settings["table.include.list"] = "public.outbox".into();
        }
        for (name, value) in config.iter().filter(|(name, _)| *name != "decode.logical.messages") {
            let of_router = ["table.", "route.", "tracing."].iter().any(|it| name.starts_with(it));
            let prefix = if of_router { ROUTER } else { "" };
            settings[format!("{prefix}{name}")] = value.clone();
        }
        settings.to_string()
    }

    /// What is to be compared; a jsonb has no other form than Postgres's.
    pub(super) fn wanted(&self, sql: &Sql) -> Wanted<'_> {
        let mut value = self.expect("value").clone();
        let is_jsonb =
            self.0["types"]["payload"].as_str().is_some_and(|it| it.starts_with("jsonb"));
        if is_jsonb && value["kind"] == "raw" {
            let print = format!("SELECT {}::jsonb", literal(&value["utf8"]));
            value["utf8"] = sql.value(&print).into();
        }
        Wanted { case: self, value }
    }
}

impl Wanted<'_> {
    /// Topic and key, which say which records belong together.
    pub(super) fn place(&self) -> (String, Option<Vec<u8>>) {
        let topic = self.case.expect("topic").as_str().unwrap().to_owned();
        let key = match self.case.expect("key") {
            Value::Null => None,
            Value::String(text) => Some(text.clone().into_bytes()),
            other => Some(bytes(&other["hex"])),
        };
        (topic, key)
    }

    /// Everything but the place.
    pub(super) fn assert_is(&self, record: &Stored, now_ms: i64) {
        let id = self.case.id();
        self.assert_value(record.value.as_deref());
        let headers: Vec<Value> = record
            .headers
            .iter()
            .map(|(name, value)| json!([name, value.as_deref().map(text)]))
            .collect();
        assert_eq!(Value::from(headers), *self.case.expect("headers"), "{id}: headers");
        let stamp = record.timestamp_ms.unwrap();
        match self.case.expect("timestamp").as_i64() {
            Some(wanted) => assert_eq!(stamp, wanted, "{id}: timestamp"),
            None => assert!((now_ms - 300_000..=now_ms).contains(&stamp), "{id}: {stamp}"),
        }
        if let Some(partition) = self.case.expect("partition").as_i64() {
            assert_eq!(i64::from(record.partition), partition, "{id}: partition");
        }
    }

    fn assert_value(&self, found: Option<&[u8]>) {
        let (id, wanted) = (self.case.id(), &self.value);
        let tombstone = self.case.expect("tombstone").as_bool();
        assert!(tombstone.is_none_or(|it| !it || found.is_none()), "{id}: a tombstone");
        match wanted["kind"].as_str().unwrap() {
            "null" => assert_eq!(found, None, "{id}: value"),
            "hex" => assert_eq!(found, Some(bytes(&wanted["hex"]).as_slice()), "{id}: value"),
            "raw" => assert_eq!(found.map(text), wanted["utf8"].as_str(), "{id}: value"),
            "json" => {
                let value: Value = serde_json::from_slice(found.unwrap()).unwrap();
                assert_eq!(value, wanted["json"], "{id}: value");
            }
            kind => panic!("{id}: a value of kind `{kind}`"),
        }
    }
}

fn members(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// A column; what is not said to be nullable is not.
fn definition(name: &str, kind: &Value) -> String {
    let kind = kind.as_str().unwrap();
    match kind.strip_suffix(" null") {
        Some(kind) => format!("{name} {kind}"),
        None => format!("{name} {kind} NOT NULL"),
    }
}

/// A value in SQL.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Object(_) => format!("'\\x{}'", value["$hex"].as_str().unwrap()),
        plain => plain.to_string(),
    }
}

fn converter(serde: &str) -> &'static str {
    match serde {
        "string" => "org.apache.kafka.connect.storage.StringConverter",
        "json" => "org.apache.kafka.connect.json.JsonConverter",
        "binary" => "io.debezium.converters.BinaryDataConverter",
        other => panic!("no converter `{other}`"),
    }
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(text(pair), 16).unwrap()).collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
