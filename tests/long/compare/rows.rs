//! Values that vary: texts, JSON, numbers and times, drawn from a seed and written as SQL literals.
//!
//! Invariant: whatever is drawn here, Debezium survives. What kills its task (an integer beyond
//! 64 bits in an expanded payload, a payload that is an array) is a test of Postrider alone.

use support::chance::Chance;

/// A SQL literal of a text.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A SQL literal of a JSON string's content, quotes included.
pub(crate) fn json_string(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// NULL in some cases.
pub(crate) fn or_null(chance: &mut Chance, percent: u64, literal: String) -> String {
    if chance.percent(percent) { "NULL".to_owned() } else { literal }
}

fn pick<'a>(chance: &mut Chance, of: &[&'a str]) -> &'a str {
    of[chance.below(of.len())]
}

/// Texts that encoders trip over.
const PIECES: [&str; 22] = [
    "order",
    "a b",
    "",
    " ",
    "é",
    "日本語",
    "😀",
    "👩‍👩‍👧",
    "e\u{301}",
    "\u{1}",
    "\u{1f}",
    "\u{7f}",
    "\u{2028}",
    "\"",
    "\\",
    "/",
    "'",
    "\n",
    "\t\r",
    "${x}",
    "<&>",
    "Struct{a=1}",
];

/// A text of a few pieces, at times empty or long.
pub(crate) fn text(chance: &mut Chance) -> String {
    let pieces = if chance.percent(4) { chance.between(500, 3000) } else { chance.between(0, 4) };
    (0..pieces).map(|_| pick(chance, &PIECES)).collect()
}

/// What an aggregate or its key may be called.
pub(crate) fn name(chance: &mut Chance) -> String {
    let stem = pick(chance, &["order", "Customer", "invoice.line", "x", "ünï", "a-b_c"]);
    format!("{stem}{}", chance.below(4))
}

/// A number as JSON writes it: what fits Java's int, long and double.
fn number(chance: &mut Chance) -> String {
    match chance.below(4) {
        0 => chance.below(1000).to_string(),
        1 => format!("-{}", chance.between(2_147_483_640, 9_223_372_036_854_775_000)),
        2 => format!("{}.{}0", chance.below(100_000), chance.below(1000)),
        _ => pick(
            chance,
            &[
                "0",
                "-0",
                "-0.0",
                "1.0",
                "1.50",
                "1e3",
                "1E-7",
                "0.1",
                "0.001",
                "0.0001",
                "1.5e300",
                "2147483647",
                "2147483648",
                "-2147483648",
                "-2147483649",
                "9223372036854775807",
                "-9223372036854775808",
                "123456789012.5",
                "9999999.0",
                "10000000.0",
                "100000000.5",
                "1e400",
                "-1e400",
            ],
        )
        .to_owned(),
    }
}

/// A member's name.
fn member(chance: &mut Chance, index: usize) -> String {
    let stem = pick(chance, &["id", "name", "a b", "é", "x.y", "qty-1", "😀", "T"]);
    format!("{stem}{index}")
}

/// An array whose elements are alike, so that Debezium can say what it is an array of.
pub(crate) fn array(chance: &mut Chance, depth: u32) -> String {
    let length = chance.below(4);
    let kind = chance.below(if depth == 0 { 4 } else { 5 });
    let shape = object(chance, 0);
    let elements = (0..length).map(|_| match kind {
        0 => json_string(&text(chance)),
        1 => chance.below(1_000_000).to_string(),
        2 => format!("{}.25", chance.below(100)),
        3 => ["true", "false"][chance.below(2)].to_owned(),
        _ => shape.clone(),
    });
    format!("[{}]", elements.collect::<Vec<_>>().join(", "))
}

/// An object, nested as deep as `depth`.
pub(crate) fn object(chance: &mut Chance, depth: u32) -> String {
    let blank = pick(chance, &["", "  ", "\n "]);
    let members = (0..chance.below(6)).map(|index| {
        let value = match chance.below(if depth == 0 { 5 } else { 8 }) {
            0 | 1 => number(chance),
            2 => ["true", "false", "null"][chance.below(3)].to_owned(),
            3 | 4 => json_string(&text(chance)),
            5 => array(chance, depth - 1),
            _ => object(chance, depth - 1),
        };
        format!("{}: {value}", json_string(&member(chance, index)))
    });
    format!("{{{blank}{}}}", members.collect::<Vec<_>>().join(&format!(",{blank}")))
}

/// What a payload of [`PADDED`] has and no other: a member of that name, an array of objects.
pub(crate) const PADDED_MEMBER: &str = "\"items\":[{";

/// Objects of different shapes in one array: Debezium pads each with the members of the others, in
/// an order that changes from one run of the worker to the next.
const PADDED: [&str; 3] = [
    "{\"items\":[{\"id\":1,\"name\":\"x\"},{\"id\":2,\"price\":1.5,\"note\":null}]}",
    "{\"items\":[{\"a\":1},{\"b\":2},{}]}",
    "{\"items\":[{\"a\":[1]},{\"b\":{\"c\":true}}]}",
];

/// A text of up to 20,000 characters, so that its record stays below Kafka's limit of 1 MiB.
fn big(chance: &mut Chance) -> String {
    text(chance).repeat(40).chars().take(20_000).collect()
}

/// A payload of text that is an object, or something that expansion leaves as it is.
pub(crate) fn payload(chance: &mut Chance) -> String {
    if chance.percent(75) {
        return object(chance, 3);
    }
    match chance.below(5) {
        0 => text(chance),
        1 => pick(
            chance,
            &[
                "",
                " ",
                "null",
                "true",
                "5",
                "\"s\"",
                " {\"a\":1}",
                "{\"a\":1",
                "{a:1}",
                "{'a':1}",
                "{\"a\":[1,\"x\"]}",
                "{\"a\":[1,2.5]}",
                "{\"a\":[1,2147483648]}",
                "{\"a\":[null]}",
                "{\"a\":[[]]}",
                "{\"a\":01}",
                "{\"a\":NaN}",
                "[",
            ],
        )
        .to_owned(),
        2 => pick(
            chance,
            &[
                "{}",
                "{\"a\":[]}",
                "{\"a\":{}}",
                "{\"a\":null}",
                "{\"a\":[null,1]}",
                "{\"a\":1,\"a\":2}",
                "{\"a\":1,\"b\":2,\"a\":\"x\"}",
                "{\"a\":1} x",
                "{\"a\":[[1],[2,3]]}",
                "{\"a\":[{}]}",
                "{\"\":1,\"$\":2}",
                "{\"a\":\"\\ud83d\\ude00\\u00e9\\/\\u0001\"}",
                "{\"a\":\"\\ud83d\"}",
                "{\"a\":[{\"b\":1},{\"b\":null}]}",
                "{\"a\":[{\"b\":[1]},{\"b\":[2]}]}",
            ],
        )
        .to_owned(),
        3 => PADDED[chance.below(PADDED.len())].to_owned(),
        _ => format!("{{\"big\":{}}}", json_string(&big(chance))),
    }
}

/// Without the numbers that jsonb writes out in all their digits, which are no long of Java's.
pub(crate) fn exact(json: &str) -> String {
    json.replace("1e400", "7").replace("1.5e300", "7")
}

/// A payload for jsonb, which knows neither half surrogates nor duplicates nor syntax errors.
pub(crate) fn jsonb(chance: &mut Chance) -> String {
    let scalars =
        ["null", "true", "5", "1.50", "\"s\"", "[]", "[1,\"a\",{}]", "{}", "[{\"a\":1},{\"b\":2}]"];
    let text = if chance.percent(80) {
        exact(&object(chance, 3))
    } else {
        pick(chance, &scalars).to_owned()
    };
    quoted(&text)
}

/// A literal of bytea.
pub(crate) fn bytea(chance: &mut Chance) -> String {
    let length =
        if chance.percent(5) { chance.between(1000, 50_000) } else { chance.between(0, 9) };
    let bytes = (0..length).map(|_| format!("{:02x}", chance.below(256)));
    format!("'\\x{}'", bytes.collect::<String>())
}

/// A uuid that names the row.
pub(crate) fn uuid(chance: &mut Chance) -> String {
    let (high, low) = (chance.between(0, u64::MAX - 1), chance.between(0, u64::MAX - 1));
    quoted(&uuid::Uuid::from_u64_pair(high, low).to_string())
}

/// A time from year 1 to 9999 with so many digits after the second.
pub(crate) fn time(chance: &mut Chance, digits: usize) -> String {
    let year = [1, 1582, 1899, 1969, 1970, 2000, 2024, 9999][chance.below(8)];
    let (month, day) = (chance.between(1, 12), chance.between(1, 28));
    let (hour, minute, second) = (chance.below(24), chance.below(60), chance.below(60));
    let micros = [0, 1, 999_999, 500_000, 123_456, 100_000][chance.below(6)];
    let fraction = format!("{micros:06}");
    let fraction = if digits == 0 { "" } else { &format!(".{}", &fraction[..digits]) };
    format!("'{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction}'")
}
