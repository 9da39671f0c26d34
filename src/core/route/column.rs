//! Renders a column's value like Postgres or like Debezium.
//!
//! A value that is not valid text of its type is `Unreadable` (G7).

use super::debezium_time;
use super::format::{ByteaForm, ColumnStyle};
use super::json::{base64, write_double, write_float};
use super::render::{Part, Unreadable, hex_digit, render};
use crate::outbox::{Declared, Value, type_oid as oid};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Int16,
    Int32,
    Int64,
    /// A number, or the name of a non-number.
    Float32,
    Float64,
    /// Scale, if declared.
    Decimal {
        scale: Option<i32>,
    },
    Text,
    Bytes,
    Document,
}

impl Kind {
    /// Times are numbers only in Debezium's style.
    pub(super) fn of(declared: Declared, style: ColumnStyle) -> Self {
        let in_numbers = style == ColumnStyle::Debezium;
        let digits = declared.modifier;
        match declared.type_oid {
            oid::BOOL => Self::Boolean,
            oid::BYTEA => Self::Bytes,
            oid::INT2 => Self::Int16,
            oid::INT4 => Self::Int32,
            oid::INT8 | oid::OID => Self::Int64,
            oid::FLOAT4 => Self::Float32,
            oid::FLOAT8 => Self::Float64,
            oid::NUMERIC => Self::Decimal { scale: scale(digits) },
            oid::DOCUMENT => Self::Document,
            oid::DATE if in_numbers => Self::Int32,
            oid::TIME if in_numbers && debezium_time::is_in_milliseconds(digits) => Self::Int32,
            oid::TIME | oid::TIMESTAMP if in_numbers => Self::Int64,
            _ => Self::Text,
        }
    }
}

/// `None` if the array stays text.
pub(super) fn element(declared: Declared, style: ColumnStyle) -> Option<Declared> {
    if style == ColumnStyle::Postgres {
        return None;
    }
    let type_oid = oid::element_of(declared.type_oid)?;
    Some(Declared { type_oid, is_nullable: true, ..declared })
}

pub(super) fn is_array(declared: Option<Declared>, style: ColumnStyle) -> bool {
    declared.is_some_and(|declared| element(declared, style).is_some())
}

/// `None` for null.
pub(super) fn element_text(printed: Vec<u8>, of: Declared) -> Result<Option<Vec<u8>>, Unreadable> {
    let mut made = Vec::new();
    Ok(match convert(&printed, of, &mut made).ok_or(Unreadable::Moment)? {
        Converted::Not => Some(printed),
        Converted::Nothing => None,
        Converted::Made => Some(made),
    })
}

/// Scale of `numeric(precision, scale)` (`make_numeric_typmod` in `utils/adt/numeric.c`): eleven
/// signed bits, after the header's length.
fn scale(modifier: i32) -> Option<i32> {
    let bits = modifier.checked_sub(4).filter(|bits| *bits >= 0)? & 0x7FF;
    Some((bits ^ 1024) - 1024)
}

pub(super) fn precision(modifier: i32) -> Option<i32> {
    modifier.checked_sub(4).filter(|bits| *bits >= 0).map(|bits| bits >> 16)
}

/// A value's text; bytes stay bytes.
pub(super) fn text(
    value: Value<'_>,
    declared: Declared,
    style: ColumnStyle,
    scratch: &mut Vec<u8>,
) -> Result<Part, Unreadable> {
    let part = render(value, scratch)?;
    if style == ColumnStyle::Postgres {
        return Ok(part);
    }
    let Some(printed) = part.bytes(value, scratch) else { return Ok(part) };
    let mut made = Vec::new();
    let known = convert(printed, declared, &mut made).ok_or(Unreadable::Moment)?;
    Ok(match known {
        Converted::Not => part,
        Converted::Nothing => Part::Null,
        Converted::Made => append(scratch, &made),
    })
}

/// Debezium's headers have bytes in base64, unless `bytea` says otherwise.
pub(super) fn header(
    value: Value<'_>,
    declared: Declared,
    (style, bytea): (ColumnStyle, ByteaForm),
    scratch: &mut Vec<u8>,
) -> Result<Part, Unreadable> {
    let part = text(value, declared, style, scratch)?;
    let Some(content) = part.bytes(value, scratch) else { return Ok(part) };
    let mut made = Vec::new();
    match Kind::of(declared, style) {
        Kind::Bytes => match bytea {
            ByteaForm::Encoded | ByteaForm::Raw if style == ColumnStyle::Postgres => {
                return Ok(part);
            }
            ByteaForm::Encoded | ByteaForm::Raw => base64(&mut made, content, false),
            form => write_bytes(&mut made, content, form),
        },
        _ if style == ColumnStyle::Postgres => return Ok(part),
        Kind::Decimal { scale: None } => super::decimal::write_struct(&mut made, content),
        Kind::Decimal { scale: Some(_) } => match super::decimal::scientific(content) {
            Some(scientific) => made = scientific,
            None => return Ok(part),
        },
        _ => return Ok(part),
    }
    Ok(append(scratch, &made))
}

/// A form that is not text leaves the bytes unchanged.
pub(super) fn write_bytes(out: &mut Vec<u8>, bytes: &[u8], form: ByteaForm) {
    match form {
        ByteaForm::Encoded | ByteaForm::Raw => out.extend(bytes),
        ByteaForm::Base64 => base64(out, bytes, false),
        ByteaForm::Base64Url => base64(out, bytes, true),
        ByteaForm::Hex => out.extend(bytes.iter().flat_map(|byte| {
            let digit = |nibble: u8| hex_digit(nibble).to_ascii_lowercase();
            [digit(byte >> 4), digit(byte & 0xF)]
        })),
    }
}

fn append(scratch: &mut Vec<u8>, bytes: &[u8]) -> Part {
    let start = scratch.len();
    scratch.extend(bytes);
    Part::Scratch { start, end: scratch.len() }
}

enum Converted {
    Not,
    Nothing,
    Made,
}

/// `None` if the text is not valid for its type.
fn convert(printed: &[u8], declared: Declared, out: &mut Vec<u8>) -> Option<Converted> {
    let digits = declared.modifier;
    let number = match declared.type_oid {
        oid::BOOL => {
            out.extend(if printed.starts_with(b"t") { &b"true"[..] } else { b"false" });
            return Some(Converted::Made);
        }
        oid::FLOAT4 => {
            write_float(out, float(printed)?);
            return Some(Converted::Made);
        }
        oid::FLOAT8 => {
            write_double(out, float(printed)?);
            return Some(Converted::Made);
        }
        oid::NUMERIC if printed.ends_with(b"y") || printed == b"NaN" => {
            return Some(Converted::Nothing);
        }
        oid::TIMESTAMPTZ => {
            debezium_time::write_zoned_timestamp(out, printed, digits)?;
            return Some(Converted::Made);
        }
        oid::TIMETZ => {
            debezium_time::write_zoned_time(out, printed)?;
            return Some(Converted::Made);
        }
        oid::DATE => debezium_time::days(printed)?,
        oid::TIME => debezium_time::time(printed, digits)?,
        oid::TIMESTAMP => debezium_time::timestamp(printed, digits)?,
        _ => return Some(Converted::Not),
    };
    out.extend(number.to_string().as_bytes());
    Some(Converted::Made)
}

fn float<T: std::str::FromStr>(printed: &[u8]) -> Option<T> {
    str::from_utf8(printed).ok()?.parse().ok()
}
