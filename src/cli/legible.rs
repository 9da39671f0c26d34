//! Bytes and times as people and scripts can read them.
//!
//! Enters: bytes of records, milliseconds. Leaves: text without control characters, JSON that loses
//! no byte, RFC 3339. Called by `tail` and `dead-letters`.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Longest run of raw bytes shown; the rest is counted.
const BYTES_SHOWN_MAX: usize = 64;

/// Bytes in JSON: a string where they are UTF-8, `{"$hex":".."}` otherwise, null for null.
pub(super) struct Bytes<'a>(pub(super) Option<&'a [u8]>);

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

/// Bytes as a terminal may safely show them.
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

/// Milliseconds since the Unix epoch as RFC 3339 in UTC.
/// The date is Howard Hinnant's `civil_from_days`.
pub(super) fn utc(ms: i64) -> String {
    const DAY_MS: i64 = 86_400_000;
    let (days, rest) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, ms) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
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

    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(-1), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_payload_cannot_drive_the_terminal() {
        assert_eq!(shown(Some(b"\x1b[2J\n"), ""), "\\u{1b}[2J\\n");
        assert_eq!(shown(Some("é".as_bytes()), ""), "é");
        assert_eq!(shown(None, "(null)"), "(null)");
        assert_eq!(shown(Some(&[0xff; 66]), "").len(), 2 + 128 + ".. and 2 bytes".len());
    }
}
