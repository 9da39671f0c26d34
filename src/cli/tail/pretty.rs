//! Records for a human at a terminal.
//!
//! ```text
//! 2026-01-02T03:04:05.678Z  orders[2]@17  o-1
//!     id=4c1e..  event_type=OrderCreated
//!     {"total": 12}
//! ```
//! Control characters are shown as escapes: a payload must not drive the terminal.

use std::io::{self, Write};

use super::json::hex;
use crate::kafka::Received;

/// Longest run of raw bytes shown; the rest is counted.
const BYTES_SHOWN_MAX: usize = 64;

/// Writes one record over two or three lines.
pub(super) fn write(out: &mut impl Write, record: &Received<'_>, color: bool) -> io::Result<()> {
    let (dim, bold, plain) = if color { ("\x1b[2m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
    let time = record.timestamp_ms().map_or_else(|| "-".into(), utc);
    let place = format!("{}[{}]@{}", record.topic(), record.partition(), record.offset());
    let key = shown(record.key(), "(no key)");
    writeln!(out, "{dim}{time}{plain}  {bold}{place}{plain}  {key}")?;
    let headers: Vec<String> = record
        .headers()
        .map(|(name, value)| {
            format!("{}={}", shown(Some(name.as_bytes()), ""), shown(value, "(null)"))
        })
        .collect();
    if !headers.is_empty() {
        writeln!(out, "    {dim}{}{plain}", headers.join("  "))?;
    }
    writeln!(out, "    {}", shown(record.value(), "(null)"))
}

/// Bytes as a terminal may safely show them.
fn shown(bytes: Option<&[u8]>, null: &str) -> String {
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
fn utc(ms: i64) -> String {
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
