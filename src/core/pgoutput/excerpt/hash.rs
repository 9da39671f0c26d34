//! Computes size and SHA-256 of a value that is too large to keep.
//!
//! A bytea's decoded bytes are hashed too, because consumers would have received those.

use std::fmt;

use sha2::{Digest as _, Sha256};

const CHUNK_BYTES: usize = 4096;

/// A value that an excerpt cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Column, from 0; 0 for a logical message.
    pub column: usize,
    /// Digest of the wire bytes.
    pub sent: Digest,
    /// Digest of the decoded bytes, if it looks like a bytea.
    pub bytea: Option<Digest>,
}

/// Size and hash of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Bytes.
    pub bytes: usize,
    /// SHA-256.
    pub sha256: [u8; 32],
}

impl Digest {
    /// Digests complete bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len(), sha256: Sha256::digest(bytes).into() }
    }

    /// The hash in lower-case hexadecimal.
    pub fn hexadecimal(&self) -> String {
        hexadecimal(&self.sha256)
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).flatten().collect()
}

#[derive(Debug, Clone)]
pub(super) struct Hashing {
    column: usize,
    bytes: usize,
    sent: Sha256,
    bytea: Option<Digits>,
}

#[derive(Clone, Default)]
struct Digits {
    came: usize,
    high: Option<u8>,
    bytes: usize,
    hash: Sha256,
}

impl fmt::Debug for Digits {
    /// Contents must not be logged.
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
    /// `None` at a byte that a bytea cannot contain.
    fn take(mut self, piece: &[u8]) -> Option<Self> {
        let mut bytes = [0; CHUNK_BYTES];
        // A chunk yields at most half as many bytes, plus one for a pending digit.
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
