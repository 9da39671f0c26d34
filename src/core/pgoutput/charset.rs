//! Converts pgoutput messages from a single-byte encoding to UTF-8. The server's own conversion
//! ends the stream at a character without an equivalent.
//!
//! A column's text is converted completely, or stays unchanged and is reported. The caller bounds
//! the result (G3).

use super::error::DecodeError;
use super::message::{Insert, LogicalMessage, Message, Relation, decode};
use super::tuple::Column;

const HIGH_BYTES: usize = 128;

/// Capacity kept between messages, so that one huge row does not hold its memory forever.
const KEPT_BYTES: usize = 1 << 20;

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// A single-byte superset of ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charset {
    name: String,
    characters: [Option<char>; HIGH_BYTES],
}

/// Result of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// The message is identical in UTF-8.
    Same,
    /// The message was rewritten.
    Converted,
    /// The result would exceed the limit.
    TooLong,
}

/// Reusable buffer for a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Converted {
    /// Rewritten message.
    pub message: Vec<u8>,
    /// Columns of an inserted row, from 0, that stay unchanged.
    pub untranslatable: Vec<usize>,
}

impl Charset {
    /// Creates an encoding from the characters of the bytes from 128 on.
    pub const fn new(name: String, characters: [Option<char>; HIGH_BYTES]) -> Self {
        Self { name, characters }
    }

    /// Postgres's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Converts text for people, with U+FFFD for bytes without an equivalent.
    pub fn text(&self, bytes: &[u8]) -> String {
        bytes.iter().map(|&byte| self.character(byte).unwrap_or(REPLACEMENT)).collect()
    }

    /// Encodes text, if possible.
    pub fn encode(&self, text: &str) -> Option<Vec<u8>> {
        let byte = |character: char| {
            if character.is_ascii() {
                return u8::try_from(character).ok();
            }
            let place = self.characters.iter().position(|known| *known == Some(character))?;
            u8::try_from(place + HIGH_BYTES).ok()
        };
        text.chars().map(byte).collect()
    }

    /// Rewrites a message, unless it is identical or would exceed `bytes_max`.
    pub fn convert(
        &self,
        data: &[u8],
        bytes_max: usize,
        out: &mut Converted,
    ) -> Result<Conversion, DecodeError> {
        if data.is_ascii() {
            return Ok(Conversion::Same);
        }
        match decode(data)? {
            Message::Insert(insert) => Ok(self.insert(data, &insert, bytes_max, out)),
            Message::Relation(relation) => Ok(self.relation(&relation, bytes_max, out)),
            Message::Logical(message) if !message.prefix.is_ascii() => {
                Ok(self.logical(&message, bytes_max, out))
            }
            _ => Ok(Conversion::Same),
        }
    }

    /// Keeps bytes without an equivalent.
    pub(super) fn append(&self, text: &[u8], out: &mut Vec<u8>) {
        let mut utf8 = [0; 4];
        for chunk in text.chunk_by(|one, next| one.is_ascii() == next.is_ascii()) {
            if chunk.is_ascii() {
                out.extend(chunk);
                continue;
            }
            for &byte in chunk {
                match self.character(byte) {
                    Some(character) => out.extend(character.encode_utf8(&mut utf8).as_bytes()),
                    None => out.push(byte),
                }
            }
        }
    }

    /// `None` if a byte has no equivalent.
    fn converted_bytes(&self, text: &[u8]) -> Option<usize> {
        if text.is_ascii() {
            return Some(text.len());
        }
        text.iter().map(|&byte| self.character(byte).map(char::len_utf8)).sum()
    }

    #[inline]
    fn character(&self, byte: u8) -> Option<char> {
        if byte.is_ascii() {
            return Some(char::from(byte));
        }
        *self.characters.get(usize::from(byte) - HIGH_BYTES)?
    }

    fn insert(
        &self,
        data: &[u8],
        insert: &Insert<'_>,
        bytes_max: usize,
        out: &mut Converted,
    ) -> Conversion {
        let is_same =
            |column: Column<'_>| !matches!(column, Column::Text(text) if !text.is_ascii());
        if insert.tuple.columns().all(is_same) {
            return Conversion::Same;
        }
        let grown = |column: Column<'_>| match column {
            Column::Text(text) => self.converted_bytes(text).unwrap_or(text.len()) - text.len(),
            _ => 0,
        };
        let bytes = insert.tuple.columns().map(grown).sum::<usize>() + data.len();
        if bytes > bytes_max {
            return Conversion::TooLong;
        }
        begin(out, b'I', bytes);
        let message = &mut out.message;
        message.extend(insert.relation.to_be_bytes());
        message.push(b'N');
        message.extend(count(insert.tuple.len()));
        for (place, column) in insert.tuple.columns().enumerate() {
            match column {
                Column::Null => message.push(b'n'),
                Column::Unchanged => message.push(b'u'),
                Column::Binary(value) => {
                    message.push(b'b');
                    message.extend(length(value.len()));
                    message.extend(value);
                }
                Column::Text(text) => {
                    message.push(b't');
                    if let Some(bytes) = self.converted_bytes(text) {
                        message.extend(length(bytes));
                        self.append(text, message);
                    } else {
                        message.extend(length(text.len()));
                        message.extend(text);
                        out.untranslatable.push(place);
                    }
                }
            }
        }
        assert_eq!(out.message.len(), bytes, "a converted row is as long as was counted");
        Conversion::Converted
    }

    fn relation(
        &self,
        relation: &Relation<'_>,
        bytes_max: usize,
        out: &mut Converted,
    ) -> Conversion {
        begin(out, b'R', 0);
        let message = &mut out.message;
        message.extend(relation.id.to_be_bytes());
        self.name_into(relation.schema, message);
        self.name_into(relation.name, message);
        message.push(relation.replica_identity);
        message.extend(count(relation.columns().len()));
        for column in relation.columns() {
            message.push(u8::from(column.in_key));
            self.name_into(column.name, message);
            message.extend(column.type_oid.to_be_bytes());
            message.extend(column.type_modifier.to_be_bytes());
        }
        if message.len() > bytes_max { Conversion::TooLong } else { Conversion::Converted }
    }

    fn logical(
        &self,
        logical: &LogicalMessage<'_>,
        bytes_max: usize,
        out: &mut Converted,
    ) -> Conversion {
        // The content's encoding is the writer's choice; Postgres never converts it.
        let bytes = logical.content.len().saturating_add(4 * logical.prefix.len());
        if bytes > bytes_max {
            return Conversion::TooLong;
        }
        begin(out, b'M', bytes);
        let message = &mut out.message;
        message.push(u8::from(logical.transactional));
        message.extend(logical.lsn.get().to_be_bytes());
        self.name_into(logical.prefix, message);
        message.extend(length(logical.content.len()));
        message.extend(logical.content);
        Conversion::Converted
    }

    fn name_into(&self, name: &[u8], out: &mut Vec<u8>) {
        out.extend(self.text(name).as_bytes());
        out.push(0);
    }
}

fn begin(out: &mut Converted, tag: u8, bytes: usize) {
    out.untranslatable.clear();
    out.message.clear();
    out.message.shrink_to(bytes.max(KEPT_BYTES));
    out.message.reserve(bytes);
    out.message.push(tag);
}

fn count(items: usize) -> [u8; 2] {
    let Ok(items) = u16::try_from(items) else { unreachable!("{items} columns were decoded") };
    items.to_be_bytes()
}

fn length(bytes: usize) -> [u8; 4] {
    let Ok(bytes) = i32::try_from(bytes) else {
        unreachable!("a value of {bytes} bytes in a message of a size that is allowed")
    };
    bytes.to_be_bytes()
}

#[cfg(test)]
mod tests;
