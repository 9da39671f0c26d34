//! Splits a record's value into the payload and the members that replace headers. Invariant: a
//! value is read as a CloudEvent only if its headers say so.
//!
//! CloudEvents 1.0 with the Kafka protocol binding 1.0.2: in structured mode the value is the
//! event. In binary mode the value is its data, and `content-type` names its kind.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_json::value::RawValue;

use postrider_core::record::StoredRecord;

use super::format::{MessageFormat, ValueFormat};
use super::{InvalidMessage, PayloadBytes};

const CONTENT_TYPE_HEADER: &str = "content-type";
const SPEC_VERSION_HEADER: &str = "ce_specversion";
/// The media type of one event in structured mode; parameters may follow.
const STRUCTURED: &str = "application/cloudevents+json";
/// The form that Kafka Connect's JsonConverter writes with schemas.
pub(super) const WRAPPED: &str = "an object of `schema` and `payload`";
const ENVELOPE: &str = "an object with a member `payload`";
const EVENT: &str = "a CloudEvent";

pub(super) type Members<'r> = BTreeMap<String, &'r RawValue>;

pub(super) struct Body<'r> {
    pub(super) members: Members<'r>,
    pub(super) payload: Value,
    pub(super) bytes: PayloadBytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Json,
    Text,
    Bytes,
}

impl Content {
    /// An unknown media type is JSON.
    fn of(media_type: &str) -> Self {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "" | "application/json" | "text/json" => Self::Json,
            other if other.ends_with("+json") => Self::Json,
            other if other.starts_with("text/") => Self::Text,
            _ => Self::Bytes,
        }
    }

    fn parse(self, bytes: &[u8]) -> Result<Value, InvalidMessage> {
        match self {
            Self::Json => serde_json::from_slice(bytes).map_err(not_json),
            Self::Text => {
                let wanted = "UTF-8 text, as its content type says";
                let text = str::from_utf8(bytes).map_err(|_| InvalidMessage::Value { wanted })?;
                Ok(Value::from(text))
            }
            Self::Bytes => Ok(Value::Null),
        }
    }
}

impl<'r> Body<'r> {
    pub(super) fn read(
        record: &'r StoredRecord,
        format: &MessageFormat,
    ) -> Result<Self, InvalidMessage> {
        let Some(value) = record.value.as_deref() else { return Ok(Self::whole(Value::Null)) };
        let body = match format.value {
            ValueFormat::Bytes => return Ok(Self::whole(Value::Null)),
            ValueFormat::ConnectJson => {
                let wrapped = members(value, WRAPPED)?;
                let wanted = InvalidMessage::Value { wanted: WRAPPED };
                let payload = wrapped.get("payload").ok_or(wanted)?.get();
                Self::part(payload.as_bytes(), format)?
            }
            ValueFormat::Json => {
                let content_type = header(record, CONTENT_TYPE_HEADER);
                let is_event = record.header(SPEC_VERSION_HEADER).is_some();
                let content = Content::of(content_type.filter(|_| is_event).unwrap_or_default());
                if content_type.is_some_and(is_structured) {
                    Self::event(value)?
                } else if content != Content::Json {
                    Self::whole(content.parse(value)?)
                } else if format.is_enveloped {
                    Self::part(value, format)?
                } else {
                    Self::whole(content.parse(value)?)
                }
            }
        };
        Ok(if format.expands_json { body.expanded() } else { body })
    }

    fn whole(payload: Value) -> Self {
        Self { members: Members::new(), payload, bytes: PayloadBytes::Whole }
    }

    fn part(json: &'r [u8], format: &MessageFormat) -> Result<Self, InvalidMessage> {
        let (mut members, mut payload) = (Members::new(), json);
        // A missing payload has no envelope, if the converter got none.
        if format.is_enveloped && json.trim_ascii() != b"null" {
            members = self::members(json, ENVELOPE)?;
            let wanted = InvalidMessage::Value { wanted: ENVELOPE };
            payload = members.remove("payload").ok_or(wanted)?.get().as_bytes();
        }
        let bytes = PayloadBytes::Part(payload.to_vec());
        Ok(Self { members, payload: Content::Json.parse(payload)?, bytes })
    }

    fn event(json: &'r [u8]) -> Result<Self, InvalidMessage> {
        let mut members = members(json, EVENT)?;
        let wanted = InvalidMessage::Value { wanted: EVENT };
        let media_type = match members.get("datacontenttype") {
            Some(text) => scalar(text).ok_or(wanted.clone())?,
            None => String::new(),
        };
        let content = Content::of(&media_type);
        let (payload, bytes) = if let Some(data) = members.remove("data") {
            let json = data.get().as_bytes();
            match Content::Json.parse(json)? {
                Value::String(text) if content != Content::Json => {
                    let bytes = PayloadBytes::Part(text.clone().into_bytes());
                    (Value::String(text), bytes)
                }
                payload => (payload, PayloadBytes::Part(json.to_vec())),
            }
        } else if let Some(data) = members.remove("data_base64") {
            let text: String = serde_json::from_str(data.get()).map_err(|_| wanted.clone())?;
            let bytes = STANDARD.decode(text).map_err(|_| wanted)?;
            (content.parse(&bytes)?, PayloadBytes::Part(bytes))
        } else {
            (Value::Null, PayloadBytes::None)
        };
        Ok(Self { members, payload, bytes })
    }

    fn expanded(self) -> Self {
        let Value::String(text) = &self.payload else { return self };
        let inner = serde_json::from_str(text).ok();
        match inner.filter(|inner: &Value| inner.is_object() || inner.is_array()) {
            Some(inner) => {
                let bytes = PayloadBytes::Part(text.clone().into_bytes());
                Self { payload: inner, bytes, ..self }
            }
            None => self,
        }
    }
}

fn is_structured(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(STRUCTURED)
}

fn header<'r>(record: &'r StoredRecord, name: &str) -> Option<&'r str> {
    record.header(name).and_then(|bytes| str::from_utf8(bytes).ok())
}

/// If members share a name, the last one counts.
pub(super) fn members<'r>(
    json: &'r [u8],
    wanted: &'static str,
) -> Result<Members<'r>, InvalidMessage> {
    serde_json::from_slice(json).map_err(|error| {
        if error.is_data() { InvalidMessage::Value { wanted } } else { not_json(error) }
    })
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` has")]
fn not_json(error: serde_json::Error) -> InvalidMessage {
    InvalidMessage::Payload { line: error.line(), column: error.column() }
}

/// Text of a string, a number as written, or an empty text for null. `None` for other
/// JSON.
pub(super) fn scalar(json: &RawValue) -> Option<String> {
    match json.get().as_bytes() {
        [b'"', ..] => serde_json::from_str(json.get()).ok(),
        [b'{' | b'[', ..] => None,
        b"null" => Some(String::new()),
        _ => Some(json.get().to_owned()),
    }
}
