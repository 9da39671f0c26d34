//! Defines [`DecodeError`]: why bytes are not one whole pgoutput message, with a hint for the operator.
//!
//! Such bytes end the session; [`UNREAD_MESSAGE`] is the hint for a message that this release cannot read.

/// The bytes are not one whole pgoutput message of protocol version 1. Upholds G7: whatever
/// arrives, the answer is a message or one of these. Offsets count from the message's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A frame without a single byte.
    #[error("an empty pgoutput message")]
    Empty,
    /// A tag that version 1 does not know, such as those of streamed transactions.
    #[error("an unknown pgoutput message tag 0x{tag:02X}")]
    UnknownTag {
        /// The message's first byte.
        tag: u8,
    },
    /// The message ends before what it announces.
    #[error("a pgoutput message that ends inside its {field}, at byte {offset}")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// Where it began.
        offset: usize,
    },
    /// The message goes on after all that its kind holds.
    #[error("a pgoutput message with {bytes} bytes too many")]
    Trailing {
        /// How many bytes are left over.
        bytes: usize,
    },
    /// A message without values that is larger than any of its kind.
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
        /// Which length.
        field: &'static str,
    },
    /// A byte that selects among alternatives has a value that is none of them.
    #[error("a pgoutput message whose {field} is 0x{found:02X}")]
    UnknownMarker {
        /// Which byte.
        field: &'static str,
        /// What it was.
        found: u8,
    },
}

/// The hint for a message that this release cannot read.
pub const UNREAD_MESSAGE: &str = "nothing is lost: every row stays in Postgres; install the newest release of \
    Postrider, or report this with the server's version; a proxy that alters the replication stream is \
    another cause";

impl DecodeError {
    /// What the operator can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(UNREAD_MESSAGE.to_owned())
    }
}
