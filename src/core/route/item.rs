//! Writes a column like Kafka Connect's converters.

use super::column::Kind;
use super::decimal;
use super::format::ColumnStyle;
use super::json::{self, Shape, base64, write_string};
use super::render::Unreadable;
use crate::json::Json;
use crate::outbox::Declared;

pub(super) enum Body<'a> {
    Null,
    Plain {
        kind: Kind,
        text: &'a [u8],
    },
    /// NULL is `None`.
    List {
        kind: Kind,
        elements: Vec<Option<Vec<u8>>>,
    },
    /// JSON is cut off beyond `bytes_max`, which no record may exceed.
    Document {
        json: Json,
        shape: Shape,
        bytes_max: usize,
    },
}

pub(super) struct Item<'a> {
    pub(super) body: Body<'a>,
    pub(super) declared: Option<Declared>,
}

impl Item<'_> {
    pub(super) fn write_json(
        &self,
        out: &mut Vec<u8>,
        style: ColumnStyle,
    ) -> Result<(), Unreadable> {
        match &self.body {
            Body::Null => out.extend(b"null"),
            Body::Document { json, shape, bytes_max } => {
                json::write_json(out, json, shape, out.len().saturating_add(*bytes_max));
            }
            Body::Plain { kind, text } => write_plain(out, *kind, text, style)?,
            Body::List { kind, elements } => {
                out.push(b'[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    match element {
                        None => out.extend(b"null"),
                        Some(text) => write_plain(out, *kind, text, style)?,
                    }
                }
                out.push(b']');
            }
        }
        Ok(())
    }

    pub(super) fn write_text(&self, out: &mut Vec<u8>) {
        match &self.body {
            Body::Null => out.extend(b"null"),
            Body::Document { json, shape, .. } => json::write_java(out, json, shape),
            Body::Plain { text, .. } => out.extend(*text),
            Body::List { elements, .. } => {
                let texts = elements.iter().map(|element| element.as_deref().unwrap_or(b"null"));
                out.push(b'[');
                out.extend(texts.collect::<Vec<_>>().join(&b", "[..]));
                out.push(b']');
            }
        }
    }
}

fn write_plain(
    out: &mut Vec<u8>,
    kind: Kind,
    text: &[u8],
    style: ColumnStyle,
) -> Result<(), Unreadable> {
    let quoted = |out: &mut Vec<u8>, text: &[u8]| -> Result<(), Unreadable> {
        write_string(out, str::from_utf8(text).map_err(|_| Unreadable::Encoding)?);
        Ok(())
    };
    match kind {
        Kind::Boolean => {
            out.extend(if text.starts_with(b"t") { &b"true"[..] } else { b"false" });
        }
        Kind::Float32 | Kind::Float64 if text.ends_with(b"N") || text.ends_with(b"y") => {
            quoted(out, text)?;
        }
        Kind::Int16 | Kind::Int32 | Kind::Int64 | Kind::Float32 | Kind::Float64 => {
            out.extend(text);
        }
        Kind::Decimal { .. } if style == ColumnStyle::Postgres => decimal::write_plain(out, text),
        Kind::Decimal { scale: Some(_) } => decimal::write_fixed(out, text),
        Kind::Decimal { scale: None } => decimal::write_struct(out, text),
        Kind::Text | Kind::Document => quoted(out, text)?,
        Kind::Bytes => {
            out.push(b'"');
            base64(out, text, false);
            out.push(b'"');
        }
    }
    Ok(())
}

pub(super) fn write_object(
    out: &mut Vec<u8>,
    members: &[(&str, &Item<'_>)],
    style: ColumnStyle,
) -> Result<(), Unreadable> {
    out.push(b'{');
    for (index, (name, item)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(out, name);
        out.push(b':');
        item.write_json(out, style)?;
    }
    out.push(b'}');
    Ok(())
}

/// Connect's `Struct` omits nulls.
pub(super) fn write_struct_text(out: &mut Vec<u8>, members: &[(&str, &Item<'_>)]) {
    out.extend(b"Struct{");
    let present = members.iter().filter(|(_, item)| !matches!(item.body, Body::Null));
    for (index, (name, item)) in present.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend(name.as_bytes());
        out.push(b'=');
        item.write_text(out);
    }
    out.push(b'}');
}
