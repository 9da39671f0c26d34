//! Reads a message too large to hold: keeps the beginning of each value, and hashes cut ones.
//!
//! Output: an [`Excerpt`], a shorter message for [`super::decode`], with size and hash of each cut
//! value of an inserted row or logical message. Memory is bounded, whatever the message claims
//! (G3). An excerpt refuses what `decode` would refuse (G7). Text in another encoding is counted
//! and hashed as UTF-8, except for characters without an equivalent.

mod hash;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use super::charset::{Charset, Conversion, Converted};
use super::error::DecodeError;
use super::message::decode;
use hash::Hashing;
pub use hash::{Cut, Digest};

/// Bytes kept of a longer value: twice a dead letter's limit, because a bytea has two digits per
/// byte.
pub const VALUE_BYTES_KEPT: usize = 2 * 1024;

/// Bytes kept of a logical message, whose first members are usually the small ones.
pub const CONTENT_BYTES_KEPT: usize = 64 * 1024;

/// Bytes kept of all values: more than 1,600 columns, Postgres's maximum, can fill. Also limits a
/// message without values.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

const CHUNK_BYTES: usize = 4096;

const FIRST_MARKER_AT: usize = 5;

/// The excerpt of one message.
#[derive(Clone)]
pub struct Excerpt {
    /// Message size, and bytes received.
    whole: usize,
    seen: usize,
    message: Vec<u8>,
    cuts: Vec<Cut>,
    prefix_is_cut: bool,
    tag: u8,
    field: Field,
    /// Offset of the current field, and its bytes so far if its size is fixed.
    began: usize,
    have: usize,
    tuple: Tuple,
    value: Value,
    charset: Option<Arc<Charset>>,
    /// Bytes that the conversion added, and columns not in UTF-8.
    added: usize,
    untranslatable: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tuple {
    /// False for an UPDATE's old row.
    is_last: bool,
    column: usize,
    columns: usize,
}

#[derive(Debug, Clone, Default)]
struct Value {
    /// Remaining bytes, and those to keep.
    left: usize,
    keep: usize,
    is_text: bool,
    hashing: Option<Box<Hashing>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Tag,
    Relation,
    Marker,
    Columns,
    Kind,
    Length,
    Value,
    Flags,
    Position,
    Prefix,
    ContentLength,
    Content,
    Rest,
    End,
}

impl Field {
    /// Bytes, if fixed.
    const fn size(self) -> Option<usize> {
        match self {
            Self::Tag | Self::Marker | Self::Kind | Self::Flags => Some(1),
            Self::Columns => Some(2),
            Self::Relation | Self::Length | Self::ContentLength => Some(4),
            Self::Position => Some(8),
            Self::Value | Self::Prefix | Self::Content | Self::Rest | Self::End => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tag => "tag",
            Self::Relation => "relation OID",
            Self::Marker => "row marker",
            Self::Columns => "number of columns",
            Self::Kind => "column kind",
            Self::Length => "column length",
            Self::Value => "column value",
            Self::Flags => "message flags",
            Self::Position => "log position",
            Self::Prefix => "message prefix",
            Self::ContentLength => "message length",
            Self::Content => "message content",
            Self::Rest | Self::End => "rest",
        }
    }
}

impl fmt::Debug for Excerpt {
    /// Contents must not be logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whole, seen, .. } = self;
        f.debug_struct("Excerpt").field("whole", whole).field("seen", seen).finish_non_exhaustive()
    }
}

impl Excerpt {
    /// Starts an excerpt of a message of `whole` bytes.
    pub const fn begin(whole: usize) -> Self {
        Self {
            whole,
            seen: 0,
            message: Vec::new(),
            cuts: Vec::new(),
            prefix_is_cut: false,
            tag: 0,
            field: Field::Tag,
            began: 0,
            have: 0,
            tuple: Tuple { is_last: false, column: 0, columns: 0 },
            value: Value { left: 0, keep: 0, is_text: false, hashing: None },
            charset: None,
            added: 0,
            untranslatable: Vec::new(),
        }
    }

    /// Sets the encoding of the message's text.
    #[must_use]
    pub fn in_charset(self, charset: Option<Arc<Charset>>) -> Self {
        Self { charset, ..self }
    }

    /// Takes the next bytes. Do not call it again after an error.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), DecodeError> {
        if self.whole == 0 {
            return Err(DecodeError::Empty);
        }
        let mut piece = piece;
        while !piece.is_empty() {
            piece = match (self.field, self.field.size()) {
                (_, Some(size)) => self.pass_fixed(size, piece)?,
                (Field::Prefix, None) => self.pass_prefix(piece)?,
                (Field::Rest, None) => self.pass_rest(piece)?,
                (Field::End, None) => return Err(DecodeError::Trailing { bytes: piece.len() }),
                (_, None) => self.pass_value(piece)?,
            };
        }
        if self.field == Field::End
            && let Some(charset) = self.charset.take()
        {
            let mut converted = Converted::default();
            // Each kept value is bounded, and so is their sum.
            if charset.convert(&self.message, usize::MAX, &mut converted)? == Conversion::Converted
            {
                (self.message, self.untranslatable) = (converted.message, converted.untranslatable);
            }
        }
        Ok(())
    }

    /// True once the message is complete and the results are valid.
    pub fn is_whole(&self) -> bool {
        self.field == Field::End
    }

    /// The shortened message.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Size of the original message in UTF-8.
    pub const fn whole_bytes(&self) -> usize {
        self.whole.saturating_add(self.added)
    }

    /// Columns of an inserted row, from 0, without an equivalent in UTF-8.
    pub fn untranslatable(&self) -> &[usize] {
        &self.untranslatable
    }

    /// Cut values of an inserted row or logical message, in column order.
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// Whether a logical message's prefix was cut.
    pub const fn prefix_is_cut(&self) -> bool {
        self.prefix_is_cut
    }

    fn pass_fixed<'p>(&mut self, size: usize, piece: &'p [u8]) -> Result<&'p [u8], DecodeError> {
        let missing = size.saturating_sub(self.have);
        let (now, rest) = piece.split_at(missing.min(piece.len()));
        self.keep(now);
        self.have += now.len();
        if self.have == size {
            let last = self.message.iter().rev().take(size).rev();
            let number = last.fold(0, |number, byte| (number << 8) | u64::from(*byte));
            self.read(number)?;
        }
        Ok(rest)
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.message.extend(bytes);
        self.seen += bytes.len();
    }

    fn read(&mut self, number: u64) -> Result<(), DecodeError> {
        let [.., third, second, high, byte] = number.to_be_bytes();
        let length = i32::from_be_bytes([third, second, high, byte]);
        let field = self.field.name();
        match self.field {
            Field::Tag => self.read_tag(byte),
            Field::Relation => self.enter(Field::Marker),
            Field::Marker => self.read_marker(byte),
            Field::Columns => {
                let columns = usize::from(u16::from_be_bytes([high, byte]));
                self.tuple = Tuple { columns, column: 0, ..self.tuple };
                self.next_column()
            }
            Field::Kind => match byte {
                b'n' | b'u' => {
                    self.tuple.column += 1;
                    self.next_column()
                }
                b't' | b'b' => {
                    self.value.is_text = byte == b't';
                    self.enter(Field::Length)
                }
                found => Err(DecodeError::UnknownMarker { field, found }),
            },
            Field::Length => self.begin_value(Field::Value, VALUE_BYTES_KEPT, length),
            Field::Flags if byte > 1 => Err(DecodeError::UnknownMarker { field, found: byte }),
            Field::Flags => self.enter(Field::Position),
            Field::Position => self.enter(Field::Prefix),
            Field::ContentLength => self.begin_value(Field::Content, CONTENT_BYTES_KEPT, length),
            Field::Value | Field::Prefix | Field::Content | Field::Rest | Field::End => {
                Err(self.truncated())
            }
        }
    }

    fn read_tag(&mut self, tag: u8) -> Result<(), DecodeError> {
        self.tag = tag;
        match tag {
            b'I' | b'U' | b'D' => self.enter(Field::Relation),
            b'M' => self.enter(Field::Flags),
            b'B' | b'C' | b'O' | b'R' | b'Y' | b'T' | b'A' if self.whole > KEPT_BYTES_MAX => {
                Err(DecodeError::TooLong { tag, bytes: self.whole })
            }
            b'B' | b'C' | b'O' | b'R' | b'Y' | b'T' | b'A' if self.whole == 1 => self.decode_rest(),
            b'B' | b'C' | b'O' | b'R' | b'Y' | b'T' | b'A' => self.enter(Field::Rest),
            tag => Err(DecodeError::UnknownTag { tag }),
        }
    }

    fn read_marker(&mut self, marker: u8) -> Result<(), DecodeError> {
        let is_first = self.began == FIRST_MARKER_AT;
        self.tuple.is_last = match (self.tag, marker) {
            (b'I' | b'U', b'N') | (b'D', b'K' | b'O') => true,
            (b'U', b'K' | b'O') if is_first => false,
            (_, found) => {
                let field = Field::Marker.name();
                return Err(DecodeError::UnknownMarker { field, found });
            }
        };
        self.enter(Field::Columns)
    }

    fn next_column(&mut self) -> Result<(), DecodeError> {
        let Tuple { is_last, column, columns } = self.tuple;
        self.enter(match (column < columns, is_last) {
            (true, _) => Field::Kind,
            (false, true) => Field::End,
            (false, false) => Field::Marker,
        })
    }

    /// Writes the kept length.
    fn begin_value(&mut self, field: Field, kept: usize, length: i32) -> Result<(), DecodeError> {
        let negative = DecodeError::NegativeLength { field: self.field.name() };
        let bytes = usize::try_from(length).map_err(|_| negative)?;
        self.enter(field)?;
        if bytes > self.whole - self.seen {
            return Err(DecodeError::Truncated { field: field.name(), offset: self.seen });
        }
        let keep = bytes.min(kept).min(KEPT_BYTES_MAX.saturating_sub(self.message.len()));
        let is_told = keep < bytes && matches!(self.tag, b'I' | b'M');
        let hashing = is_told.then(|| Box::new(Hashing::new(self.tuple.column)));
        let is_text = self.value.is_text && field == Field::Value;
        self.value = Value { left: bytes, keep, is_text, hashing };
        self.message.truncate(self.message.len().saturating_sub(4));
        self.message.extend(i32::try_from(keep).map_err(|_| negative)?.to_be_bytes());
        if bytes == 0 { self.end_value() } else { Ok(()) }
    }

    fn pass_value<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], DecodeError> {
        let (now, rest) = piece.split_at(self.value.left.min(piece.len()));
        let (kept, _) = now.split_at(self.value.keep.min(now.len()));
        self.message.extend(kept);
        self.value.keep -= kept.len();
        self.value.left -= now.len();
        self.seen += now.len();
        let charset = self.charset.as_deref().filter(|_| self.value.is_text);
        match (&mut self.value.hashing, charset.filter(|_| !now.is_ascii())) {
            (hashing, Some(charset)) => {
                let mut text = Vec::with_capacity(4 * CHUNK_BYTES);
                for chunk in now.chunks(CHUNK_BYTES) {
                    text.clear();
                    charset.append(chunk, &mut text);
                    self.added += text.len() - chunk.len();
                    if let Some(hashing) = hashing {
                        hashing.take(&text);
                    }
                }
            }
            (Some(hashing), None) => hashing.take(now),
            (None, None) => {}
        }
        if self.value.left == 0 {
            self.end_value()?;
        }
        Ok(rest)
    }

    fn end_value(&mut self) -> Result<(), DecodeError> {
        if let Some(hashing) = self.value.hashing.take() {
            self.cuts.push(hashing.cut());
        }
        if self.field == Field::Content {
            return self.enter(Field::End);
        }
        self.tuple.column += 1;
        self.next_column()
    }

    fn pass_prefix<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], DecodeError> {
        let end = piece.iter().position(|byte| *byte == 0);
        let (now, rest) = piece.split_at(end.unwrap_or(piece.len()));
        let room = VALUE_BYTES_KEPT.saturating_sub(self.have);
        let (kept, cut) = now.split_at(room.min(now.len()));
        self.keep(kept);
        self.have += kept.len();
        self.seen += cut.len();
        self.prefix_is_cut |= !cut.is_empty();
        match rest.split_first() {
            Some((end, rest)) => {
                self.keep(&[*end]);
                self.enter(Field::ContentLength)?;
                Ok(rest)
            }
            None if self.seen == self.whole => Err(self.truncated()),
            None => Ok(rest),
        }
    }

    fn pass_rest<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], DecodeError> {
        let (now, rest) = piece.split_at((self.whole - self.seen).min(piece.len()));
        self.keep(now);
        if self.seen == self.whole {
            self.decode_rest()?;
        }
        Ok(rest)
    }

    fn decode_rest(&mut self) -> Result<(), DecodeError> {
        decode(&self.message)?;
        self.enter(Field::End)
    }

    fn enter(&mut self, field: Field) -> Result<(), DecodeError> {
        (self.field, self.began, self.have) = (field, self.seen, 0);
        let left = self.whole.saturating_sub(self.seen);
        match field {
            Field::End if left > 0 => Err(DecodeError::Trailing { bytes: left }),
            Field::Prefix if left == 0 => Err(self.truncated()),
            _ if field.size().is_some_and(|size| size > left) => Err(self.truncated()),
            _ => Ok(()),
        }
    }

    const fn truncated(&self) -> DecodeError {
        DecodeError::Truncated { field: self.field.name(), offset: self.began }
    }
}
