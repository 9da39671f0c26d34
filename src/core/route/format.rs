//! Settings for the form of keys, values and headers.

use super::keyword_enum::keyword_enum;

keyword_enum!(
    /// Form of a record's key.
    KeyFormat {
        /// The column's text, or a bytea's bytes.
        Raw = "raw",
        /// JSON, like Kafka Connect's JsonConverter without schemas.
        Json = "json",
        /// JSON in Kafka Connect's schema wrapper.
        JsonSchema = "json_schema",
    }
);
keyword_enum!(
    /// Form of a record's value.
    ValueFormat {
        /// The payload's text, or a bytea's bytes.
        Raw = "raw",
        /// Like Kafka Connect's StringConverter: `Struct{a=1}`.
        Text = "string",
        /// Like Kafka Connect's JsonConverter without schemas.
        Json = "json",
        /// Like Kafka Connect's JsonConverter with schemas.
        JsonSchema = "json_schema",
        /// CloudEvents in binary mode, with attributes as headers.
        CloudEventsBinary = "cloudevents_binary",
        /// CloudEvents in structured mode.
        CloudEventsStructured = "cloudevents_structured",
    }
);
impl ValueFormat {
    /// True if columns beside the payload have room.
    pub const fn takes_envelope(self) -> bool {
        matches!(self, Self::Text | Self::Json | Self::JsonSchema)
    }
}

keyword_enum!(
    /// Form of columns in headers, keys and envelopes.
    ColumnStyle {
        /// Postgres's text.
        Postgres = "postgres",
        /// Like Debezium: `true`, base64, microseconds since 1970.
        Debezium = "debezium",
    }
);
keyword_enum!(
    /// Form of a bytea in keys and values.
    ByteaForm {
        /// Raw, or base64 in JSON.
        Encoded = "encoded",
        /// Raw, whatever the format.
        Raw = "raw",
        /// Base64.
        Base64 = "base64",
        /// Base64 of the URL alphabet.
        Base64Url = "base64url",
        /// Lower-case hexadecimal.
        Hex = "hex",
    }
);
keyword_enum!(
    /// Treatment of certain JSON members.
    Members {
        /// Omit.
        Drop = "drop",
        /// Keep.
        Keep = "keep",
    }
);
keyword_enum!(
    /// Treatment of an empty or blank payload.
    EmptyPayload {
        /// Send it unchanged.
        Keep = "keep",
        /// Send a null value, except for a `bytea`.
        Tombstone = "tombstone",
    }
);
keyword_enum!(
    /// Unit of integer timestamps since 1970-01-01 UTC.
    EpochUnit {
        /// Seconds.
        Seconds = "s",
        /// Milliseconds.
        Milliseconds = "ms",
        /// Microseconds.
        Microseconds = "us",
    }
);
keyword_enum!(
    /// Treatment of a table that lacks a column of a header, an envelope or a partition.
    MissingColumn {
        /// Refuse the table.
        Refuse = "refuse",
        /// Omit the column.
        Ignore = "ignore",
    }
);

/// Formats of a routing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatSpec {
    /// The key's form.
    pub key: KeyFormat,
    /// The value's form.
    pub value: ValueFormat,
    /// Style of columns.
    pub columns: ColumnStyle,
    /// Form of bytes.
    pub bytea: ByteaForm,
    /// Whether JSON in a text payload is parsed; not for [`ValueFormat::Raw`].
    pub expand_json: bool,
    /// Null members of a payload.
    pub null_members: Members,
    /// Empty arrays in a payload.
    pub empty_arrays: Members,
    /// Prefix of schema names; [`ValueFormat::JsonSchema`] only.
    pub schema_prefix: String,
    /// CloudEvents `source`; empty: the table's name.
    pub cloudevents_source: String,
}

impl Default for FormatSpec {
    fn default() -> Self {
        Self {
            key: KeyFormat::Raw,
            value: ValueFormat::Raw,
            columns: ColumnStyle::Postgres,
            bytea: ByteaForm::Encoded,
            expand_json: false,
            null_members: Members::Drop,
            empty_arrays: Members::Drop,
            schema_prefix: String::new(),
            cloudevents_source: String::new(),
        }
    }
}
