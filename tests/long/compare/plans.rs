//! What is compared: for each configuration of `fixtures/debezium` a table and a way to draw rows
//! for it. Which bytes come of them is Debezium's business and the relay's, and nobody else's.

use crate::compare::rows::{
    array, bytea, exact, json_string, jsonb, name, object, or_null, payload, quoted, text, time,
    uuid,
};
use support::chance::Chance;

/// One configuration and its rows.
pub(crate) struct Plan {
    /// Of the file in `fixtures/debezium`; also how every topic of its rows begins.
    pub(crate) name: &'static str,
    /// What is run before anything else.
    pub(crate) schema: &'static str,
    /// SQL that makes exactly one record; told the plan's name.
    pub(crate) row: fn(&mut Chance, &str) -> String,
    /// Whether the timestamp is a column's, and so the same on both sides.
    pub(crate) has_timestamp: bool,
}

/// The table of Debezium's documentation.
const CLASSIC: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY, \
    aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, \
    type varchar(255) NOT NULL, payload jsonb)";

pub(crate) const PLANS: [Plan; 11] = [
    Plan { name: "defaults", schema: CLASSIC, row: classic, has_timestamp: false },
    Plan {
        name: "expanded",
        schema: "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
            aggregateid text, type text, payload text, attempt int, urgent bool)",
        row: expanded,
        has_timestamp: false,
    },
    Plan { name: "schemas", schema: CLASSIC, row: classic, has_timestamp: false },
    Plan { name: "expanded-schemas", schema: CLASSIC, row: documents, has_timestamp: false },
    Plan {
        name: "bytes",
        schema: "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
            aggregatetype text NOT NULL, body_key bytea, type text, payload bytea, digest bytea)",
        row: bytes,
        has_timestamp: false,
    },
    Plan {
        name: "routing",
        schema: "CREATE TABLE outbox (event_id uuid PRIMARY KEY, event_type text NOT NULL, \
            entity int NOT NULL, body json, part int, happened_at timestamp NOT NULL)",
        row: routing,
        has_timestamp: true,
    },
    Plan {
        name: "tombstones",
        schema: "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
            aggregateid text NOT NULL, type text, payload text, is_deleted bool)",
        row: tombstones,
        has_timestamp: false,
    },
    Plan {
        name: "versions",
        schema: "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
            aggregateid bigint NOT NULL, type text NOT NULL, payload jsonb NOT NULL, \
            version int NOT NULL, amount numeric(10,2))",
        row: versions,
        has_timestamp: false,
    },
    Plan { name: "messages", schema: "", row: messages, has_timestamp: false },
    Plan {
        name: "hex",
        schema: "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
            body_key bytea, payload bytea, digest bytea)",
        row: hex,
        has_timestamp: false,
    },
    Plan {
        name: "types",
        schema: "CREATE TYPE mood AS ENUM ('happy', 'so so'); \
            CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, payload jsonb, \
            c_uuid uuid NOT NULL, c_int2 smallint, c_int8 bigint, c_float4 real, \
            c_float8 double precision, c_bool bool, c_timestamp timestamp, \
            c_timestamp3 timestamp(3), c_timestamptz timestamptz, c_date date, c_time time, \
            c_mood mood, c_varchar varchar(9), c_bytea bytea, c_texts text[], \
            c_numeric numeric(10,2))",
        row: types,
        has_timestamp: false,
    },
];

/// A route value: part of a topic's name, which is the plan's alone.
fn route(chance: &mut Chance, plan: &str) -> String {
    quoted(&format!("{plan}-{}", ["order", "Customer", "a.b", "c_d"][chance.below(4)]))
}

fn insert(values: &[String]) -> String {
    format!("INSERT INTO outbox VALUES ({})", values.join(", "))
}

/// A row of the classic table. Some are deleted at once, as outboxes are, which changes nothing.
fn classic_of(chance: &mut Chance, plan: &str, payload: String) -> String {
    let id = uuid(chance);
    let row = insert(&[
        id.clone(),
        route(chance, plan),
        quoted(&name(chance)),
        quoted(&text(chance).chars().take(255).collect::<String>()),
        payload,
    ]);
    let deleted = if chance.percent(20) { "; DELETE FROM outbox" } else { "" };
    format!("{row}{deleted}")
}

fn classic(chance: &mut Chance, plan: &str) -> String {
    let payload = jsonb(chance);
    let payload = or_null(chance, 10, payload);
    classic_of(chance, plan, payload)
}

fn documents(chance: &mut Chance, plan: &str) -> String {
    let payload = quoted(&exact(&object(chance, 3)));
    let payload = or_null(chance, 10, payload);
    classic_of(chance, plan, payload)
}

fn expanded(chance: &mut Chance, plan: &str) -> String {
    let key = quoted(&name(chance));
    let kind = quoted(&text(chance));
    let body = quoted(&payload(chance));
    insert(&[
        uuid(chance),
        route(chance, plan),
        or_null(chance, 10, key),
        or_null(chance, 20, kind),
        or_null(chance, 5, body),
        ["-5", "0", "2147483647", "NULL"][chance.below(4)].to_owned(),
        ["true", "false", "NULL"][chance.below(3)].to_owned(),
    ])
}

fn bytes(chance: &mut Chance, plan: &str) -> String {
    let (key, body, digest) = (bytea(chance), bytea(chance), bytea(chance));
    let kind = quoted(&text(chance));
    format!(
        "INSERT INTO outbox (aggregatetype, body_key, type, payload, digest) \
         VALUES ({}, {}, {}, {}, {})",
        route(chance, plan),
        or_null(chance, 10, key),
        or_null(chance, 20, kind),
        or_null(chance, 15, body),
        or_null(chance, 20, digest),
    )
}

/// What the rows of `routing` are about, and in which version.
const ROUTED: [(&str, usize); 8] = [
    ("UPPER", 1),
    ("order0", 0),
    ("Customer3", 10),
    ("invoice.line1", 7),
    ("x2", 11),
    ("x2", 3),
    ("uni0", 2),
    ("a-b_c3", 9),
];

/// The topics of rows that choose their own time, which may be decades ago.
pub(crate) fn dated_topics() -> Vec<String> {
    let matched = ROUTED.iter().map(|(entity, version)| format!("routing-{version}.{entity}"));
    matched.chain(["routing-unmatched".to_owned()]).collect()
}

fn routing(chance: &mut Chance, plan: &str) -> String {
    let kind = match ROUTED.get(chance.below(ROUTED.len() + 2)) {
        // What the expression does not match goes to a topic of its own name.
        None => format!("{plan}-unmatched"),
        Some((entity, version)) => format!("{plan}.{entity}.v{version}"),
    };
    let part = ["0", "1", "2", "NULL"][chance.below(4)];
    let body = quoted(&object(chance, 2));
    insert(&[
        uuid(chance),
        quoted(&kind),
        chance.below(9).to_string(),
        or_null(chance, 10, body),
        part.to_owned(),
        time_for_kafka(chance),
    ])
}

/// A time that Kafka takes as a record's timestamp: not before 1970, and not in the future.
fn time_for_kafka(chance: &mut Chance) -> String {
    let mut drawn = time(chance, 6);
    while drawn.as_str() < "'1970-01-02" || drawn.starts_with("'9999") {
        drawn = time(chance, 6);
    }
    drawn
}

fn tombstones(chance: &mut Chance, plan: &str) -> String {
    let blanks = ["NULL", "''", "'   '", "E' \\t\\r\\n'", "E'\\u00a0'", "E'\\u2003'", "'null'"];
    let body = quoted(&text(chance));
    let payload = if chance.percent(50) { body } else { blanks[chance.below(7)].to_owned() };
    let kind = quoted(&text(chance));
    insert(&[
        uuid(chance),
        route(chance, plan),
        quoted(&name(chance)),
        or_null(chance, 20, kind),
        payload,
        ["true", "false", "NULL"][chance.below(3)].to_owned(),
    ])
}

fn versions(chance: &mut Chance, plan: &str) -> String {
    let amount = format!("{}.{}", chance.below(100_000), chance.below(100));
    insert(&[
        uuid(chance),
        route(chance, plan),
        chance.below(5).to_string(),
        quoted(&text(chance)),
        jsonb(chance),
        chance.between(1, 3).to_string(),
        or_null(chance, 20, amount),
    ])
}

fn messages(chance: &mut Chance, plan: &str) -> String {
    let payload = match chance.below(5) {
        0 => json_string(&payload(chance)),
        1 => json_string(&text(chance)),
        2 => array(chance, 1).replace("[]", "[1]"),
        3 => ["5", "true", "1.50", "2147483648"][chance.below(4)].to_owned(),
        _ => object(chance, 2),
    };
    let mut members = vec![
        format!("\"id\":\"{}\"", uuid(chance).replace('\'', "")),
        format!("\"aggregatetype\":\"{}\"", route(chance, plan).replace('\'', "")),
        format!("\"aggregateid\":{}", json_string(&name(chance))),
        format!("\"payload\":{payload}"),
    ];
    // What is in the envelope may not be missing where it was there before: Debezium keeps the schema.
    members.push(format!("\"attempt\":{}", ["0", "-7", "2147483647"][chance.below(3)]));
    for (member, values) in [
        ("type", ["\"created\"", "\"é😀\"", "\"\""]),
        ("price", ["1.50", "1e10", "0.0001"]),
        ("urgent", ["true", "false", "null"]),
    ] {
        if chance.percent(70) {
            members.push(format!("\"{member}\":{}", values[chance.below(3)]));
        }
    }
    let content = quoted(&format!("{{{}}}", members.join(", ")));
    let transactional = chance.percent(80);
    format!("SELECT pg_logical_emit_message({transactional}, 'outbox', {content})")
}

fn hex(chance: &mut Chance, plan: &str) -> String {
    let (key, body, digest) = (bytea(chance), bytea(chance), bytea(chance));
    insert(&[
        uuid(chance),
        route(chance, plan),
        or_null(chance, 10, key),
        or_null(chance, 15, body),
        or_null(chance, 20, digest),
    ])
}

fn types(chance: &mut Chance, plan: &str) -> String {
    let float = |chance: &mut Chance| {
        let floats = [
            "1.5",
            "'-0.0'",
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
            "1e20",
            "1e-7",
            "0.1",
            "100",
            "1e7",
            "9999999",
            "0.001",
            "0.0001",
            "16777216",
        ];
        floats[chance.below(floats.len())].to_owned()
    };
    let mut values = vec![
        uuid(chance),
        // One route, for Debezium gives all envelopes the name of the first.
        quoted(&format!("{plan}-order")),
        jsonb(chance),
        uuid(chance),
        ["-32768", "0", "7"][chance.below(3)].to_owned(),
        ["-9223372036854775808", "0", "5000000000"][chance.below(3)].to_owned(),
        float(chance),
        float(chance),
        ["true", "false"][chance.below(2)].to_owned(),
        time(chance, 6),
        time(chance, 3),
        time(chance, 6).trim_end_matches('\'').to_owned() + "+02'",
        time(chance, 0).split(' ').next().unwrap_or_default().to_owned() + "'",
        ["'00:00:00'", "'12:34:56.789012'", "'23:59:59.9'"][chance.below(3)].to_owned(),
        ["'happy'", "'so so'"][chance.below(2)].to_owned(),
        quoted(&name(chance).chars().take(9).collect::<String>()),
        bytea(chance),
        ["'{}'", "'{a,NULL,\"b c\"}'", "'{\"é😀\"}'"][chance.below(3)].to_owned(),
        ["1.5", "-0.01", "0", "12345678.90", "'NaN'"][chance.below(5)].to_owned(),
    ];
    for value in values.iter_mut().skip(4) {
        if chance.percent(12) {
            "NULL".clone_into(value);
        }
    }
    insert(&values)
}
