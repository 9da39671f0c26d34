//! Parses a Kafka record that the relay wrote, back into the outbox event: id, types, sequence, payload.
//!
//! Input: a `StoredRecord`, whose headers are named here. Output: a `Message`, or `InvalidMessage` with the
//! field that is wrong, for a dead letter. Invariant: the record is kept byte for byte beside what was read
//! of it; no error repeats a value. Pure.

use serde_json::Value;
use uuid::Uuid;

use postrider_core::record::StoredRecord;

/// The outbox row's id, as text.
pub const ID_HEADER: &str = "id";
/// The outbox row's type.
pub const EVENT_TYPE_HEADER: &str = "event_type";
/// The kind of thing that the event is about.
pub const AGGREGATE_TYPE_HEADER: &str = "aggregate_type";
/// The event's number within its aggregate, from 1.
pub const SEQUENCE_HEADER: &str = "sequence";

/// A parsed event.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The outbox row's id: the same at every delivery.
    pub id: Uuid,
    /// Not empty.
    pub event_type: String,
    /// `None` where the relay was told not to send the header.
    pub aggregate_type: Option<String>,
    /// The record's key; empty for a null key.
    pub aggregate_id: String,
    /// The event's number within its aggregate, from 1; `None` where the header is not sent.
    pub sequence: Option<i64>,
    /// The value as JSON; `Null` for a null value, which is how a NULL payload is sent.
    pub payload: Value,
    /// Topic, partition, offset, key, value, headers and timestamp, as received.
    pub record: StoredRecord,
}

/// A record that is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessage {
    /// Every message has this header, which is not null or empty.
    #[error("the header `{0}` is missing")]
    Missing(&'static str),
    /// The header is not what it should be, such as a UUID.
    #[error("the header `{field}` is not {wanted}")]
    Malformed {
        /// The header's name.
        field: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// The key names the aggregate.
    #[error("the key is not UTF-8")]
    Key,
    /// The value is no JSON; where it stops being so, in bytes that tell nothing of it.
    #[error("the payload is not JSON (line {line}, column {column})")]
    Payload {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// [`Interest::Unknown`](super::Interest::Unknown).
    #[error("the consumer does not know the type in the header `event_type`")]
    UnknownType,
}

impl InvalidMessage {
    /// The reason in one word, for the dead letter and for metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing(_) => "missing_header",
            Self::Malformed { .. } => "malformed_header",
            Self::Key => "malformed_key",
            Self::Payload { .. } => "malformed_payload",
            Self::UnknownType => "unknown_type",
        }
    }

    /// What is wrong: a header's name, `key` or `payload`.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Missing(field) | Self::Malformed { field, .. } => field,
            Self::Key => "key",
            Self::Payload { .. } => "payload",
            Self::UnknownType => EVENT_TYPE_HEADER,
        }
    }
}

impl Message {
    /// Parses a record. An invalid one is returned with the reason.
    pub fn read(record: StoredRecord) -> Result<Self, Box<(StoredRecord, InvalidMessage)>> {
        match Self::parts(&record) {
            Ok(message) => Ok(Self { record, ..message }),
            Err(invalid) => Err(Box::new((record, invalid))),
        }
    }

    /// All but the record itself.
    fn parts(record: &StoredRecord) -> Result<Self, InvalidMessage> {
        let id = text(record, ID_HEADER)?.ok_or(InvalidMessage::Missing(ID_HEADER))?;
        let id = Uuid::try_parse(id)
            .map_err(|_| InvalidMessage::Malformed { field: ID_HEADER, wanted: "a UUID" })?;
        let event_type =
            text(record, EVENT_TYPE_HEADER)?.ok_or(InvalidMessage::Missing(EVENT_TYPE_HEADER))?;
        let sequence = text(record, SEQUENCE_HEADER)?.map(|number| {
            let wanted = "a whole number of 64 bits";
            number.parse().map_err(|_| InvalidMessage::Malformed { field: SEQUENCE_HEADER, wanted })
        });
        let aggregate_id = str::from_utf8(record.key.as_deref().unwrap_or_default());
        let payload = record.value.as_deref().map_or(Ok(Value::Null), serde_json::from_slice);
        Ok(Self {
            id,
            event_type: event_type.to_owned(),
            aggregate_type: text(record, AGGREGATE_TYPE_HEADER)?.map(str::to_owned),
            aggregate_id: aggregate_id.map_err(|_| InvalidMessage::Key)?.to_owned(),
            sequence: sequence.transpose()?,
            payload: payload.map_err(|error| InvalidMessage::Payload {
                line: error.line(),
                column: error.column(),
            })?,
            record: StoredRecord::default(),
        })
    }
}

/// `None` where the header is absent, null or empty.
fn text<'r>(
    record: &'r StoredRecord,
    field: &'static str,
) -> Result<Option<&'r str>, InvalidMessage> {
    let Some(bytes) = record.header(field) else { return Ok(None) };
    let text =
        str::from_utf8(bytes).map_err(|_| InvalidMessage::Malformed { field, wanted: "UTF-8" })?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0199f2a4-7c1e-7cc3-98c4-dc0c0c07398f";

    fn record(headers: &[(&str, &[u8])], value: Option<&[u8]>) -> StoredRecord {
        let headers = headers.iter().map(|&(name, value)| (name.to_owned(), Some(value.to_vec())));
        StoredRecord {
            topic: "orders".into(),
            partition: 2,
            offset: 17,
            timestamp_ms: Some(5),
            key: Some(b"42".to_vec()),
            value: value.map(<[u8]>::to_vec),
            headers: headers.collect(),
        }
    }

    fn invalid(headers: &[(&str, &[u8])], value: &[u8]) -> InvalidMessage {
        Message::read(record(headers, Some(value))).unwrap_err().1
    }

    const GOOD: [(&str, &[u8]); 2] = [("id", ID.as_bytes()), ("event_type", b"OrderPaid")];

    #[test]
    fn what_the_relay_writes_is_parsed() {
        let optional = [("aggregate_type", &b"order"[..]), ("sequence", b"7")];
        let record = record(&[&GOOD[..], &optional].concat(), Some(b"{\"amount\": 1.50}"));
        let message = Message::read(record.clone()).unwrap();
        assert_eq!(message.id.to_string(), ID);
        assert_eq!(
            (message.event_type.as_str(), message.aggregate_id.as_str()),
            ("OrderPaid", "42")
        );
        assert_eq!((message.aggregate_type.as_deref(), message.sequence), (Some("order"), Some(7)));
        assert_eq!(message.payload["amount"].to_string(), "1.50");
        assert_eq!(message.record, record);
    }

    #[test]
    fn a_null_value_is_a_null_payload_and_what_may_be_absent_may() {
        let message = Message::read(StoredRecord { key: None, ..record(&GOOD, None) }).unwrap();
        assert_eq!((message.payload, message.sequence), (Value::Null, None));
        assert_eq!((message.aggregate_id.as_str(), message.aggregate_type), ("", None));
    }

    #[test]
    fn an_invalid_message_names_the_field() {
        let with = |name, value: &'static [u8]| [GOOD[0], GOOD[1], (name, value)];
        let cases = [
            (invalid(&GOOD[1..], b"1"), "missing_header", "id"),
            (invalid(&[("id", b""), GOOD[1]], b"1"), "missing_header", "id"),
            (invalid(&[("id", b"7"), GOOD[1]], b"1"), "malformed_header", "id"),
            (invalid(&[("id", b"\xff"), GOOD[1]], b"1"), "malformed_header", "id"),
            (invalid(&GOOD[..1], b"1"), "missing_header", "event_type"),
            (invalid(&with("sequence", b"x"), b"1"), "malformed_header", "sequence"),
            (invalid(&with("aggregate_type", b"\xff"), b"1"), "malformed_header", "aggregate_type"),
            (invalid(&GOOD, b"{\"secret\": "), "malformed_payload", "payload"),
            (invalid(&GOOD, b""), "malformed_payload", "payload"),
            (invalid(&GOOD, &vec![b'['; 100_000]), "malformed_payload", "payload"),
        ];
        for (invalid, code, field) in cases {
            assert_eq!((invalid.code(), invalid.field()), (code, field));
            assert!(!invalid.to_string().contains("secret"), "{invalid}");
        }
        let bad_key = StoredRecord { key: Some(vec![0xff]), ..record(&GOOD, Some(b"1")) };
        assert_eq!(Message::read(bad_key).unwrap_err().1, InvalidMessage::Key);
    }

    proptest! {
        #[test]
        fn any_record_is_a_message_or_is_returned_unchanged(
            id in proptest::collection::vec(any::<u8>(), 0..40),
            value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        ) {
            let record = record(&[("id", &id), GOOD[1]], value.as_deref());
            match Message::read(record.clone()) {
                Ok(message) => prop_assert_eq!(message.record, record),
                Err(invalid) => prop_assert_eq!(invalid.0, record),
            }
        }
    }
}
