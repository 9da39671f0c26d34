//! Defines the settings for the form of keys, values and headers: [`FormatSpec`] and the enums of its
//! words.
//!
//! Formats of key and value, styles of columns and bytes, null members and empty arrays of JSON. Beside
//! them the words of other settings of a row's form: empty payloads, the unit of timestamp columns, and
//! missing columns.

use super::keyword_enum::keyword_enum;

keyword_enum!(
    /// What a record's key is made of the key column.
    KeyFormat {
        /// Its text, or the bytes of a bytea.
        Raw = "raw",
        /// A JSON value, as Kafka Connect's JsonConverter writes it without schemas.
        Json = "json",
        /// A JSON value in Kafka Connect's wrapper of schema and payload.
        JsonSchema = "json_schema",
    }
);
keyword_enum!(
    /// What a record's value is made of the payload column and the envelope.
    ValueFormat {
        /// The payload as it is: the text Postgres prints, or the bytes of a bytea.
        Raw = "raw",
        /// As Kafka Connect's StringConverter: text as it is, an object as `Struct{a=1}`.
        Text = "string",
        /// As Kafka Connect's JsonConverter without schemas: text becomes a JSON string.
        Json = "json",
        /// As Kafka Connect's JsonConverter with schemas.
        JsonSchema = "json_schema",
        /// The payload as it is, the row's attributes as CloudEvents headers (binary mode).
        CloudEventsBinary = "cloudevents_binary",
        /// One CloudEvents JSON object with the payload in it (structured mode).
        CloudEventsStructured = "cloudevents_structured",
    }
);
impl ValueFormat {
    /// Whether columns can be put beside the payload.
    pub const fn takes_envelope(self) -> bool {
        matches!(self, Self::Text | Self::Json | Self::JsonSchema)
    }
}

keyword_enum!(
    /// How a column's value is written in a header, a key or an envelope.
    ColumnStyle {
        /// As Postgres prints it.
        Postgres = "postgres",
        /// As Debezium's connector represents it: `true`, base64, microseconds since 1970.
        Debezium = "debezium",
    }
);
keyword_enum!(
    /// How a bytea is written in keys and values.
    ByteaForm {
        /// As the format does it: raw, or base64 inside of JSON.
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
    /// What becomes of some members of a JSON object.
    Members {
        /// They are left out.
        Drop = "drop",
        /// They stay.
        Keep = "keep",
    }
);
keyword_enum!(
    /// What becomes of a payload that is empty or only white space.
    EmptyPayload {
        /// It is sent as it is.
        Keep = "keep",
        /// It becomes a null value. Never done to a `bytea`.
        Tombstone = "tombstone",
    }
);
keyword_enum!(
    /// What an integer timestamp column counts since 1970-01-01 UTC.
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
    /// What a table is to the router that lacks a column of a header, an envelope or a partition.
    MissingColumn {
        /// Refused, before its first row.
        Refuse = "refuse",
        /// Taken; its rows go without.
        Ignore = "ignore",
    }
);

/// The forms of one routing. The default sends columns as Postgres prints them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatSpec {
    /// The key's form.
    pub key: KeyFormat,
    /// The value's form.
    pub value: ValueFormat,
    /// How columns are written.
    pub columns: ColumnStyle,
    /// How bytes are written.
    pub bytea: ByteaForm,
    /// Whether a payload that is text and holds JSON is taken apart. Without effect on
    /// [`ValueFormat::Raw`].
    pub expand_json: bool,
    /// In an expanded payload: members that are null.
    pub null_members: Members,
    /// In an expanded payload: members that are empty arrays.
    pub empty_arrays: Members,
    /// What the schema names of envelopes begin with; [`ValueFormat::JsonSchema`] only.
    pub schema_prefix: String,
    /// The `source` of CloudEvents; empty: the table's name.
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
