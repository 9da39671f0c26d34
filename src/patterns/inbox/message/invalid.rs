//! Why a record is not a message (`InvalidMessage`), as the reason of its dead letter.
//!
//! Input: the name of a header or member, or what the key or value should be. Output: a code for metrics
//! and a sentence. Invariant: neither repeats anything that the record contains.

/// A record that is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// Every message has this header, which is not null or empty.
    #[error("the header `{0}` is missing")]
    Missing(String),
    /// The header, or the member of the value that stands for it, is not what it should be.
    #[error("the header `{field}` is not {wanted}")]
    Malformed {
        /// The header's name.
        field: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The key names the aggregate.
    #[error("the key is not {wanted}")]
    Key {
        /// What [`MessageFormat::key`](super::MessageFormat::key) says it is.
        wanted: &'static str,
    },
    /// The value is no JSON; where it stops being so, in bytes that tell nothing of it.
    #[error("the payload is not JSON (line {line}, column {column})")]
    Payload {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// The value is JSON or text, but not as [`MessageFormat`](super::MessageFormat) or its content type says.
    #[error("the value is not {wanted}")]
    Value {
        /// What it should be.
        wanted: &'static str,
    },
    /// [`Interest::Unknown`](crate::inbox::Interest::Unknown).
    #[error("the consumer does not know the event type")]
    UnknownType,
}

impl InvalidMessage {
    /// The reason in one word, for the dead letter and for metrics.
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
