//! Format of a topic's records: header names, and the encoding of ids, keys and values. Invariant:
//! the default reads the relay's default format and CloudEvents. Nothing is guessed.

use uuid::Uuid;

pub(super) const ID_HEADERS: [&str; 2] = ["id", "ce_id"];
/// Names of Postrider, Debezium's documentation, Debezium's outbox table and CloudEvents.
pub(super) const EVENT_TYPE_HEADERS: [&str; 4] = ["event_type", "eventType", "type", "ce_type"];
pub(super) const AGGREGATE_TYPE_HEADERS: [&str; 3] =
    ["aggregate_type", "aggregateType", "aggregatetype"];
pub(super) const SEQUENCE_HEADERS: [&str; 1] = ["sequence"];

/// Namespace of markers for ids that are not UUIDs ([`MessageFormat::text_ids`]):
/// `80e41daf-a7ea-464b-b400-181e1cf332e9`.
pub const TEXT_ID_NAMESPACE: Uuid = Uuid::from_u128(0x80e4_1daf_a7ea_464b_b400_181e_1cf3_32e9);

/// Encoding of a record's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ValueFormat {
    /// The relay's `format.value` `raw` with a payload of json or jsonb, and `json`. CloudEvents
    /// are recognized by their headers.
    #[default]
    Json,
    /// `{"schema": .., "payload": ..}`, without use of the schema: the relay's `json_schema`, Kafka
    /// Connect's JsonConverter with `schemas.enable`.
    ConnectJson,
    /// Any bytes: `payload` is null, and [`Message::payload_bytes`] returns them.
    ///
    /// [`Message::payload_bytes`]: super::Message::payload_bytes
    Bytes,
}

/// Encoding of a record's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyFormat {
    /// The aggregate's id as text: the relay's `format.key` `raw`.
    #[default]
    Text,
    /// A JSON scalar, such as `"42"`: the relay's `json`.
    Json,
    /// A JSON scalar with its schema: the relay's `json_schema`.
    ConnectJson,
    /// Bytes of a bytea. The aggregate's id is printed as by Postgres: `\x0a1b`.
    Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventTypeFallback {
    Topic,
    Fixed(String),
}

/// Format of a topic's records. The default matches the relay's default:
///
/// | | |
/// |---|---|
/// | id | header `id` (or `ce_id`), a UUID |
/// | event type | header `event_type` (or `eventType`, `type`, `ce_type`) |
/// | aggregate type | header `aggregate_type` (or `aggregateType`, `aggregatetype`); may be absent |
/// | sequence | header `sequence`; may be absent |
/// | aggregate id | the key, as text |
/// | payload | the value, as JSON; of a CloudEvent its data |
///
/// The first name that is present and not empty is used. A configured name replaces all of them.
///
/// ```
/// use postrider_patterns::inbox::{KeyFormat, MessageFormat, ValueFormat};
///
/// // route.id_header = "idempotency-key", format.key and format.value = "json_schema"
/// let format = MessageFormat::new()
///     .id_header("idempotency-key")
///     .key(KeyFormat::ConnectJson)
///     .value(ValueFormat::ConnectJson);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct MessageFormat {
    pub(super) id_header: Option<String>,
    pub(super) event_type_header: Option<String>,
    pub(super) aggregate_type_header: Option<String>,
    pub(super) sequence_header: Option<String>,
    pub(super) event_type_fallback: Option<EventTypeFallback>,
    pub(super) key: KeyFormat,
    pub(super) value: ValueFormat,
    pub(super) is_enveloped: bool,
    pub(super) expands_json: bool,
    pub(super) has_text_ids: bool,
}

impl MessageFormat {
    /// Creates the default format.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the header with the row's id: the relay's `route.id_header`.
    pub fn id_header(self, name: impl Into<String>) -> Self {
        Self { id_header: Some(name.into()), ..self }
    }

    /// Sets the header, or the envelope's member, with the event type.
    pub fn event_type_header(self, name: impl Into<String>) -> Self {
        Self { event_type_header: Some(name.into()), ..self }
    }

    /// Sets the header, or the envelope's member, with the aggregate type.
    pub fn aggregate_type_header(self, name: impl Into<String>) -> Self {
        Self { aggregate_type_header: Some(name.into()), ..self }
    }

    /// Sets the header, or the envelope's member, with the event's number.
    pub fn sequence_header(self, name: impl Into<String>) -> Self {
        Self { sequence_header: Some(name.into()), ..self }
    }

    pub(in crate::inbox) fn sequence_name(&self) -> &str {
        self.sequence_header.as_deref().unwrap_or(SEQUENCE_HEADERS[0])
    }

    /// Uses the topic's name if the event type header is missing or empty.
    pub fn event_type_or_topic(self) -> Self {
        Self { event_type_fallback: Some(EventTypeFallback::Topic), ..self }
    }

    /// Uses this event type if the header is missing or empty.
    pub fn event_type_or(self, event_type: impl Into<String>) -> Self {
        Self { event_type_fallback: Some(EventTypeFallback::Fixed(event_type.into())), ..self }
    }

    /// Sets the encoding of the keys.
    pub fn key(self, key: KeyFormat) -> Self {
        Self { key, ..self }
    }

    /// Sets the encoding of the values.
    pub fn value(self, value: ValueFormat) -> Self {
        Self { value, ..self }
    }

    /// Reads the value as an envelope (the relay's `route.envelope`): member `payload`, and other
    /// columns beside it, which can replace headers.
    pub fn envelope(self) -> Self {
        Self { is_enveloped: true, ..self }
    }

    /// Parses a string payload that contains a JSON object or array, as the relay's `json` and
    /// `json_schema` and Kafka Connect write a jsonb column.
    pub fn expand_json(self) -> Self {
        Self { expands_json: true, ..self }
    }

    /// Accepts ids that are any text, such as the number of a bigint column. Text that is not a
    /// hyphenated UUID becomes the version 5 UUID (RFC 9562) of `<topic>/<text>` in
    /// [`TEXT_ID_NAMESPACE`].
    ///
    /// **An id must be unique within its topic.** If two outboxes that count from 1 write to one
    /// topic, the second event with an id is skipped. A record in another topic is a new message.
    pub fn text_ids(self) -> Self {
        Self { has_text_ids: true, ..self }
    }
}
