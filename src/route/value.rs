//! Keys and values in the format that was asked for.
//!
//! Enters: a row, and the columns of its key, payload and envelope. Leaves: a [`Part`], whose bytes
//! are what Kafka Connect's converters make of the same row behind Debezium's router (raw formats:
//! the column itself). Always holds: a value is made of the whole payload or not at all; what
//! cannot be said in the format is a rejection (G4). The router calls it twice per row.

use serde_json::Value as Json;

use super::column::{self, Kind};
use super::decimal;
use super::format::{
    ByteaForm, ColumnStyle, EmptyPayload, FormatSpec, KeyFormat, Members, ValueFormat,
};
use super::json::{self, Inference, Shape, base64, write_string};
use super::rejection::Rejection;
use super::render::{Part, Unreadable};
use super::schema;
use super::source::{Field, Source};
use crate::outbox::{Declared, OutboxRow, Value, type_oid};

/// The formats of one routing, compiled.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    pub(super) format: FormatSpec,
    pub(super) payload: Source,
    /// The column that `route.by` names: part of the name of an envelope's schema.
    pub(super) by: Source,
    pub(super) envelope: Vec<Field>,
    pub(super) schema_version: Option<Source>,
    pub(super) empty_payload: EmptyPayload,
    /// Whether a logical message's null members stay in its documents.
    pub(super) message_nulls: Members,
}

/// A payload or column on its way into a format.
enum Body<'a> {
    Null,
    Plain { kind: Kind, text: &'a [u8] },
    Document { json: Json, shape: Shape },
}

/// A body with what is known of its column.
struct Item<'a> {
    body: Body<'a>,
    declared: Option<Declared>,
}

impl Encoder {
    /// The key's bytes, made of `source` in the scratch buffer if need be.
    pub(super) fn key(
        &self,
        row: &OutboxRow<'_>,
        source: &Source,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let style = self.format.columns;
        if self.format.key == KeyFormat::Raw {
            return source.part(row, |value, declared| {
                let part = column::text(value, declared, style, scratch)?;
                Ok(self.bytes_as_text(value, declared, part, scratch))
            });
        }
        if self.is_raw_bytes(row, source) {
            return source
                .part(row, |value, declared| column::text(value, declared, style, scratch));
        }
        let mut texts = Vec::new();
        let item = self.item(row, source, &mut texts)?;
        let start = scratch.len();
        let written = match self.format.key {
            KeyFormat::JsonSchema => self.write_wrapped(scratch, &item, source),
            _ => write_json(scratch, &item, style),
        };
        written.map_err(|unreadable| source.unreadable(unreadable))?;
        Ok(Part::Scratch { start, end: scratch.len() })
    }

    /// The value's bytes.
    pub(super) fn value(
        &self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let (source, style) = (&self.payload, self.format.columns);
        let value = row.column(source.slot);
        let is_verbatim = matches!(
            self.format.value,
            ValueFormat::Raw | ValueFormat::CloudEventsBinary | ValueFormat::CloudEventsStructured
        ) || (self.is_raw_bytes(row, source) && self.envelope.is_empty());
        if is_verbatim {
            let part = source.part(row, |value, declared| {
                let part = column::text(value, declared, style, scratch)?;
                Ok(self.bytes_as_text(value, declared, part, scratch))
            })?;
            let is_tombstone = self.is_tombstone(value, part.bytes(value, scratch));
            return Ok(if is_tombstone { Part::Null } else { part });
        }
        let mut texts = Vec::new();
        let part = source.part(row, |value, declared| {
            let part = column::text(value, declared, style, &mut texts)?;
            Ok(self.bytes_as_text(value, declared, part, &mut texts))
        })?;
        let bytes = part.bytes(value, &texts);
        if self.empty_payload == EmptyPayload::Tombstone
            && (bytes.is_none() || self.is_tombstone(value, bytes))
        {
            return Ok(Part::Null);
        }
        let declared = row.declared(source.slot);
        let body = self.body(bytes, declared);
        let start = scratch.len();
        let item = Item { body: self.expanded(body, declared), declared };
        let written = match self.format.value {
            ValueFormat::JsonSchema if self.envelope.is_empty() => {
                self.write_wrapped(scratch, &item, source)
            }
            ValueFormat::Json if self.envelope.is_empty() => write_json(scratch, &item, style),
            ValueFormat::Text if self.envelope.is_empty() => {
                if matches!(item.body, Body::Null) {
                    return Ok(Part::Null);
                }
                write_text(scratch, &item);
                Ok(())
            }
            _ => return self.enveloped(row, &item, scratch),
        };
        written.map_err(|unreadable| source.unreadable(unreadable))?;
        Ok(Part::Scratch { start, end: scratch.len() })
    }

    /// An object of the payload and the envelope's columns.
    fn enveloped(
        &self,
        row: &OutboxRow<'_>,
        payload: &Item<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let start = scratch.len();
        let mut texts = vec![Vec::new(); self.envelope.len()];
        let mut members = Vec::with_capacity(self.envelope.len());
        for (field, text) in self.envelope.iter().zip(&mut texts) {
            if matches!(row.column(field.source.slot), Value::Absent) && !field.source.is_required {
                continue;
            }
            members.push((field.name.as_str(), self.item(row, &field.source, text)?));
        }
        let payload = std::iter::once(("payload", payload));
        let all: Vec<_> = payload.chain(members.iter().map(|(name, item)| (*name, item))).collect();
        let style = self.format.columns;
        let written = match self.format.value {
            ValueFormat::Text => {
                write_struct_text(scratch, &all);
                Ok(())
            }
            ValueFormat::JsonSchema => self
                .write_envelope_schema(scratch, row, &all)
                .and_then(|()| write_object(scratch, &all, style))
                .map(|()| scratch.push(b'}')),
            _ => write_object(scratch, &all, style),
        };
        written.map_err(|unreadable| self.payload.unreadable(unreadable))?;
        Ok(Part::Scratch { start, end: scratch.len() })
    }

    /// A column that is no payload: never expanded, unless it is a document already.
    fn item<'a>(
        &self,
        row: &OutboxRow<'a>,
        source: &Source,
        texts: &'a mut Vec<u8>,
    ) -> Result<Item<'a>, Rejection> {
        let style = self.format.columns;
        let part = source.part(row, |value, declared| {
            let part = column::text(value, declared, style, texts)?;
            Ok(self.bytes_as_text(value, declared, part, texts))
        })?;
        let declared = row.declared(source.slot);
        let body = self.body(part.bytes(row.column(source.slot), texts), declared);
        Ok(Item { body, declared })
    }

    fn body<'a>(&self, bytes: Option<&'a [u8]>, declared: Option<Declared>) -> Body<'a> {
        let (Some(text), Some(declared)) = (bytes, declared) else { return Body::Null };
        match self.kind(declared) {
            Kind::Document => self.document(text),
            kind => Body::Plain { kind, text },
        }
    }

    /// The member of a logical message that is an object or array.
    fn document<'a>(&self, text: &'a [u8]) -> Body<'a> {
        let inference = Inference { null_members: self.message_nulls, empty_arrays: Members::Drop };
        match serde_json::from_slice(text) {
            Ok(json) => {
                let shape = json::infer(&json, inference).unwrap_or(Shape::Several);
                Body::Document { json, shape }
            }
            Err(_) => Body::Plain { kind: Kind::Text, text },
        }
    }

    /// A payload that holds JSON, taken apart if that is wanted and possible.
    fn expanded<'a>(&self, body: Body<'a>, declared: Option<Declared>) -> Body<'a> {
        let Body::Plain { kind: Kind::Text, text } = body else { return body };
        if !self.format.expand_json || declared.is_none() {
            return body;
        }
        let FormatSpec { null_members, empty_arrays, value, .. } = self.format;
        let inference = Inference { null_members, empty_arrays };
        let json = str::from_utf8(text).ok().and_then(json::parse);
        let shaped = json.and_then(|json| Some((json::infer(&json, inference).ok()?, json)));
        let Some((shape, json)) = shaped else { return body };
        // Connect would print these as the text they are.
        let is_printed = !matches!(shape, Shape::Struct(_)) || !shape.has_schema();
        if value == ValueFormat::Text && is_printed {
            return body;
        }
        Body::Document { json, shape }
    }

    fn kind(&self, declared: Declared) -> Kind {
        match (Kind::of(declared, self.format.columns), self.format.bytea) {
            (Kind::Bytes, ByteaForm::Base64 | ByteaForm::Base64Url | ByteaForm::Hex) => Kind::Text,
            (kind, _) => kind,
        }
    }

    /// Whether the column is a bytea, NULL or not, that the format has no say in.
    fn is_raw_bytes(&self, row: &OutboxRow<'_>, source: &Source) -> bool {
        let is_bytea = |declared: Declared| declared.type_oid == type_oid::BYTEA;
        self.format.bytea == ByteaForm::Raw && row.declared(source.slot).is_some_and(is_bytea)
    }

    /// A bytea as text, where that is wanted.
    fn bytes_as_text(
        &self,
        value: Value<'_>,
        declared: Declared,
        part: Part,
        scratch: &mut Vec<u8>,
    ) -> Part {
        if declared.type_oid != type_oid::BYTEA {
            return part;
        }
        let Some(bytes) = part.bytes(value, scratch) else { return part };
        if matches!(self.format.bytea, ByteaForm::Encoded | ByteaForm::Raw) {
            return part;
        }
        let mut made = Vec::new();
        column::write_bytes(&mut made, bytes, self.format.bytea);
        let start = scratch.len();
        scratch.extend(&made);
        Part::Scratch { start, end: scratch.len() }
    }

    /// Whether an empty or blank payload becomes a null value. White space is what Java's
    /// `String.trim` takes for it: everything up to the blank.
    fn is_tombstone(&self, value: Value<'_>, bytes: Option<&[u8]>) -> bool {
        let is_bytea = matches!(value, Value::Bytes { type_oid: type_oid::BYTEA, .. });
        let is_text =
            !is_bytea || !matches!(self.format.bytea, ByteaForm::Encoded | ByteaForm::Raw);
        let is_blank = |bytes: &[u8]| bytes.iter().all(|&byte| byte <= b' ');
        self.empty_payload == EmptyPayload::Tombstone && is_text && bytes.is_some_and(is_blank)
    }

    /// Schema and payload in one object.
    fn write_wrapped(
        &self,
        out: &mut Vec<u8>,
        item: &Item<'_>,
        source: &Source,
    ) -> Result<(), Unreadable> {
        out.extend(b"{\"schema\":");
        self.write_schema(out, item, source.column.as_str(), None)?;
        out.extend(b",\"payload\":");
        write_json(out, item, self.format.columns)?;
        out.push(b'}');
        Ok(())
    }

    fn write_schema(
        &self,
        out: &mut Vec<u8>,
        item: &Item<'_>,
        name: &str,
        field: Option<&str>,
    ) -> Result<(), Unreadable> {
        match (&item.body, item.declared) {
            (Body::Document { shape, .. }, _) if !shape.has_schema() => Err(Unreadable::NoSchema),
            (Body::Document { shape, .. }, _) => {
                json::write_shape(out, shape, Some(name), field);
                Ok(())
            }
            (_, Some(declared)) => {
                let kind = self.kind(declared);
                schema::write_column(out, declared, kind, self.format.columns, field);
                Ok(())
            }
            (_, None) => {
                let attributes =
                    json::Attributes { is_optional: true, field, ..Default::default() };
                json::write_scalar(out, "string", &attributes);
                Ok(())
            }
        }
    }

    /// Up to where the payload begins.
    fn write_envelope_schema(
        &self,
        out: &mut Vec<u8>,
        row: &OutboxRow<'_>,
        members: &[(&str, &Item<'_>)],
    ) -> Result<(), Unreadable> {
        out.extend(b"{\"schema\":");
        json::begin(out, "struct");
        out.extend(b",\"fields\":[");
        for (index, (name, item)) in members.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            let document = if index == 0 { self.payload.column.as_str() } else { name };
            self.write_schema(out, item, document, Some(name))?;
        }
        out.push(b']');
        let table = row.table();
        let mut parts = vec![self.format.schema_prefix.as_str(), &table.schema, &table.name];
        parts.retain(|part| !part.is_empty());
        let mut texts = Vec::new();
        let value = row.column(self.by.slot);
        let route = super::render::render(value, &mut texts)?;
        let route = String::from_utf8_lossy(route.bytes(value, &texts).unwrap_or_default());
        let name = format!("{}.{route}.Value", parts.join("."));
        let version = self.schema_version.as_ref().and_then(|source| source.integer(row));
        let attributes = json::Attributes { name: Some(&name), version, ..Default::default() };
        json::end(out, &attributes);
        out.extend(b",\"payload\":");
        Ok(())
    }
}

fn write_json(out: &mut Vec<u8>, item: &Item<'_>, style: ColumnStyle) -> Result<(), Unreadable> {
    let (kind, text) = match &item.body {
        Body::Null => {
            out.extend(b"null");
            return Ok(());
        }
        Body::Document { json, shape } => {
            json::write_json(out, json, shape);
            return Ok(());
        }
        Body::Plain { kind, text } => (*kind, *text),
    };
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

fn write_object(
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
        write_json(out, item, style)?;
    }
    out.push(b'}');
    Ok(())
}

/// As Java prints the value.
fn write_text(out: &mut Vec<u8>, item: &Item<'_>) {
    match &item.body {
        Body::Null => out.extend(b"null"),
        Body::Document { json, shape } => json::write_java(out, json, shape),
        Body::Plain { text, .. } => out.extend(*text),
    }
}

fn write_struct_text(out: &mut Vec<u8>, members: &[(&str, &Item<'_>)]) {
    out.extend(b"Struct{");
    let present = members.iter().filter(|(_, item)| !matches!(item.body, Body::Null));
    for (index, (name, item)) in present.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend(name.as_bytes());
        out.push(b'=');
        write_text(out, item);
    }
    out.push(b'}');
}
