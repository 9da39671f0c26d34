//! Writes keys, values and headers in the configured format.
//!
//! Kafka Connect's converters would write these bytes after Debezium's router. An envelope has
//! columns beside the payload. A value contains the whole payload, or there is none. Content that
//! the format cannot represent is a rejection (G4).

use super::array;
use super::column::{self, Kind};
use super::decimal;
use super::format::{
    ByteaForm, ColumnStyle, EmptyPayload, FormatSpec, KeyFormat, Members, ValueFormat,
};
use super::item::{Body, Item, write_object, write_struct_text};
use super::json::{self, Inference, Shape};
use super::rejection::Rejection;
use super::render::{Part, Unreadable};
use super::schema;
use super::source::{NamedColumn, SourceColumn};
use crate::json::Json;
use crate::outbox::{Declared, OutboxRow, Value, type_oid};

#[derive(Debug, Clone)]
pub(super) struct Encoder {
    pub(super) format: FormatSpec,
    pub(super) payload: SourceColumn,
    /// For the envelope schema's name.
    pub(super) by: SourceColumn,
    pub(super) envelope: Vec<NamedColumn>,
    pub(super) schema_version: Option<SourceColumn>,
    pub(super) empty_payload: EmptyPayload,
    pub(super) message_nulls: Members,
    pub(super) bytes_max: usize,
}

impl Encoder {
    pub(super) fn key(
        &self,
        row: &OutboxRow<'_>,
        source: &SourceColumn,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let style = self.format.columns;
        let declared = row.declared(source.slot);
        let is_raw = self.format.key == KeyFormat::Raw && !column::is_array(declared, style);
        if is_raw || self.is_raw_bytes(declared) {
            let part = self.verbatim(row, source, scratch)?;
            return Ok(self.as_java_prints(row, source, part, scratch));
        }
        let mut texts = Vec::new();
        let item = self.item(row, source, &mut texts)?;
        let start = scratch.len();
        let written = match self.format.key {
            KeyFormat::JsonSchema => self.write_wrapped(scratch, &item, source),
            KeyFormat::Json => item.write_json(scratch, style),
            KeyFormat::Raw if matches!(item.body, Body::Null) => return Ok(Part::Null),
            KeyFormat::Raw => {
                item.write_text(scratch);
                Ok(())
            }
        };
        written.map_err(|unreadable| source.unreadable(unreadable))?;
        Ok(Part::Scratch { start, end: scratch.len() })
    }

    pub(super) fn header(
        &self,
        row: &OutboxRow<'_>,
        source: &SourceColumn,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let style = self.format.columns;
        let form = (style, self.format.bytea);
        if form == (ColumnStyle::Postgres, ByteaForm::Encoded) {
            return source.render(row, scratch);
        }
        let declared = row.declared(source.slot);
        let mut texts = Vec::new();
        if column::is_array(declared, style) {
            let mut item = self.item(row, source, &mut texts)?;
            if let Body::List { kind, .. } = &mut item.body {
                if matches!(kind, Kind::Decimal { scale: Some(_) } | Kind::Float32 | Kind::Float64)
                {
                    // Headers contain every number in printed form.
                    *kind = Kind::Int64;
                }
                let start = scratch.len();
                let written = item.write_json(scratch, style);
                written.map_err(|unreadable| source.unreadable(unreadable))?;
                return Ok(Part::Scratch { start, end: scratch.len() });
            }
        }
        source.part(row, |value, declared| column::header(value, declared, form, scratch))
    }

    /// Scientific notation, if Java uses it.
    fn as_java_prints(
        &self,
        row: &OutboxRow<'_>,
        source: &SourceColumn,
        part: Part,
        scratch: &mut Vec<u8>,
    ) -> Part {
        let kind = row.declared(source.slot).map(|declared| self.kind(declared));
        let is_decimal = matches!(kind, Some(Kind::Decimal { scale: Some(_) }));
        if !is_decimal || self.format.columns == ColumnStyle::Postgres {
            return part;
        }
        let printed = part.bytes(row.column(source.slot), scratch);
        let Some(scientific) = printed.and_then(decimal::scientific) else { return part };
        let start = scratch.len();
        scratch.extend(&scientific);
        Part::Scratch { start, end: scratch.len() }
    }

    fn verbatim(
        &self,
        row: &OutboxRow<'_>,
        source: &SourceColumn,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        source.part(row, |value, declared| {
            let part = column::text(value, declared, self.format.columns, scratch)?;
            Ok(self.bytes_as_text(value, declared, part, scratch))
        })
    }

    pub(super) fn value(
        &self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let (source, style) = (&self.payload, self.format.columns);
        let (value, declared) = (row.column(source.slot), row.declared(source.slot));
        let is_event = matches!(
            self.format.value,
            ValueFormat::CloudEventsBinary | ValueFormat::CloudEventsStructured
        );
        let is_verbatim = is_event
            || self.format.value == ValueFormat::Raw
            || (self.is_raw_bytes(declared) && self.envelope.is_empty());
        if is_verbatim {
            let part = if is_event {
                // An event names the type of its bytes, so they stay bytes.
                source.part(row, |value, declared| column::text(value, declared, style, scratch))?
            } else {
                self.verbatim(row, source, scratch)?
            };
            let is_tombstone = self.is_tombstone(value, part.bytes(value, scratch));
            return Ok(if is_tombstone { Part::Null } else { part });
        }
        let mut texts = Vec::new();
        let part = self.verbatim(row, source, &mut texts)?;
        let bytes = part.bytes(value, &texts);
        if self.empty_payload == EmptyPayload::Tombstone
            && (bytes.is_none() || self.is_tombstone(value, bytes))
        {
            return Ok(Part::Null);
        }
        let body = self.body(bytes, declared);
        let start = scratch.len();
        let item = Item { body: self.expanded(body, declared), declared };
        let written = match self.format.value {
            ValueFormat::JsonSchema if self.envelope.is_empty() => {
                self.write_wrapped(scratch, &item, source)
            }
            ValueFormat::Json if self.envelope.is_empty() => item.write_json(scratch, style),
            ValueFormat::Text if self.envelope.is_empty() => {
                if matches!(item.body, Body::Null) {
                    return Ok(Part::Null);
                }
                item.write_text(scratch);
                Ok(())
            }
            _ => return self.enveloped(row, &item, scratch),
        };
        written.map_err(|unreadable| source.unreadable(unreadable))?;
        Ok(Part::Scratch { start, end: scratch.len() })
    }

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

    /// Only a document is expanded.
    fn item<'a>(
        &self,
        row: &OutboxRow<'a>,
        source: &SourceColumn,
        texts: &'a mut Vec<u8>,
    ) -> Result<Item<'a>, Rejection> {
        let part = self.verbatim(row, source, texts)?;
        let declared = row.declared(source.slot);
        let body = self.body(part.bytes(row.column(source.slot), texts), declared);
        Ok(Item { body, declared })
    }

    fn body<'a>(&self, bytes: Option<&'a [u8]>, declared: Option<Declared>) -> Body<'a> {
        let (Some(text), Some(declared)) = (bytes, declared) else { return Body::Null };
        if let Some(list) = list(text, declared, self.format.columns) {
            return list;
        }
        match self.kind(declared) {
            Kind::Document => self.document(text),
            kind => Body::Plain { kind, text },
        }
    }

    fn document<'a>(&self, text: &'a [u8]) -> Body<'a> {
        let inference = Inference { null_members: self.message_nulls, empty_arrays: Members::Drop };
        match Json::parse(text) {
            Ok(json) => {
                let shape = json::infer(&json, inference).unwrap_or(Shape::Several);
                Body::Document { json, shape, bytes_max: self.bytes_max }
            }
            Err(_) => Body::Plain { kind: Kind::Text, text },
        }
    }

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
        // Connect would print these as their text.
        let is_printed = !matches!(shape, Shape::Struct(_)) || !shape.has_schema();
        if value == ValueFormat::Text && is_printed {
            return body;
        }
        Body::Document { json, shape, bytes_max: self.bytes_max }
    }

    fn kind(&self, declared: Declared) -> Kind {
        match (Kind::of(declared, self.format.columns), self.format.bytea) {
            (Kind::Bytes, ByteaForm::Base64 | ByteaForm::Base64Url | ByteaForm::Hex) => Kind::Text,
            (kind, _) => kind,
        }
    }

    fn is_raw_bytes(&self, declared: Option<Declared>) -> bool {
        let is_bytea = declared.is_some_and(|declared| declared.type_oid == type_oid::BYTEA);
        is_bytea && self.format.bytea == ByteaForm::Raw
    }

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

    /// White space is defined as in Java's `String.trim`: everything up to the blank.
    fn is_tombstone(&self, value: Value<'_>, bytes: Option<&[u8]>) -> bool {
        let is_bytea = matches!(value, Value::Bytes { type_oid: type_oid::BYTEA, .. });
        let is_text =
            !is_bytea || !matches!(self.format.bytea, ByteaForm::Encoded | ByteaForm::Raw);
        let is_blank = |bytes: &[u8]| bytes.iter().all(|&byte| byte <= b' ');
        self.empty_payload == EmptyPayload::Tombstone && is_text && bytes.is_some_and(is_blank)
    }

    fn write_wrapped(
        &self,
        out: &mut Vec<u8>,
        item: &Item<'_>,
        source: &SourceColumn,
    ) -> Result<(), Unreadable> {
        out.extend(b"{\"schema\":");
        self.write_schema(out, item, source.column.as_str(), None)?;
        out.extend(b",\"payload\":");
        item.write_json(out, self.format.columns)?;
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
        let style = self.format.columns;
        match (&item.body, item.declared) {
            (Body::Document { shape, .. }, _) if !shape.has_schema() => Err(Unreadable::NoSchema),
            (Body::Document { shape, .. }, _) => {
                json::write_shape(out, shape, Some(name), field);
                Ok(())
            }
            (Body::Plain { kind, .. }, Some(declared)) => {
                schema::write_column(out, declared, *kind, style, field);
                Ok(())
            }
            (body, Some(declared)) => {
                // The table may have changed since the session began.
                let is_nullable = declared.is_nullable || matches!(body, Body::Null);
                let declared = Declared { is_nullable, ..declared };
                match column::element(declared, style) {
                    Some(of) => schema::write_list(out, of, is_nullable, style, field),
                    None => schema::write_column(out, declared, self.kind(declared), style, field),
                }
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

    /// Debezium uses the routing value for a logical message.
    fn envelope_name(&self, row: &OutboxRow<'_>, route: &str) -> String {
        if row.is_message() {
            return route.to_owned();
        }
        let table = row.table();
        let mut parts = vec![self.format.schema_prefix.as_str(), &table.schema, &table.name];
        parts.retain(|part| !part.is_empty());
        format!("{}.{route}.Value", parts.join("."))
    }

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
        let mut texts = Vec::new();
        let value = row.column(self.by.slot);
        let route = super::render::render(value, &mut texts)?;
        let route = String::from_utf8_lossy(route.bytes(value, &texts).unwrap_or_default());
        let name = self.envelope_name(row, &route);
        let version = self.schema_version.as_ref().and_then(|source| source.integer(row));
        let attributes = json::Attributes { name: Some(&name), version, ..Default::default() };
        json::end(out, &attributes);
        out.extend(b",\"payload\":");
        Ok(())
    }
}

fn list<'a>(text: &[u8], declared: Declared, style: ColumnStyle) -> Option<Body<'a>> {
    let of = column::element(declared, style)?;
    let element = |printed: Option<Vec<u8>>| match printed {
        None => Ok(None),
        Some(printed) => column::element_text(printed, of),
    };
    let elements = array::read(text)?.into_iter().map(element).collect::<Result<_, _>>().ok()?;
    Some(Body::List { kind: Kind::of(of, style), elements })
}
