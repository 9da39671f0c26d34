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

pub(crate) struct RecordLines {
    pub(crate) timestamp_ms: Option<i64>,
    /// Topic, and partition and offset if they are known.
    pub(crate) place: String,
    pub(crate) key: String,
    /// For example `id=4c1e`.
    pub(crate) headers: Vec<String>,
    pub(crate) value: String,
}

impl RecordLines {
    pub(crate) fn write(&self, out: &mut impl Write, color: bool) -> io::Result<()> {
        let (dim, bold, plain) =
            if color { ("\x1b[2m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        let Self { timestamp_ms, place, key, headers, value } = self;
        let time = timestamp_ms.map_or_else(|| "-".into(), rfc3339);
        writeln!(out, "{dim}{time}{plain}  {bold}{place}{plain}  {key}")?;
        if !headers.is_empty() {
            writeln!(out, "    {dim}{}{plain}", headers.join("  "))?;
        }
        writeln!(out, "    {value}")
    }
}

pub(crate) const NO_KEY: &str = "(no key)";
pub(crate) const NULL: &str = "(null)";

pub(super) fn write(out: &mut impl Write, record: &Received<'_>, color: bool) -> io::Result<()> {
    let header = |(name, value): (&str, Option<&[u8]>)| {
        format!("{}={}", shown(Some(name.as_bytes()), ""), shown(value, NULL))
    };
    let lines = RecordLines {
        timestamp_ms: record.timestamp_ms(),
        place: format!("{}[{}]@{}", record.topic(), record.partition(), record.offset()),
        key: shown(record.key(), NO_KEY),
        headers: record.headers().map(header).collect(),
        value: shown(record.value(), NULL),
    };
    lines.write(out, color)
}
