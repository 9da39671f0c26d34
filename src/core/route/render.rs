//! Converts a column's value to bytes for Kafka.
//!
//! Output: a `Part`, which locates Postgres's text or a `bytea`'s raw bytes, in the frame or in a
//! reused buffer.

use std::io::Write as _;

use super::datetime;
use crate::outbox::{Format, Value, type_oid as oid};
use crate::pgoutput::PgTime;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Part {
    /// The table lacks the column.
    #[default]
    Absent,
    /// SQL NULL.
    Null,
    /// After `skip` bytes of the value.
    Frame { skip: usize },
    /// In the scratch buffer.
    Scratch { start: usize, end: usize },
}

impl Part {
    /// `value` and `scratch` must be [`render`]'s.
    pub(super) fn bytes<'a>(self, value: Value<'a>, scratch: &'a [u8]) -> Option<&'a [u8]> {
        let bytes = match (self, value) {
            (Self::Absent | Self::Null, _) => return None,
            (Self::Frame { skip }, Value::Bytes { bytes, .. }) => bytes.get(skip..),
            (Self::Scratch { start, end }, _) => scratch.get(start..end),
            (Self::Frame { .. }, Value::Null | Value::Absent) => None,
        };
        // `None` would mean NULL, and a tombstone instead of a value.
        assert!(bytes.is_some(), "a part of another row's value");
        bytes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("is a bytea that is neither in hex nor in escape format")]
    Bytea,
    #[error("is binary, of a type (OID {0}) that is only understood as text")]
    UnknownType(u32),
    #[error("is binary, and too short or too long for its type")]
    Length,
    #[error("is a binary jsonb of an unknown version")]
    JsonbVersion,
    #[error("is invalid for its type")]
    Moment,
    #[error("is not UTF-8 text")]
    Encoding,
    #[error("has a character, in the database's encoding, that has no equivalent in UTF8")]
    Untranslatable,
    #[error(
        "is JSON that Connect has no schema for: members of several types, or an integer beyond 64 bits"
    )]
    NoSchema,
}

pub(super) fn render(value: Value<'_>, scratch: &mut Vec<u8>) -> Result<Part, Unreadable> {
    let (bytes, type_oid, format) = match value {
        Value::Absent => return Ok(Part::Absent),
        Value::Null => return Ok(Part::Null),
        Value::Bytes { bytes, type_oid, format } => (bytes, type_oid, format),
    };
    let start = scratch.len();
    match (format, type_oid) {
        (Format::Untranslatable, _) => return Err(Unreadable::Untranslatable),
        (Format::Text, oid::BYTEA) => bytea(bytes, scratch).ok_or(Unreadable::Bytea)?,
        (Format::Text, _) => return Ok(Part::Frame { skip: 0 }),
        (Format::Binary, _) => {
            if let Some(part) = binary(bytes, type_oid, scratch)? {
                return Ok(part);
            }
        }
    }
    Ok(Part::Scratch { start, end: scratch.len() })
}

/// `None`: the text was appended to `scratch`.
fn binary(bytes: &[u8], type_oid: u32, scratch: &mut Vec<u8>) -> Result<Option<Part>, Unreadable> {
    match type_oid {
        oid::BYTEA | oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::NAME | oid::JSON | oid::XML => {
            return Ok(Some(Part::Frame { skip: 0 }));
        }
        oid::JSONB => {
            return match bytes.first() {
                Some(1) => Ok(Some(Part::Frame { skip: 1 })),
                _ => Err(Unreadable::JsonbVersion),
            };
        }
        oid::BOOL => scratch.push(match exact(bytes)? {
            [0] => b'f',
            [_] => b't',
        }),
        oid::INT2 => decimal(scratch, i64::from(i16::from_be_bytes(exact(bytes)?))),
        oid::INT4 => decimal(scratch, i64::from(i32::from_be_bytes(exact(bytes)?))),
        oid::INT8 => decimal(scratch, i64::from_be_bytes(exact(bytes)?)),
        oid::OID => decimal(scratch, i64::from(u32::from_be_bytes(exact(bytes)?))),
        oid::UUID => uuid(scratch, &exact(bytes)?),
        oid::TIMESTAMP | oid::TIMESTAMPTZ => {
            let time = PgTime(i64::from_be_bytes(exact(bytes)?));
            datetime::write(scratch, time, type_oid == oid::TIMESTAMPTZ);
        }
        _ => return Err(Unreadable::UnknownType(type_oid)),
    }
    Ok(None)
}

fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Unreadable> {
    bytes.try_into().map_err(|_| Unreadable::Length)
}

fn decimal(out: &mut Vec<u8>, number: i64) {
    let _ = write!(out, "{number}");
}

fn uuid(out: &mut Vec<u8>, bytes: &[u8; 16]) {
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.extend([hex_digit(byte >> 4), hex_digit(byte & 0xF)].map(|c| c.to_ascii_lowercase()));
    }
}

pub(super) const fn hex_digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'A' - 10 + nibble }
}

fn from_hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Also parses `bytea_output = escape`.
fn bytea(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    if let Some(digits) = text.strip_prefix(b"\\x") {
        let (pairs, rest) = digits.as_chunks::<2>();
        out.reserve(pairs.len());
        for [high, low] in pairs {
            out.push((from_hex(*high)? << 4) | from_hex(*low)?);
        }
        return rest.is_empty().then_some(());
    }
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = match (byte, after) {
            (b'\\', [b'\\', after @ ..]) => {
                out.push(b'\\');
                after
            }
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                after
            }
            (b'\\', _) => return None,
            _ => {
                out.push(byte);
                after
            }
        };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rendered(type_oid: u32, format: Format, bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut scratch = b"before".to_vec();
        let value = Value::Bytes { bytes, type_oid, format };
        let part = render(value, &mut scratch)?;
        Ok(part.bytes(value, &scratch).expect("a value").to_vec())
    }

    fn binary_text(type_oid: u32, bytes: &[u8]) -> String {
        String::from_utf8(rendered(type_oid, Format::Binary, bytes).expect("rendered"))
            .expect("text")
    }

    #[test]
    fn binary_values_become_the_text_postgres_prints() {
        assert_eq!(binary_text(oid::BOOL, &[1]), "t");
        assert_eq!(binary_text(oid::BOOL, &[0]), "f");
        assert_eq!(binary_text(oid::INT2, &(-7_i16).to_be_bytes()), "-7");
        assert_eq!(binary_text(oid::INT4, &i32::MIN.to_be_bytes()), "-2147483648");
        assert_eq!(binary_text(oid::INT8, &i64::MAX.to_be_bytes()), "9223372036854775807");
        assert_eq!(binary_text(oid::TIMESTAMPTZ, &[0; 8]), "2000-01-01 00:00:00+00");
        assert_eq!(binary_text(oid::TIMESTAMP, &[0; 8]), "2000-01-01 00:00:00");
        assert_eq!(binary_text(oid::JSONB, b"\x01{\"a\": 1}"), "{\"a\": 1}");
        let uuid = 0xDA8D_6DE6_3B77_45FF_8F44_57DB_55A7_A06C_u128.to_be_bytes();
        assert_eq!(binary_text(oid::UUID, &uuid), "da8d6de6-3b77-45ff-8f44-57db55a7a06c");
    }

    #[test]
    fn bytea_becomes_raw_bytes_in_every_format() {
        let raw = Ok(b"a\\\x00\xFF".to_vec());
        assert_eq!(rendered(oid::BYTEA, Format::Text, b"\\x615c00fF"), raw);
        assert_eq!(rendered(oid::BYTEA, Format::Text, b"a\\\\\\000\\377"), raw);
        assert_eq!(rendered(oid::BYTEA, Format::Binary, b"a\\\x00\xFF"), raw);
        assert_eq!(rendered(oid::BYTEA, Format::Text, b"\\x"), Ok(vec![]));
        for wrong in [&b"\\x1"[..], b"\\x1g", b"a\\", b"\\400", b"\\08"] {
            assert_eq!(rendered(oid::BYTEA, Format::Text, wrong), Err(Unreadable::Bytea));
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let wrong =
            |type_oid, bytes| rendered(type_oid, Format::Binary, bytes).expect_err("refused");
        assert_eq!(wrong(600, &[0; 16]), Unreadable::UnknownType(600));
        assert_eq!(wrong(oid::UUID, &[0; 15]), Unreadable::Length);
        assert_eq!(wrong(oid::INT4, &[0; 8]), Unreadable::Length);
        assert_eq!(wrong(oid::BOOL, &[]), Unreadable::Length);
        assert_eq!(wrong(oid::JSONB, b"\x02{}"), Unreadable::JsonbVersion);
        assert_eq!(wrong(oid::JSONB, b""), Unreadable::JsonbVersion);
    }

    proptest! {
        #[test]
        fn text_other_than_bytea_is_sent_as_it_lies(bytes: Vec<u8>, type_oid: u32) {
            prop_assume!(type_oid != oid::BYTEA);
            prop_assert_eq!(rendered(type_oid, Format::Text, &bytes), Ok(bytes));
        }

        #[test]
        fn every_bytea_survives_hex(raw: Vec<u8>) {
            let digits = raw.iter().flat_map(|byte| format!("{byte:02x}").into_bytes());
            let text: Vec<u8> = b"\\x".iter().copied().chain(digits).collect();
            prop_assert_eq!(rendered(oid::BYTEA, Format::Text, &text), Ok(raw));
        }

        #[test]
        fn g7_any_bytes_are_rendered_or_refused(bytes: Vec<u8>, pick in 0_usize..17, text: bool) {
            let types = [16, 17, 18, 19, 20, 21, 23, 25, 114, 142, 1042, 1043, 1114, 1184, 2950, 3802, 99];
            let format = if text { Format::Text } else { Format::Binary };
            let _ = rendered(types[pick], format, &bytes);
        }
    }
}
