//! `Printer`, the sink of `run --dry-run`: prints records as JSON lines instead of sending them.
//!
//! Every record counts as confirmed, which is safe because the dry run acknowledges nothing. If
//! stdout is closed, the caller is notified once and printing ends.

use std::io::{self, Write};

use serde_json::{Value, json};

use postrider_core::pipeline::Outgoing;
use postrider_core::route::Record;
use postrider_core::time::Instant;
use postrider_kafka::{Confirmation, KafkaSink, NullSink, SendError, Sink, SinkError};

pub(super) struct Printer<W, F> {
    out: W,
    stored: NullSink,
    /// Called once if nothing can be written any more.
    ended: F,
    is_ended: bool,
}

impl<W: Write, F: Fn(io::Error)> Printer<W, F> {
    pub(super) fn new(out: W, ended: F) -> Self {
        Self { out, stored: NullSink::default(), ended, is_ended: false }
    }
}

impl<W: Write, F: Fn(io::Error)> Sink for Printer<W, F> {
    type Error = SinkError;

    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        if !self.is_ended
            && let Err(error) = writeln!(self.out, "{}", to_json(&outgoing.record))
        {
            self.is_ended = true;
            (self.ended)(error);
        }
        self.stored.send(now, outgoing)
    }

    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), SinkError> {
        self.stored.poll(now, confirmations)
    }
}

impl<W: Write, F: Fn(io::Error)> KafkaSink for Printer<W, F> {
    fn is_connected(&self) -> bool {
        true
    }
}

/// A record as one JSON object, members in the order of the documentation.
pub(crate) fn to_json(record: &Record<'_>) -> Value {
    let headers: Vec<Value> =
        record.headers.iter().map(|(name, value)| json!([name, bytes(*value)])).collect();
    json!({
        "topic": record.topic,
        "key": bytes(record.key),
        "value": bytes(record.value),
        "headers": headers,
        "partition": record.partition,
        "timestamp": record.timestamp_ms,
        "tombstone": record.value.is_none(),
    })
}

fn bytes(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => text.into(),
        Some((bytes, Err(_))) => {
            let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('?');
            let hex: String =
                bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
            json!({ "$hex": hex })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::ledger::Ticket;

    #[test]
    fn that_nothing_can_be_written_any_more_is_told_once_and_fails_no_record() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let told = std::cell::RefCell::new(Vec::new());
        let mut printer =
            Printer::new(Full, |error: io::Error| told.borrow_mut().push(error.kind()));
        let headers = std::iter::empty::<(&str, Option<&[u8]>)>().collect();
        let record = Record {
            topic: "orders",
            partition: None,
            key: None,
            value: None,
            headers,
            timestamp_ms: 5,
        };
        for ticket in 1..=2 {
            let outgoing = Outgoing::new(record.clone(), Ticket::new(1, ticket));
            printer.send(Instant::START, &outgoing).unwrap();
        }
        let mut confirmations = Vec::new();
        printer.poll(Instant::START, &mut confirmations).unwrap();
        assert_eq!(confirmations.len(), 2);
        assert_eq!(told.into_inner(), [io::ErrorKind::StorageFull]);
    }

    #[test]
    fn a_record_is_one_line_and_confirmed_once() {
        let mut printer = Printer::new(Vec::new(), |_| panic!("it can be written to"));
        let record = Record {
            topic: "orders",
            partition: None,
            key: Some(b"k\n"),
            value: None,
            headers: [("id", Some(&b"\xff\x00"[..])), ("none", None)].into_iter().collect(),
            timestamp_ms: 5,
        };
        printer.send(Instant::START, &Outgoing::new(record, Ticket::new(1, 2))).unwrap();
        let mut confirmations = Vec::new();
        printer.poll(Instant::START, &mut confirmations).unwrap();
        printer.poll(Instant::START, &mut confirmations).unwrap();
        assert_eq!(confirmations.len(), 1);
        let line = String::from_utf8(printer.out).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["key"], "k\n");
        assert_eq!(value["headers"], json!([["id", { "$hex": "ff00" }], ["none", null]]));
        assert_eq!(value["tombstone"], true);
    }
}
