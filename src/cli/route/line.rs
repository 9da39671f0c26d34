//! Parses a line of input of `postrider route`: an insert, update, delete, logical message or
//! tombstone. Errors name the wrong member.

use serde_json::{Map, Value};

use super::types::{self, ColumnType};
use postrider_core::outbox::{TableName, type_oid as oid};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct InputLine {
    pub(super) change: InputChange,
    /// `None` means the first outbox table.
    pub(super) table: Option<TableName>,
    pub(super) columns: Vec<InputColumn>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputColumn {
    pub(super) name: String,
    pub(super) declared: ColumnType,
    /// Value as Postgres prints it; `None` is NULL.
    pub(super) value: Option<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InputChange {
    /// `c`, and `r`: an existing row.
    Insert,
    Update,
    Delete,
    /// Message of `pg_logical_emit_message`.
    Message {
        transactional: bool,
        prefix: String,
        content: Vec<u8>,
    },
    /// Added after a delete by Kafka Connect, not by Postgres.
    Tombstone,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LineError {
    #[error("it is not JSON: {0}")]
    Json(String),
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("`op` is not one of c, r, u, d, m")]
    Op,
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("`{0}` is not an object")]
    NoObject(&'static str),
    #[error("the type of column `{0}` is not text")]
    Type(String),
    #[error("`prefix` contains a NUL, which Postgres does not accept")]
    Prefix,
    #[error("the value of `{0}` is not an even number of hexadecimal digits")]
    Hex(String),
}

pub(super) fn parse(text: &[u8]) -> Result<InputLine, LineError> {
    let value = serde_json::from_slice(text).map_err(|error| LineError::Json(error.to_string()))?;
    let Value::Object(line) = value else { return Err(LineError::NotAnObject) };
    let change = match line.get("op").and_then(Value::as_str) {
        Some("c" | "r") => InputChange::Insert,
        Some("u") => InputChange::Update,
        Some("d") => InputChange::Delete,
        Some("m") => message(&line)?,
        Some("tombstone") => InputChange::Tombstone,
        _ => return Err(LineError::Op),
    };
    let columns = match &change {
        InputChange::Insert => columns(object(&line, "types")?, Some(object(&line, "row")?))?,
        InputChange::Update | InputChange::Delete => columns(object(&line, "types")?, None)?,
        InputChange::Message { .. } | InputChange::Tombstone => Vec::new(),
    };
    Ok(InputLine { change, table: None, columns })
}

fn object<'a>(
    line: &'a Map<String, Value>,
    name: &'static str,
) -> Result<&'a Map<String, Value>, LineError> {
    let value = line.get(name).ok_or(LineError::Missing(name))?;
    value.as_object().ok_or(LineError::NoObject(name))
}

/// In the order of `types`, then others of the row as text.
fn columns(
    types: &Map<String, Value>,
    row: Option<&Map<String, Value>>,
) -> Result<Vec<InputColumn>, LineError> {
    let untyped = Value::from("text null");
    let extra = row.into_iter().flat_map(Map::keys).filter(|name| !types.contains_key(*name));
    let all = types.iter().chain(extra.map(|name| (name, &untyped)));
    let column = |(name, text): (&String, &Value)| {
        let text = text.as_str().ok_or_else(|| LineError::Type(name.clone()))?;
        let declared = types::parse(text);
        let value = row.and_then(|row| row.get(name)).unwrap_or(&Value::Null);
        Ok(InputColumn {
            name: name.clone(),
            declared,
            value: printed(name, value, declared.type_oid)?,
        })
    };
    all.map(column).collect()
}

fn message(line: &Map<String, Value>) -> Result<InputChange, LineError> {
    let inside = line.get("row").and_then(|row| row.get("message"));
    let message = line.get("message").or(inside).ok_or(LineError::Missing("message"))?;
    let message = message.as_object().ok_or(LineError::NoObject("message"))?;
    let content = match (message.get("content"), message.get("content_json")) {
        (Some(content), _) => printed("content", content, oid::TEXT)?,
        (None, Some(json)) => Some(json.to_string().into_bytes()),
        (None, None) => return Err(LineError::Missing("content")),
    };
    let prefix = message.get("prefix").and_then(Value::as_str);
    if prefix.is_some_and(|prefix| prefix.contains('\0')) {
        return Err(LineError::Prefix);
    }
    Ok(InputChange::Message {
        transactional: message.get("transactional").and_then(Value::as_bool).unwrap_or(true),
        prefix: prefix.ok_or(LineError::Missing("prefix"))?.to_owned(),
        content: content.unwrap_or_default(),
    })
}

fn printed(name: &str, value: &Value, type_oid: u32) -> Result<Option<Vec<u8>>, LineError> {
    let bytes = match value {
        Value::Null => return Ok(None),
        Value::Bool(on) if type_oid == oid::BOOL => if *on { "t" } else { "f" }.into(),
        Value::String(text) => match (type_oid, text.as_str()) {
            (oid::BOOL, "true") => b"t".to_vec(),
            (oid::BOOL, "false") => b"f".to_vec(),
            (oid::BYTEA, text) => hex(text.as_bytes()),
            (oid::TIMESTAMP | oid::TIMESTAMPTZ, text) => {
                text.replacen('T', " ", 1).replace('Z', "+00").into_bytes()
            }
            (_, text) => text.as_bytes().to_vec(),
        },
        Value::Object(members) if members.len() == 1 && members.contains_key("$hex") => {
            let digits = members.get("$hex").and_then(Value::as_str);
            let bytes = digits.and_then(bytes_of).ok_or_else(|| LineError::Hex(name.to_owned()))?;
            if type_oid == oid::BYTEA { hex(&bytes) } else { bytes }
        }
        other => other.to_string().into_bytes(),
    };
    Ok(Some(bytes))
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    "\\x".chars().chain(digits).collect::<String>().into_bytes()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        digits.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| (high << 4) | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<InputLine, LineError> {
        parse(text.as_bytes())
    }

    #[test]
    fn values_are_what_postgres_prints() {
        let line = line(
            r#"{"op":"c","types":{"i":"int4","b":"bool","y":"bytea","t":"timestamp","j":"jsonb","n":"text null","f":"float8"},
                "row":{"i":5,"b":true,"y":{"$hex":"6162"},"t":"2019-03-24T20:52:59","j":{"a":1.50},"extra":"x","f":1.50}}"#,
        );
        let line = line.unwrap();
        let values: Vec<_> = line.columns.iter().map(|c| c.value.as_deref()).collect();
        let wanted: [Option<&[u8]>; 8] = [
            Some(b"5"),
            Some(b"t"),
            Some(b"\\x6162"),
            Some(b"2019-03-24 20:52:59"),
            Some(b"{\"a\":1.50}"),
            None,
            Some(b"1.50"),
            Some(b"x"),
        ];
        assert_eq!(values, wanted);
    }

    #[test]
    fn messages_stand_in_the_rows_place_or_beside_it() {
        let wanted = InputChange::Message {
            transactional: true,
            prefix: "foo".to_owned(),
            content: b"{\"a\":1}".to_vec(),
        };
        for text in [
            r#"{"op":"m","message":{"transactional":true,"prefix":"foo","content":"{\"a\":1}"}}"#,
            r#"{"op":"m","types":{},"row":{"message":{"prefix":"foo","content_json":{"a":1}}}}"#,
        ] {
            assert_eq!(line(text).unwrap().change, wanted);
        }
    }

    #[test]
    fn what_is_no_line_says_why() {
        for (text, why) in [
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            (r#"{"op":"x"}"#, "`op`"),
            (r#"{"op":"c","types":{}}"#, "`row` is missing"),
            (r#"{"op":"c","types":{},"row":5}"#, "`row` is not an object"),
            (r#"{"op":"c","types":{"a":1},"row":{}}"#, "column `a`"),
            (r#"{"op":"c","types":{"a":"bytea"},"row":{"a":{"$hex":"1"}}}"#, "`a` is not an even"),
            (r#"{"op":"m","message":{"content":""}}"#, "`prefix` is missing"),
        ] {
            let error = line(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
