//! How a topic's records are to be read (`MessageFormat`): the names of headers, the kind of ids, keys and
//! values.
//!
//! Input: what the relay's `[route]` and `[format]`, or another producer, are configured to write. Output:
//! the same for the consumer. Invariant: the default reads what the relay writes by default, and
//! CloudEvents; what a record does not say unambiguously is set here and never guessed.

use uuid::Uuid;

/// The row's id, unless another name is set.
pub(super) const ID_HEADERS: [&str; 2] = ["id", "ce_id"];
/// The event type, unless another name is set: as Postrider, Debezium's documentation, Debezium's outbox
/// table and CloudEvents call it.
pub(super) const EVENT_TYPE_HEADERS: [&str; 4] = ["event_type", "eventType", "type", "ce_type"];
/// The aggregate type, unless another name is set.
pub(super) const AGGREGATE_TYPE_HEADERS: [&str; 3] =
    ["aggregate_type", "aggregateType", "aggregatetype"];
/// The event's number within its aggregate, unless another name is set.
pub(super) const SEQUENCE_HEADERS: [&str; 1] = ["sequence"];

/// `80e41daf-a7ea-464b-b400-181e1cf332e9`, the namespace of markers that are made of ids that are no UUIDs:
/// [`MessageFormat::text_ids`].
pub const TEXT_ID_NAMESPACE: Uuid = Uuid::from_u128(0x80e4_1daf_a7ea_464b_b400_181e_1cf3_32e9);

/// What a record's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ValueFormat {
    /// JSON: the relay's `format.value` `raw` with a payload of json or jsonb, and `json`. A record whose
    /// headers say that it is a CloudEvent is read as one.
    #[default]
    Json,
    /// JSON with its schema, `{"schema": .., "payload": ..}`: the relay's `json_schema`, Kafka Connect's
    /// JsonConverter with `schemas.enable`. The schema is not used.
    ConnectJson,
    /// Anything. It is not parsed: `payload` is null, and [`Message::payload_bytes`] has it.
    ///
    /// [`Message::payload_bytes`]: super::Message::payload_bytes
    Bytes,
}

/// What a record's key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyFormat {
    /// The aggregate's id itself: the relay's `format.key` `raw`.
    #[default]
    Text,
    /// A JSON scalar, such as `"42"`: the relay's `json`.
    Json,
    /// One with its schema, `{"schema": .., "payload": "42"}`: the relay's `json_schema`.
    ConnectJson,
    /// Bytes that are no text: a bytea. The aggregate's id is as Postgres prints it, `\x0a1b`.
    Bytes,
}

/// Where the event type comes from where no header has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventTypeFallback {
    Topic,
    Fixed(String),
}

/// How records are read. The default is for what the relay writes by default:
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
/// The first of the names that is there and not empty is used. A name that is set replaces them all.
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
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name of the header with the row's id: the relay's `route.id_header`.
    pub fn id_header(self, name: impl Into<String>) -> Self {
        Self { id_header: Some(name.into()), ..self }
    }

    /// The name of the header with the event type, or of the envelope's member.
    pub fn event_type_header(self, name: impl Into<String>) -> Self {
        Self { event_type_header: Some(name.into()), ..self }
    }

    /// The name of the header with the aggregate type, or of the envelope's member.
    pub fn aggregate_type_header(self, name: impl Into<String>) -> Self {
        Self { aggregate_type_header: Some(name.into()), ..self }
    }

    /// The name of the header with the event's number within its aggregate, or of the envelope's member.
    pub fn sequence_header(self, name: impl Into<String>) -> Self {
        Self { sequence_header: Some(name.into()), ..self }
    }

    /// The name of that header.
    pub(in crate::inbox) fn sequence_name(&self) -> &str {
        self.sequence_header.as_deref().unwrap_or(SEQUENCE_HEADERS[0])
    }

    /// A record without a header of its event type, or with an empty one, is of the type that its topic is
    /// named after.
    pub fn event_type_or_topic(self) -> Self {
        Self { event_type_fallback: Some(EventTypeFallback::Topic), ..self }
    }

    /// A record without a header of its event type, or with an empty one, is of this type.
    pub fn event_type_or(self, event_type: impl Into<String>) -> Self {
        Self { event_type_fallback: Some(EventTypeFallback::Fixed(event_type.into())), ..self }
    }

    /// What the keys are.
    pub fn key(self, key: KeyFormat) -> Self {
        Self { key, ..self }
    }

    /// What the values are.
    pub fn value(self, value: ValueFormat) -> Self {
        Self { value, ..self }
    }

    /// The value is an object with the payload in its member `payload` and other columns beside it, because
    /// the relay's `route.envelope` is set. What no header has is looked for among those by the same names.
    pub fn envelope(self) -> Self {
        Self { is_enveloped: true, ..self }
    }

    /// A payload that is a string, and whose text is a JSON object or array, is that object or array. The
    /// relay's formats `json` and `json_schema` make such strings of a jsonb column, as Kafka Connect does,
    /// unless its own `format.expand_json` is set.
    pub fn expand_json(self) -> Self {
        Self { expands_json: true, ..self }
    }

    /// Ids are not UUIDs but any text, such as the number of a bigint column. The marker, which is a UUID,
    /// is the text itself if it is a hyphenated UUID, and otherwise the version 5 UUID (RFC 9562) of
    /// `<topic>/<text>` in [`TEXT_ID_NAMESPACE`].
    ///
    /// **Each id must be one event's within its topic.** Two outboxes that number their rows from 1 and
    /// write to one topic have the same ids for different events, and the second of them would be taken
    /// for a repeat and skipped. A record that comes in another topic (a dead letter sent with `--to`, a
    /// mirrored topic) is a new message.
    pub fn text_ids(self) -> Self {
        Self { has_text_ids: true, ..self }
    }
}
