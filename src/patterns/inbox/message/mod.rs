//! A message: the outbox event that a Kafka record carries. Invariant: a message keeps its record
//! byte for byte. No error repeats a value. Pure.

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

const TRACEPARENT_HEADER: &str = "traceparent";

/// An event that was read from its record.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Id of the outbox row, or a UUID from [`MessageFormat::text_ids`]; equal at every delivery.
    pub id: Uuid,
    /// Event type, not empty.
    pub event_type: String,
    /// Aggregate type; `None` if the relay does not send it.
    pub aggregate_type: Option<String>,
    /// The record's key; empty for a null key.
    pub aggregate_id: String,
    /// Number of the event within its aggregate, from 1; `None` if it is not sent.
    pub sequence: Option<i64>,
    /// The payload as JSON; `Null` for bytes and for a null value. Text that is not JSON is a
    /// string. The exact digits of numbers are in [`payload_bytes`](Self::payload_bytes).
    pub payload: Value,
    /// The record as received.
    pub record: StoredRecord,
    bytes: PayloadBytes,
}

#[derive(Debug, Clone, PartialEq)]
enum PayloadBytes {
    Whole,
    Part(Vec<u8>),
    None,
}

impl Message {
    /// Parses a record. An invalid record is returned with the reason.
    pub fn read(
        record: StoredRecord,
        format: &MessageFormat,
    ) -> Result<Self, Box<(StoredRecord, InvalidMessage)>> {
        match read::parts(&record, format) {
            Ok(message) => Ok(Self { record, ..message }),
            Err(invalid) => Err(Box::new((record, invalid))),
        }
    }

    /// The payload as sent: the text of JSON, the data of a CloudEvent, or the bytes. `None`
    /// without a payload.
    pub fn payload_bytes(&self) -> Option<&[u8]> {
        match &self.bytes {
            PayloadBytes::Whole => self.record.value.as_deref(),
            PayloadBytes::Part(bytes) => Some(bytes),
            PayloadBytes::None => None,
        }
    }

    /// Parses the payload. A missing payload is parsed like `null`, so `Option<T>` accepts
    /// tombstones. The failure is poison and contains no part of the payload.
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
        // serde's own text quotes the input.
        serde_json::from_slice(bytes).map_err(|error| {
            let what = if error.is_data() { "not what the consumer expects" } else { "not JSON" };
            let (line, column) = (error.line(), error.column());
            Failure::poison(format!("the payload is {what} (line {line}, column {column})"))
        })
    }

    /// Trace of the event. Pass it to the events that the effects append.
    pub fn traceparent(&self) -> Option<Traceparent> {
        str::from_utf8(self.record.header(TRACEPARENT_HEADER)?).ok()?.parse().ok()
    }
}
