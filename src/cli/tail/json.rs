//! Prints one JSON line per record, in the layout of `kcat -J`. Bytes that are not UTF-8 become
//! `{"$hex":".."}`, as in `postrider route`; null stays null.

use std::io::{self, Write};

use serde::Serialize;

use crate::display_bytes::DisplayBytes;
use postrider_kafka::Received;

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
    headers: Vec<DisplayBytes<'a>>,
    key: DisplayBytes<'a>,
    payload: DisplayBytes<'a>,
}

pub(super) fn write(out: &mut impl Write, record: &Received<'_>) -> io::Result<()> {
    let pair =
        |(name, value): (_, _)| [DisplayBytes(Some(str::as_bytes(name))), DisplayBytes(value)];
    let envelope = Envelope {
        topic: record.topic(),
        partition: record.partition(),
        offset: record.offset(),
        tstype: if record.timestamp_ms().is_some() { "create" } else { "unknown" },
        ts: record.timestamp_ms().unwrap_or(-1),
        headers: record.headers().flat_map(pair).collect(),
        key: DisplayBytes(record.key()),
        payload: DisplayBytes(record.value()),
    };
    serde_json::to_writer(&mut *out, &envelope)?;
    out.write_all(b"\n")
}
