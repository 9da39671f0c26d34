//! Prints records for people at a terminal.
//!
//! ```text
//! 2026-01-02T03:04:05.678Z  orders[2]@17  o-1
//!     id=4c1e..  event_type=OrderCreated
//!     {"total": 12}
//! ```
//! Control characters are shown as escapes: a payload must not drive the terminal.

use std::io::{self, Write};

use crate::display_bytes::shown;
use postrider_core::route::rfc3339;
use postrider_kafka::Received;

/// Writes one record over two or three lines.
pub(super) fn write(out: &mut impl Write, record: &Received<'_>, color: bool) -> io::Result<()> {
    let (dim, bold, plain) = if color { ("\x1b[2m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
    let time = record.timestamp_ms().map_or_else(|| "-".into(), rfc3339);
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
