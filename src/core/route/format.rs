//! Defines the settings for the form of keys, values and headers: [`FormatSpec`] and its keyword
//! enums.
//!
//! They cover the formats of key and value, styles of columns and bytes, null members and empty
//! arrays of JSON, and also empty payloads, the unit of timestamp columns, and missing columns.

use super::keyword_enum::keyword_enum;

keyword_enum!(
    /// Form of a record's key.
    KeyFormat {
        /// The column's text, or the bytes of a bytea.
        Raw = "raw",
        /// A JSON value, like Kafka Connect's JsonConverter without schemas.
        Json = "json",
        /// A JSON value in Kafka Connect's wrapper of schema and payload.
        JsonSchema = "json_schema",
    }
);
keyword_enum!(
    /// Form of a record's value, from payload column and envelope.
    ValueFormat {
        /// The unchanged payload: Postgres's text, or the bytes of a bytea.
        Raw = "raw",
        /// Like Kafka Connect's StringConverter: text is unchanged, an object becomes
        /// `Struct{a=1}`.
        Text = "string",
        /// Like Kafka Connect's JsonConverter without schemas: text becomes a JSON string.
        Json = "json",
        /// Like Kafka Connect's JsonConverter with schemas.
        JsonSchema = "json_schema",
        /// The unchanged payload, with the row's attributes as CloudEvents headers (binary mode).
        CloudEventsBinary = "cloudevents_binary",
        /// One CloudEvents JSON object that contains the payload (structured mode).
        CloudEventsStructured = "cloudevents_structured",
    }
);
impl ValueFormat {
    /// True if the format has room for columns beside the payload.
    pub const fn takes_envelope(self) -> bool {
        matches!(self, Self::Text | Self::Json | Self::JsonSchema)
    }
}

keyword_enum!(
    /// Form of a column's value in a header, a key or an envelope.
    ColumnStyle {
        /// Postgres's text.
        Postgres = "postgres",
        /// Debezium's representation: `true`, base64, microseconds since 1970.
        Debezium = "debezium",
    }
);
keyword_enum!(
    /// Form of a bytea in keys and values.
    ByteaForm {
        /// The format's own form: raw, or base64 in JSON.
        Encoded = "encoded",
        /// As raw bytes, whatever the format.
        Raw = "raw",
        /// As text in base64.
        Base64 = "base64",
        /// As text in base64 of the URL alphabet.
        Base64Url = "base64url",
        /// As text in lower-case hexadecimal digits.
        Hex = "hex",
    }
);
keyword_enum!(
    /// Treatment of some members of a JSON object.
    Members {
        /// Omit them.
        Drop = "drop",
        /// Keep them.
        Keep = "keep",
    }
);
keyword_enum!(
    /// Treatment of a payload that is empty or only white space.
    EmptyPayload {
        /// Send it unchanged.
        Keep = "keep",
        /// Send a null value. Never applies to a `bytea`.
        Tombstone = "tombstone",
    }
);
keyword_enum!(
    /// Unit of an integer timestamp column, since 1970-01-01 UTC.
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
        /// Refuse the table before its first row.
        Refuse = "refuse",
        /// Accept the table; its rows omit the column.
        Ignore = "ignore",
    }
);

/// Formats of one routing. The default sends columns as Postgres prints them.
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
    /// True if a text payload that contains JSON is parsed. No effect on [`ValueFormat::Raw`].
    pub expand_json: bool,
    /// Null members of a parsed payload.
    pub null_members: Members,
    /// Empty arrays in a parsed payload.
    pub empty_arrays: Members,
    /// Prefix of the envelopes' schema names; [`ValueFormat::JsonSchema`] only.
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
