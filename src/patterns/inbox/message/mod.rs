//! A message: the outbox event that a Kafka record carries, with its id, types, sequence and payload.
//!
//! Input: a `StoredRecord` and the [`MessageFormat`] of its topic. Output: a `Message`, or `InvalidMessage`
//! with what is wrong, for a dead letter. Invariant: the record is kept byte for byte beside what was read
//! of it; no error repeats a value. Pure.

mod format;
mod invalid;
mod read;
#[cfg(test)]
mod tests;
mod value;

use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use postrider_core::record::StoredRecord;

pub use format::{KeyFormat, MessageFormat, TEXT_ID_NAMESPACE, ValueFormat};
pub use invalid::InvalidMessage;

use super::Failure;
use crate::traceparent::Traceparent;

/// W3C Trace Context's header, which the relay makes of the outbox's column.
const TRACEPARENT_HEADER: &str = "traceparent";

/// An event, as read from its record.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// The outbox row's id, or what [`MessageFormat::text_ids`] makes of it: the same at every delivery.
    pub id: Uuid,
    /// Not empty.
    pub event_type: String,
    /// `None` where the relay was told not to send it.
    pub aggregate_type: Option<String>,
    /// The record's key; empty for a null key.
    pub aggregate_id: String,
    /// The event's number within its aggregate, from 1; `None` where it is not sent.
    pub sequence: Option<i64>,
    /// The payload as JSON, its numbers as `serde_json` represents them: their text, such as `1.50`, is in
    /// [`payload_bytes`](Self::payload_bytes). Text that is not JSON is a string. `Null` for a null value, which
    /// is how a NULL payload is sent, and for bytes.
    pub payload: Value,
    /// Topic, partition, offset, key, value, headers and timestamp, as received.
    pub record: StoredRecord,
    bytes: PayloadBytes,
}

/// Where the bytes of the payload are.
#[derive(Debug, Clone, PartialEq)]
enum PayloadBytes {
    /// The record's value is the payload, and null if that is null.
    Whole,
    /// A part of the value, or decoded from one.
    Part(Vec<u8>),
    /// The value is an event without data.
    None,
}

impl Message {
    /// Parses a record. An invalid one is returned with the reason.
    pub fn read(
        record: StoredRecord,
        format: &MessageFormat,
    ) -> Result<Self, Box<(StoredRecord, InvalidMessage)>> {
        match read::parts(&record, format) {
            Ok(message) => Ok(Self { record, ..message }),
            Err(invalid) => Err(Box::new((record, invalid))),
        }
    }

    /// The payload as it was sent: of JSON its text, of a CloudEvent its data, else the bytes. `None` where
    /// the value is null, or an event without data.
    pub fn payload_bytes(&self) -> Option<&[u8]> {
        match &self.bytes {
            PayloadBytes::Whole => self.record.value.as_deref(),
            PayloadBytes::Part(bytes) => Some(bytes),
            PayloadBytes::None => None,
        }
    }

    /// The payload as a type of the application's; a missing payload is parsed like `null`, so `Option<T>`
    /// takes tombstones.
    ///
    /// The failure is poison: it tells the line and the column within the payload, from 1, and nothing of
    /// what is there.
    ///
    /// ```
    /// # use postrider_patterns::inbox::{Failure, Message};
    /// #[derive(serde::Deserialize)]
    /// struct OrderCreated {
    ///     total: i64,
    /// }
    ///
    /// fn total(message: &Message) -> Result<i64, Failure> {
    ///     Ok(message.parse::<OrderCreated>()?.total)
    /// }
    /// ```
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let bytes = self.payload_bytes().unwrap_or(b"null");
        // Only where and of which kind: serde's own text quotes what it met.
        serde_json::from_slice(bytes).map_err(|error| {
            let what = if error.is_data() { "not what the consumer expects" } else { "not JSON" };
            let (line, column) = (error.line(), error.column());
            Failure::poison(format!("the payload is {what} (line {line}, column {column})"))
        })
    }

    /// The trace that the event belongs to: the header `traceparent`, if it is there and valid. Hand it on with
    /// the events that the effects append.
    pub fn traceparent(&self) -> Option<Traceparent> {
        str::from_utf8(self.record.header(TRACEPARENT_HEADER)?).ok()?.parse().ok()
    }
}
