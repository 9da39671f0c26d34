//! One line of JSON per record, in the layout of `kcat -J`.
//!
//! Bytes that are no UTF-8 become `{"$hex":".."}`, as in `postrider route`; null stays null.

use std::io::{self, Write};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::kafka::Received;

#[derive(Serialize)]
struct Envelope<'a> {
    topic: &'a str,
    partition: i32,
    offset: i64,
    /// kcat's word for the producer's time.
    tstype: &'a str,
    ts: i64,
    /// Name, value, name, value, ...: repeated names survive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<Bytes<'a>>,
    key: Bytes<'a>,
    payload: Bytes<'a>,
}

struct Bytes<'a>(Option<&'a [u8]>);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(bytes) = self.0 else { return serializer.serialize_none() };
        if let Ok(text) = std::str::from_utf8(bytes) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("$hex", &hex(bytes))?;
        map.end()
    }
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes one record and a line feed.
pub(super) fn write(out: &mut impl Write, record: &Received<'_>) -> io::Result<()> {
    let pair = |(name, value): (_, _)| [Bytes(Some(str::as_bytes(name))), Bytes(value)];
    let envelope = Envelope {
        topic: record.topic(),
        partition: record.partition(),
        offset: record.offset(),
        tstype: if record.timestamp_ms().is_some() { "create" } else { "unknown" },
        ts: record.timestamp_ms().unwrap_or(-1),
        headers: record.headers().flat_map(pair).collect(),
        key: Bytes(record.key()),
        payload: Bytes(record.value()),
    };
    serde_json::to_writer(&mut *out, &envelope)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_hex_or_null() {
        let json = |bytes| serde_json::to_string(&Bytes(bytes)).unwrap();
        assert_eq!(json(None), "null");
        assert_eq!(json(Some(b"")), "\"\"");
        assert_eq!(json(Some("é\"".as_bytes())), "\"é\\\"\"");
        assert_eq!(json(Some(b"\xff\x00")), "{\"$hex\":\"ff00\"}");
    }
}
