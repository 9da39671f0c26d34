//! Defines [`DecodeError`]: why bytes are not one whole pgoutput message, with a hint for the
//! operator.
//!
//! Such bytes end the session. [`UNREAD_MESSAGE`] is the hint for a message that this release
//! cannot read.

/// The bytes are not one whole pgoutput message of protocol version 1. Upholds G7: any input yields
/// a message or one of these errors. Offsets count from the message's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame is empty.
    #[error("an empty pgoutput message")]
    Empty,
    /// The tag is not part of version 1, for example a tag of streamed transactions.
    #[error("an unknown pgoutput message tag 0x{tag:02X}")]
    UnknownTag {
        /// The message's tag.
        tag: u8,
    },
    /// The message ends before its announced end.
    #[error("a pgoutput message that ends inside its {field}, at byte {offset}")]
    Truncated {
        /// The field that was read.
        field: &'static str,
        /// Offset of the field.
        offset: usize,
    },
    /// Bytes follow the last field.
    #[error("a pgoutput message with {bytes} bytes too many")]
    Trailing {
        /// Number of remaining bytes.
        bytes: usize,
    },
    /// A message without values exceeds the largest size of its kind.
    #[error("a pgoutput message 0x{tag:02X} of {bytes} bytes")]
    TooLong {
        /// Its kind.
        tag: u8,
        /// Its size.
        bytes: usize,
    },
    /// A length or count below zero.
    #[error("a pgoutput message whose {field} is negative")]
    NegativeLength {
        /// The length's field.
        field: &'static str,
    },
    /// A byte that selects an alternative has an unknown value.
    #[error("a pgoutput message whose {field} is 0x{found:02X}")]
    UnknownMarker {
        /// The byte's field.
        field: &'static str,
        /// The unknown value.
        found: u8,
    },
}

/// Hint for a message that this release cannot read.
pub const UNREAD_MESSAGE: &str = "nothing is lost: every row stays in Postgres; install the newest release of \
    Postrider, or report this with the server's version; a proxy that alters the replication stream is \
    another cause";

impl DecodeError {
    /// What the operator can do.
    pub fn hint(&self) -> Option<String> {
        Some(UNREAD_MESSAGE.to_owned())
    }
}
