//! Computes size and SHA-256 of a value that is too large to keep, so that its dead letter identifies it.
//!
//! Input: the value's bytes, in pieces. Output: a [`Cut`] with [`Digest`]s. A bytea arrives as hexadecimal
//! digits; the bytes that they stand for are hashed as well, since those are what consumers would have
//! received.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// How many bytes are made of digits before they are hashed.
const CHUNK_BYTES: usize = 4096;

/// A value of which only the beginning is in an excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Its place in the row, from 0; nothing for a logical message.
    pub column: usize,
    /// The value as it came over the wire.
    pub sent: Digest,
    /// Where these are digits as a bytea has them: the bytes that they stand for.
    pub bytea: Option<Digest>,
}

/// What tells a value from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Its size.
    pub bytes: usize,
    /// Its SHA-256.
    pub sha256: [u8; 32],
}

impl Digest {
    /// Of bytes that are there.
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len(), sha256: Sha256::digest(bytes).into() }
    }

    /// The hash as 64 lower-case hexadecimal digits.
    pub fn hexadecimal(&self) -> String {
        hexadecimal(&self.sha256)
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).flatten().collect()
}

/// A value while it passes.
#[derive(Debug, Clone)]
pub(super) struct Hashing {
    column: usize,
    bytes: usize,
    sent: Sha256,
    /// `None` once it is no bytea.
    bytea: Option<Digits>,
}

/// `\x` and pairs of digits, while they pass.
#[derive(Clone, Default)]
struct Digits {
    came: usize,
    high: Option<u8>,
    bytes: usize,
    hash: Sha256,
}

impl fmt::Debug for Digits {
    /// Tells the number only: contents belong in no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digits").field("came", &self.came).finish_non_exhaustive()
    }
}

impl Hashing {
    pub(super) fn new(column: usize) -> Self {
        Self { column, bytes: 0, sent: Sha256::new(), bytea: Some(Digits::default()) }
    }

    pub(super) fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len();
        self.sent.update(piece);
        self.bytea = self.bytea.take().and_then(|digits| digits.take(piece));
    }

    pub(super) fn cut(self) -> Cut {
        let sent = Digest { bytes: self.bytes, sha256: self.sent.finalize().into() };
        Cut { column: self.column, sent, bytea: self.bytea.and_then(Digits::digest) }
    }
}

impl Digits {
    /// `None` when a byte is none of a bytea's.
    fn take(mut self, piece: &[u8]) -> Option<Self> {
        let mut bytes = [0; CHUNK_BYTES];
        // Of each chunk half a byte or less is made, and one digit may have waited.
        for chunk in piece.chunks(CHUNK_BYTES) {
            let mut made = bytes.iter_mut();
            for &byte in chunk {
                self.came += 1;
                match self.came {
                    1 if byte == b'\\' => {}
                    2 if byte == b'x' => {}
                    1 | 2 => return None,
                    _ => {
                        let digit = digit(byte)?;
                        match self.high.take() {
                            None => self.high = Some(digit),
                            Some(high) => *made.next()? = (high << 4) | digit,
                        }
                    }
                }
            }
            let made = CHUNK_BYTES - made.len();
            self.bytes += made;
            self.hash.update(bytes.get(..made)?);
        }
        Some(self)
    }

    fn digest(self) -> Option<Digest> {
        let is_whole = self.came >= 2 && self.high.is_none();
        is_whole.then(|| Digest { bytes: self.bytes, sha256: self.hash.finalize().into() })
    }
}

const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}
