//! Formats rows as CloudEvents 1.0 (Kafka protocol binding 1.0.2).
//!
//! JSON is embedded, bytes become base64, other text a string.

use std::io::Write as _;

use super::datetime::rfc3339;
use super::json::{base64, write_string};
use super::rejection::{Rejection, RejectionCode};
use super::render::Part;
use super::source::SourceColumn;
use crate::outbox::{OutboxRow, Value, type_oid as oid};

pub(super) const CONTENT_TYPE: &str = "content-type";

pub(super) const STRUCTURED: &[u8] = b"application/cloudevents+json; charset=UTF-8";

pub(super) struct CloudEvent<'a> {
    pub(super) id: &'a SourceColumn,
    pub(super) kind: &'a SourceColumn,
    pub(super) subject: &'a SourceColumn,
    pub(super) payload: &'a SourceColumn,
    /// Empty: the table's name.
    pub(super) source: &'a str,
    pub(super) timestamp_ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Json,
    Bytes,
    Text,
}

impl Content {
    fn of(type_oid: u32) -> Self {
        match type_oid {
            oid::JSON | oid::JSONB | oid::DOCUMENT => Self::Json,
            oid::BYTEA => Self::Bytes,
            _ => Self::Text,
        }
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Bytes => "application/octet-stream",
            Self::Text => "text/plain; charset=utf-8",
        }
    }
}

impl CloudEvent<'_> {
    pub(super) fn binary(
        &self,
        row: &OutboxRow<'_>,
        value: Part,
        headers: &mut Vec<(&'static str, Part)>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        let mut add = |name, value: &[u8]| {
            let start = scratch.len();
            scratch.extend(value);
            headers.push((name, Part::Scratch { start, end: scratch.len() }));
        };
        add("ce_specversion", b"1.0");
        add("ce_id", required(self.id, row)?.as_bytes());
        add("ce_source", self.source(row).as_bytes());
        add("ce_type", required(self.kind, row)?.as_bytes());
        if let Some(subject) = text(self.subject, row)? {
            add("ce_subject", subject.as_bytes());
        }
        add("ce_time", rfc3339(self.timestamp_ms).as_bytes());
        let is_null = matches!(value, Part::Null | Part::Absent);
        if let Some(content) = content(self.payload, row).filter(|_| !is_null) {
            add(CONTENT_TYPE, content.media_type().as_bytes());
        }
        Ok(())
    }

    pub(super) fn structured(
        &self,
        row: &OutboxRow<'_>,
        value: Part,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let mut out = b"{\"specversion\":\"1.0\"".to_vec();
        attribute(&mut out, "id", &required(self.id, row)?);
        attribute(&mut out, "source", &self.source(row));
        attribute(&mut out, "type", &required(self.kind, row)?);
        if let Some(subject) = text(self.subject, row)? {
            attribute(&mut out, "subject", &subject);
        }
        attribute(&mut out, "time", &rfc3339(self.timestamp_ms));
        let data = value.bytes(row.column(self.payload.slot), scratch);
        if let (Some(content), Some(data)) = (content(self.payload, row), data) {
            attribute(&mut out, "datacontenttype", content.media_type());
            match content {
                Content::Json => {
                    out.extend(b",\"data\":");
                    out.extend(data);
                }
                Content::Bytes => {
                    out.extend(b",\"data_base64\":\"");
                    base64(&mut out, data, false);
                    out.push(b'"');
                }
                Content::Text => {
                    let text = str::from_utf8(data).map_err(|_| {
                        self.payload.reject(RejectionCode::InvalidValue, "is not UTF-8 text")
                    })?;
                    attribute(&mut out, "data", text);
                }
            }
        }
        out.push(b'}');
        let start = scratch.len();
        scratch.extend(&out);
        Ok(Part::Scratch { start, end: scratch.len() })
    }

    fn source(&self, row: &OutboxRow<'_>) -> String {
        if self.source.is_empty() { row.table().to_string() } else { self.source.to_owned() }
    }
}

fn attribute(out: &mut Vec<u8>, name: &str, value: &str) {
    let _ = write!(out, ",\"{name}\":");
    write_string(out, value);
}

fn required(source: &SourceColumn, row: &OutboxRow<'_>) -> Result<String, Rejection> {
    let value = text(source, row)?.filter(|text| !text.is_empty());
    value.ok_or_else(|| source.reject(RejectionCode::MissingValue, "is NULL or empty"))
}

fn text(source: &SourceColumn, row: &OutboxRow<'_>) -> Result<Option<String>, Rejection> {
    let mut scratch = Vec::new();
    let part = source.render(row, &mut scratch)?;
    let Some(bytes) = part.bytes(row.column(source.slot), &scratch) else { return Ok(None) };
    let text = str::from_utf8(bytes)
        .map_err(|_| source.reject(RejectionCode::InvalidValue, "is not UTF-8 text"))?;
    Ok(Some(text.to_owned()))
}

/// `None` if the payload is NULL.
fn content(payload: &SourceColumn, row: &OutboxRow<'_>) -> Option<Content> {
    match row.column(payload.slot) {
        Value::Bytes { type_oid, .. } => Some(Content::of(type_oid)),
        Value::Null | Value::Absent => None,
    }
}
