//! What is drawn: mostly sensible, so that much of it is routed, and hostile in places.

use serde_json::{Map, Value, json};

use support::chance::Chance;

/// The header that every record must begin with.
pub(crate) const ID_HEADER: &str = "id";

const COLUMNS: [&str; 9] = [
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "extra",
    "shard",
    "at",
    "odd",
];

const TYPES: [&str; 28] = [
    "text",
    "varchar(20)",
    "uuid",
    "json",
    "jsonb",
    "xml",
    "bytea",
    "bool",
    "int2",
    "int4",
    "int8",
    "oid",
    "float4",
    "float8",
    "numeric",
    "numeric(12,3)",
    "date",
    "time",
    "time(3)",
    "timetz",
    "timestamp",
    "timestamp(3)",
    "timestamptz",
    "timestamptz(0)",
    "interval",
    "inet",
    "text[]",
    "my_enum",
];

const REGEXES: [&str; 7] = [
    "(?<routedByValue>.*)",
    "Order(?<routedByValue>.*)",
    "(?<routedByValue>[A-Za-z.]+)",
    r"(?<routedByValue>\\w+)(?:\\.\\w+)*",
    "(?i)(?<routedByValue>order.*|user)",
    "(?=O)(?<routedByValue>.*)",
    "(?<routedByValue>.*?)(Created|Paid)?",
];

const GLOBS: [&str; 6] = ["*", "Order*", "*Paid", "?ser", "a*b*c", "User"];

fn pick<'a>(chance: &mut Chance, of: &[&'a str]) -> &'a str {
    of[chance.below(of.len())]
}

/// A `postrider.toml`. What it says may contradict itself, which is refused as a whole.
pub(crate) fn configuration(chance: &mut Chance) -> String {
    let column = |chance: &mut Chance| pick(chance, &COLUMNS);
    let mut toml = String::from("[messages]\nprefixes = [\"outbox*\"]\n[outbox]\n");
    if chance.percent(30) {
        toml += &format!(
            "timestamp = \"at\"\ntimestamp_unit = \"{}\"\n",
            pick(chance, &["s", "ms", "us"])
        );
    }
    if chance.percent(40) {
        toml += "traceparent = \"extra\"\n";
    }
    if chance.percent(20) {
        toml += "schema_version = \"shard\"\n";
    }
    toml += &format!(
        "on_update = \"{}\"\n[route]\n",
        pick(chance, &["ignore", "warn", "error", "stop"])
    );
    let by = if chance.percent(80) { "event_type" } else { column(chance) };
    let topic = pick(chance, &["${routedByValue}", "outbox.event.${routedByValue}", "all", "$0-x"]);
    toml +=
        &format!("by = \"{by}\"\nregex = \"{}\"\ntopic = \"{topic}\"\n", pick(chance, &REGEXES));
    toml += &format!(
        "key = \"{}\"\n",
        if chance.percent(70) { "aggregate_id" } else { column(chance) }
    );
    toml += &format!("headers = {}\n", fields(chance, "h"));
    let format = pick(
        chance,
        &[
            "raw",
            "string",
            "json",
            "json_schema",
            "json",
            "cloudevents_binary",
            "cloudevents_structured",
        ],
    );
    if chance.percent(40) && matches!(format, "string" | "json" | "json_schema") {
        toml += &format!("envelope = {}\n", fields(chance, "m"));
    }
    if chance.percent(30) {
        toml += "partition = \"shard\"\n";
    }
    toml += &format!("missing_column = \"{}\"\n", pick(chance, &["refuse", "ignore", "ignore"]));
    toml += &format!("empty_payload = \"{}\"\n", pick(chance, &["keep", "tombstone"]));
    for number in 0..chance.below(8) {
        toml += &rule(chance, number);
    }
    toml += &format!("[format]\nvalue = \"{format}\"\n");
    toml += &format!("key = \"{}\"\n", pick(chance, &["raw", "json", "json_schema"]));
    toml += &format!("columns = \"{}\"\n", pick(chance, &["postgres", "debezium"]));
    let bytea = pick(chance, &["encoded", "raw", "base64", "base64url", "hex"]);
    toml += &format!("bytea = \"{bytea}\"\nexpand_json = {}\n", chance.percent(60));
    toml += &format!("null_members = \"{}\"\n", pick(chance, &["drop", "keep"]));
    toml += &format!("empty_arrays = \"{}\"\n", pick(chance, &["drop", "keep"]));
    toml
}

fn fields(chance: &mut Chance, prefix: &str) -> String {
    let fields: Vec<String> = (0..chance.below(5))
        .map(|number| format!("\"{}:{prefix}{number}\"", pick(chance, &COLUMNS)))
        .collect();
    format!("[{}]", fields.join(", "))
}

fn rule(chance: &mut Chance, number: usize) -> String {
    let mut rule = format!("[[route.rules]]\ncolumn = \"{}\"\n", pick(chance, &COLUMNS));
    rule += &if chance.percent(50) {
        format!("glob = \"{}\"\n", pick(chance, &GLOBS[1..]))
    } else {
        format!("regex = \"{}\"\n", pick(chance, &REGEXES[1..]))
    };
    rule + &match chance.below(6) {
        0 => "drop = true\n".to_owned(),
        1 => "key = \"extra\"\n".to_owned(),
        2 => format!("headers = {}\n", fields(chance, "r")),
        3 => "partition = \"shard\"\n".to_owned(),
        _ => format!("topic = \"rule{number}.$0\"\n"),
    }
}

/// A line of input.
pub(crate) fn line(chance: &mut Chance) -> String {
    let op = pick(chance, &["c", "c", "c", "c", "c", "c", "r", "u", "d", "m"]);
    if op == "m" {
        return message(chance).to_string();
    }
    let (mut types, mut row) = (Map::new(), Map::new());
    for name in COLUMNS {
        if chance.percent(1) {
            continue;
        }
        let kind = match name {
            _ if chance.percent(8) => pick(chance, &TYPES),
            "id" => "uuid",
            "payload" => pick(chance, &["jsonb", "json", "text", "bytea"]),
            "shard" => pick(chance, &["int2", "int4", "int8"]),
            "at" => pick(chance, &["timestamp", "timestamptz", "timestamp(3)", "date", "int8"]),
            "odd" => pick(chance, &TYPES),
            _ => "text",
        };
        types.insert(name.to_owned(), format!("{kind}{}", pick(chance, &["", " null"])).into());
        row.insert(name.to_owned(), value(chance, name, kind));
    }
    json!({ "op": op, "types": types, "row": row }).to_string()
}

fn message(chance: &mut Chance) -> Value {
    let prefix = pick(chance, &["outbox", "outbox.orders", "other", ""]);
    let mut members = Map::new();
    for name in COLUMNS {
        if !chance.percent(10) {
            members.insert(name.to_owned(), document(chance, 2));
        }
    }
    members.insert("id".to_owned(), chance.below(1000).to_string().into());
    members.insert("event_type".to_owned(), word(chance).into());
    let content = match chance.below(8) {
        0 => text(chance),
        1 => document(chance, 3).to_string(),
        _ => Value::Object(members).to_string(),
    };
    let transactional = chance.percent(50);
    json!({ "op": "m", "message": { "transactional": transactional, "prefix": prefix, "content": content } })
}

fn value(chance: &mut Chance, name: &str, kind: &str) -> Value {
    if chance.percent(7) && name != "id" {
        return Value::Null;
    }
    if chance.percent(4) {
        return text(chance).into();
    }
    let kind = kind.split('(').next().unwrap();
    let number = chance.between(0, 100_000);
    match kind {
        "uuid" => format!("00000000-0000-0000-0000-{number:012}").into(),
        "bool" => chance.percent(50).into(),
        "int2" | "int4" | "int8" if name == "at" => 1_700_000_000_000_u64.into(),
        "int2" | "int4" | "int8" | "oid" => (number % 7).into(),
        "float4" | "float8" => {
            pick(chance, &["1.5", "-0", "NaN", "Infinity", "1e+20", "1e-07", "0.1"]).into()
        }
        "numeric" => pick(chance, &["1.50", "-3", "NaN", "100000000000000000000.001", "0"]).into(),
        "bytea" => json!({ "$hex": pick(chance, &["", "00ff", "7b7d", "61", "20"]) }),
        "json" | "jsonb" => document(chance, 3).to_string().into(),
        "date" => pick(chance, &["2026-01-01", "1969-12-31", "infinity", "0044-03-15 BC"]).into(),
        "time" => pick(chance, &["12:34:56.789", "00:00:00", "24:00:00"]).into(),
        "timetz" => pick(chance, &["12:34:56.789+02", "24:00:00+00"]).into(),
        "timestamp" => {
            pick(chance, &["2026-01-01 00:00:00.5", "infinity", "1960-01-01 00:00:00"]).into()
        }
        "timestamptz" => {
            pick(chance, &["2026-01-01 00:00:00+00", "-infinity", "12026-01-01 00:00:00+00"]).into()
        }
        _ if name == "event_type" || name == "aggregate_type" => word(chance).into(),
        _ if name == "payload" && chance.percent(80) => document(chance, 3).to_string().into(),
        _ => pick(chance, &["order-1", "é 😀", "", "a=b\nc", "x"]).into(),
    }
}

fn word(chance: &mut Chance) -> String {
    let words =
        ["OrderCreated", "OrderPaid", "User", "order.created.v2", "axbxc", "", "a b", "\u{2028}"];
    pick(chance, &words).to_owned()
}

/// Text that nothing promises anything about.
fn text(chance: &mut Chance) -> String {
    let pieces = [
        "{",
        "}",
        "[",
        "\"",
        "\\",
        "\n",
        "\t",
        "\u{1}",
        "é",
        "😀",
        "1e400",
        "null",
        " ",
        "traceparent=",
        "\\x4",
    ];
    (0..chance.below(12)).map(|_| pick(chance, &pieces)).collect()
}

fn document(chance: &mut Chance, depth: usize) -> Value {
    let scalar = depth == 0 || chance.percent(40);
    match chance.below(if scalar { 7 } else { 9 }) {
        0 => Value::Null,
        1 => chance.percent(50).into(),
        2 => chance.below(1000).into(),
        3 => serde_json::from_str(pick(
            chance,
            &["1.50", "2147483648", "1e400", "-0.0", "9223372036854775808"],
        ))
        .unwrap(),
        4..=6 => text(chance).into(),
        7 => (0..chance.below(4)).map(|_| document(chance, depth - 1)).collect(),
        _ => {
            let names = ["a", "b", "c", "payload", ""];
            let members = (0..chance.below(4))
                .map(|_| (pick(chance, &names).to_owned(), document(chance, depth - 1)));
            Value::Object(members.collect())
        }
    }
}
