//! Defines [`DecodeError`]: why bytes are not a pgoutput message.

/// The bytes are not one whole pgoutput message of protocol version 1. Upholds G7: any input yields
/// a message or one of these errors. Offsets count from the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame is empty.
    #[error("an empty pgoutput message")]
    Empty,
    /// The tag is not part of version 1.
    #[error("an unknown pgoutput message tag 0x{tag:02X}")]
    UnknownTag {
        /// The tag.
        tag: u8,
    },
    /// The message ends too early.
    #[error("a pgoutput message that ends inside its {field}, at byte {offset}")]
    Truncated {
        /// Field.
        field: &'static str,
        /// Its offset.
        offset: usize,
    },
    /// Bytes follow the last field.
    #[error("a pgoutput message with {bytes} bytes too many")]
    Trailing {
        /// Remaining bytes.
        bytes: usize,
    },
    /// A message without values is too large.
    #[error("a pgoutput message 0x{tag:02X} of {bytes} bytes")]
    TooLong {
        /// Tag.
        tag: u8,
        /// Size.
        bytes: usize,
    },
    /// A negative length or count.
    #[error("a pgoutput message whose {field} is negative")]
    NegativeLength {
        /// Field.
        field: &'static str,
    },
    /// A selector byte is unknown.
    #[error("a pgoutput message whose {field} is 0x{found:02X}")]
    UnknownMarker {
        /// Field.
        field: &'static str,
        /// Byte.
        found: u8,
    },
}

/// Hint for a message that this release cannot read.
pub const UNREAD_MESSAGE: &str = "nothing is lost: every row stays in Postgres; install the newest release of \
    Postrider, or report this with the server's version; a proxy that alters the replication stream is \
    another cause";

impl DecodeError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        Some(UNREAD_MESSAGE.to_owned())
    }
}
