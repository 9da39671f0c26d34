//! Shows bytes of keys, values and headers, which may not be text, to people and to scripts.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Longest run of raw bytes shown; the rest is counted.
const BYTES_SHOWN_MAX: usize = 64;

/// Bytes in JSON: a string if they are UTF-8, otherwise `{"$hex":".."}`, so that every byte can be
/// restored; null for null.
pub(super) struct DisplayBytes<'a>(pub(super) Option<&'a [u8]>);

impl Serialize for DisplayBytes<'_> {
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

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Text without control characters, cut if binary.
pub(super) fn shown(bytes: Option<&[u8]>, null: &str) -> String {
    let Some(bytes) = bytes else { return null.to_owned() };
    if let Ok(text) = std::str::from_utf8(bytes) {
        let escape = |char: char| {
            if char.is_control() { char.escape_default().to_string() } else { char.to_string() }
        };
        return text.chars().map(escape).collect();
    }
    let head = bytes.get(..BYTES_SHOWN_MAX).unwrap_or(bytes);
    let more = bytes.len() - head.len();
    let rest = if more > 0 { format!(".. and {more} bytes") } else { String::new() };
    format!("0x{}{rest}", hex(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_hex_or_null() {
        let json = |bytes| serde_json::to_string(&DisplayBytes(bytes)).unwrap();
        assert_eq!(json(None), "null");
        assert_eq!(json(Some(b"")), "\"\"");
        assert_eq!(json(Some("é\"".as_bytes())), "\"é\\\"\"");
        assert_eq!(json(Some(b"\xff\x00")), "{\"$hex\":\"ff00\"}");
    }

    #[test]
    fn a_payload_cannot_drive_the_terminal() {
        assert_eq!(shown(Some(b"\x1b[2J\n"), ""), "\\u{1b}[2J\\n");
        assert_eq!(shown(Some("é".as_bytes()), ""), "é");
        assert_eq!(shown(None, "(null)"), "(null)");
        assert_eq!(shown(Some(&[0xff; 66]), "").len(), 2 + 128 + ".. and 2 bytes".len());
    }
}
