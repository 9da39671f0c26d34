//! Reasons why a record is not a message, for its dead letter. Invariant: no text repeats content
//! of the record.

/// Reason why a record is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// A required header is missing, null or empty.
    #[error("the header `{0}` is missing")]
    Missing(String),
    /// The header, or the member that replaces it, is malformed.
    #[error("the header `{field}` is not {wanted}")]
    Malformed {
        /// Name of the header.
        field: String,
        /// Expected form of the header.
        wanted: &'static str,
    },
    /// The key is malformed.
    #[error("the key is not {wanted}")]
    Key {
        /// Form that [`MessageFormat::key`](super::MessageFormat::key) requires.
        wanted: &'static str,
    },
    /// The value is not JSON from this position on.
    #[error("the payload is not JSON (line {line}, column {column})")]
    Payload {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// The value does not match [`MessageFormat`](super::MessageFormat) or its content type.
    #[error("the value is not {wanted}")]
    Value {
        /// Expected form of the value.
        wanted: &'static str,
    },
    /// The event type is [`Interest::Unknown`](crate::inbox::Interest::Unknown).
    #[error("the consumer does not know the event type")]
    UnknownType,
}

impl InvalidMessage {
    /// Code for the dead letter and for metrics.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Missing(_) => "missing_header",
            Self::Malformed { .. } => "malformed_header",
            Self::Key { .. } => "malformed_key",
            Self::Payload { .. } | Self::Value { .. } => "malformed_payload",
            Self::UnknownType => "unknown_type",
        }
    }
}
