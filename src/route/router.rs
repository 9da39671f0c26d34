//! The router.

use super::datetime;
use super::record::{HEADER_OVERHEAD_BYTES, Headers, RECORD_OVERHEAD_BYTES, Record};
use super::rejection::{Rejection, RejectionCode};
use super::render::{Part, hex_digit, render};
use super::spec::{EmptyPayload, EpochUnit, RouteSpec, RouteSpecError, TimestampSource};
use super::template::TopicTemplate;
use super::topics::{Topic, Topics};
use crate::outbox::{ColumnSlot, OutboxRow, OutboxSpec, Position, Value, Wanted, type_oid};

/// The header that tells a record's position: [`position_text`]. Rises strictly with the records
/// of a key, so a consumer can drop repeats by comparing bytes.
pub const LSN_HEADER: &str = "postrider-lsn";

/// W3C Trace Context's header, and the column it is copied from by default.
pub const TRACEPARENT_HEADER: &str = "traceparent";

/// A column and how a rejection calls it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) slot: ColumnSlot,
    pub(super) column: String,
}

/// A column sent as header.
#[derive(Debug, Clone)]
pub(super) struct HeaderSource {
    pub(super) source: Source,
    pub(super) name: String,
    /// Whether SQL NULL leaves the header out; otherwise it is sent with a null value.
    pub(super) only_with_value: bool,
}

/// Makes records of outbox rows. Upholds G4: every row is a record or a rejection, none is
/// dropped; and G7: no column's bytes can make it panic.
#[derive(Debug, Clone)]
pub struct Router {
    pub(super) id: Source,
    pub(super) payload: Source,
    pub(super) by: Source,
    pub(super) key: Source,
    pub(super) headers: Vec<HeaderSource>,
    pub(super) id_header: String,
    pub(super) max_record_bytes: usize,
    pub(super) topics: Topics,
    lsn_header: bool,
    timestamp: Option<(Source, EpochUnit)>,
    empty_payload: EmptyPayload,
    /// What [`Router::check`] found for the last row; reused, so that a row allocates nothing.
    found: Found,
}

#[derive(Debug, Clone, Default)]
struct Found {
    scratch: Vec<u8>,
    id: Part,
    payload: Part,
    key: Part,
    headers: Vec<Part>,
    lsn: Part,
}

/// A row that [`Router::check`] found deliverable. Good until the next row is checked.
#[derive(Debug)]
pub struct Routed {
    topic: Topic,
    timestamp_ms: i64,
}

impl Router {
    /// Compiles a specification, and asks `outbox` for the columns it needs.
    pub fn compile(spec: &RouteSpec, outbox: &mut OutboxSpec) -> Result<Self, RouteSpecError> {
        let template = TopicTemplate::compile(&spec.regex, &spec.topic)?;
        if spec.id_header.is_empty() {
            return Err(RouteSpecError::Empty { what: "id header's name" });
        }
        let mut source = |column: &str, what: &'static str, required: bool| {
            if column.is_empty() {
                return Err(RouteSpecError::Empty { what });
            }
            let wanted = if required { Wanted::required(column) } else { Wanted::optional(column) };
            Ok(Source { slot: outbox.want(wanted), column: column.to_owned() })
        };
        let mut headers = Vec::new();
        for header in &spec.headers {
            headers.push(HeaderSource {
                source: source(&header.column, "header's column", header.required)?,
                name: header.name.clone(),
                only_with_value: false,
            });
        }
        if let Some(column) = &spec.traceparent
            && !headers.iter().any(|header| header.name == TRACEPARENT_HEADER)
        {
            headers.push(HeaderSource {
                source: source(column, "traceparent column", false)?,
                name: TRACEPARENT_HEADER.to_owned(),
                only_with_value: true,
            });
        }
        Ok(Self {
            id: source(&spec.id, "id column", true)?,
            payload: source(&spec.payload, "payload column", true)?,
            by: source(&spec.by, "column to route by", true)?,
            key: source(&spec.key, "key column", true)?,
            headers,
            id_header: spec.id_header.clone(),
            lsn_header: spec.lsn_header,
            timestamp: match &spec.timestamp {
                TimestampSource::Commit => None,
                TimestampSource::Column { name, unit } => {
                    Some((source(name, "timestamp column", true)?, *unit))
                }
            },
            empty_payload: spec.empty_payload,
            max_record_bytes: spec.max_record_bytes,
            topics: Topics::new(template),
            found: Found::default(),
        })
    }

    /// Makes a row's record. [`Router::check`] and [`Router::record`] are the same in two steps,
    /// for callers that need the router again when a row is rejected.
    pub fn route<'a>(&'a mut self, row: &OutboxRow<'a>) -> Result<Record<'a>, Rejection> {
        let routed = self.check(row)?;
        Ok(self.record(row, &routed))
    }

    /// Decides whether and whereto a row can be delivered.
    pub fn check(&mut self, row: &OutboxRow<'_>) -> Result<Routed, Rejection> {
        let mut scratch = std::mem::take(&mut self.found.scratch);
        scratch.clear();
        let routed = self.find(row, &mut scratch);
        self.found.scratch = scratch;
        routed
    }

    /// The record of the row that was checked last.
    pub fn record<'a>(&'a self, row: &OutboxRow<'a>, routed: &Routed) -> Record<'a> {
        let found = &self.found;
        let bytes =
            |part: Part, source: &Source| part.bytes(row.column(source.slot), &found.scratch);
        let mut headers = Headers::new();
        headers.push((self.id_header.as_str(), bytes(found.id, &self.id)));
        for (header, part) in self.headers.iter().zip(&found.headers) {
            if header.is_sent(*part) {
                headers.push((header.name.as_str(), bytes(*part, &header.source)));
            }
        }
        if self.lsn_header {
            headers.push((LSN_HEADER, found.lsn.bytes(Value::Absent, &found.scratch)));
        }
        Record {
            topic: self.topics.name(routed.topic),
            partition: None,
            key: bytes(found.key, &self.key),
            value: bytes(found.payload, &self.payload),
            headers,
            timestamp_ms: routed.timestamp_ms,
        }
    }

    fn find(&mut self, row: &OutboxRow<'_>, scratch: &mut Vec<u8>) -> Result<Routed, Rejection> {
        let timestamp_ms = self.timestamp_ms(row, scratch)?;
        let by = self.by.render(row, scratch)?;
        let Some(by) = by.bytes(row.column(self.by.slot), scratch) else {
            return Err(self.by.reject(RejectionCode::NoRoute, "is NULL"));
        };
        let topic = self.topics.find(by, &self.by.column)?;
        self.found.id = self.id.render(row, scratch)?;
        if matches!(self.found.id, Part::Null | Part::Absent) {
            return Err(self.id.reject(RejectionCode::MissingValue, "is NULL"));
        }
        self.found.key = self.key.render(row, scratch)?;
        self.found.payload = self.payload(row, scratch)?;
        self.found.headers.clear();
        for header in &self.headers {
            self.found.headers.push(header.source.render(row, scratch)?);
        }
        let start = scratch.len();
        scratch.extend(position_text(row.position()));
        self.found.lsn = Part::Scratch { start, end: scratch.len() };
        self.check_size(row, scratch)?;
        Ok(Routed { topic, timestamp_ms })
    }

    fn payload(&self, row: &OutboxRow<'_>, scratch: &mut Vec<u8>) -> Result<Part, Rejection> {
        let part = self.payload.render(row, scratch)?;
        let value = row.column(self.payload.slot);
        let is_bytea = matches!(value, Value::Bytes { type_oid: type_oid::BYTEA, .. });
        if self.empty_payload == EmptyPayload::Keep || is_bytea {
            return Ok(part);
        }
        // White space as Debezium trims it, by `String.trim`: everything up to the blank.
        let blank = |bytes: &[u8]| bytes.iter().all(|&byte| byte <= b' ');
        Ok(if part.bytes(value, scratch).is_some_and(blank) { Part::Null } else { part })
    }

    pub(super) fn timestamp_ms(
        &self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<i64, Rejection> {
        let commit_ms = row.position().commit_time.unix_ms();
        let Some((source, unit)) = &self.timestamp else { return Ok(commit_ms) };
        let value = row.column(source.slot);
        let part = source.render(row, scratch)?;
        let Some(text) = part.bytes(value, scratch) else { return Ok(commit_ms) };
        let number = || str::from_utf8(text).ok()?.parse::<i64>().ok();
        let unix_ms = match (is_integer(value), unit) {
            (true, EpochUnit::Milliseconds) => number(),
            (true, EpochUnit::Microseconds) => number().map(|us| us.div_euclid(1000)),
            (false, _) => datetime::parse(text).map(|us| us.div_euclid(1000)),
        };
        // Kafka has no timestamps before 1970, and -1 means that there is none.
        unix_ms.filter(|ms| *ms >= 0).ok_or_else(|| {
            source.reject(RejectionCode::InvalidValue, "is not a moment since 1970-01-01")
        })
    }

    fn check_size(&self, row: &OutboxRow<'_>, scratch: &[u8]) -> Result<(), Rejection> {
        let found = &self.found;
        let size = |part: Part, source: &Source| {
            part.bytes(row.column(source.slot), scratch).map_or(0, <[u8]>::len)
        };
        let mut bytes = RECORD_OVERHEAD_BYTES
            + size(found.key, &self.key)
            + size(found.payload, &self.payload)
            + HEADER_OVERHEAD_BYTES
            + self.id_header.len()
            + size(found.id, &self.id);
        for (header, part) in self.headers.iter().zip(&found.headers) {
            if header.is_sent(*part) {
                bytes += HEADER_OVERHEAD_BYTES + header.name.len() + size(*part, &header.source);
            }
        }
        if self.lsn_header {
            bytes += HEADER_OVERHEAD_BYTES + LSN_HEADER.len() + POSITION_TEXT_BYTES;
        }
        if bytes <= self.max_record_bytes {
            return Ok(());
        }
        let limit = self.max_record_bytes;
        let reason = format!("the record has {bytes} bytes, the limit is {limit}");
        Err(Rejection { code: RejectionCode::TooLarge, reason })
    }
}

fn is_integer(value: Value<'_>) -> bool {
    use type_oid::{INT2, INT4, INT8};
    matches!(value, Value::Bytes { type_oid: INT2 | INT4 | INT8, .. })
}

impl HeaderSource {
    pub(super) fn is_sent(&self, part: Part) -> bool {
        match part {
            Part::Absent => false,
            Part::Null => !self.only_with_value,
            Part::Frame { .. } | Part::Scratch { .. } => true,
        }
    }
}

impl Source {
    fn render(&self, row: &OutboxRow<'_>, scratch: &mut Vec<u8>) -> Result<Part, Rejection> {
        render(row.column(self.slot), scratch)
            .map_err(|unreadable| self.reject(RejectionCode::InvalidValue, &unreadable.to_string()))
    }

    fn reject(&self, code: RejectionCode, fault: &str) -> Rejection {
        Rejection { code, reason: format!("column `{}` {fault}", self.column) }
    }
}

/// Digits of [`position_text`]: 16, the point, 10.
const POSITION_TEXT_BYTES: usize = 27;

/// A position as text of fixed width, so that it sorts as bytes: 16 upper-case hexadecimal digits
/// of the commit LSN, a point, 10 decimal digits of the row's index in its transaction, as in
/// `000000016B374D84.0000000003`.
pub fn position_text(position: Position) -> [u8; POSITION_TEXT_BYTES] {
    let mut text = [b'.'; POSITION_TEXT_BYTES];
    let (lsn, rest) = text.split_at_mut(16);
    for (pair, byte) in lsn.chunks_exact_mut(2).zip(position.commit_lsn.get().to_be_bytes()) {
        pair.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xF)]);
    }
    // A transaction of 10^10 rows would need terabytes of log; such rows would share a position.
    let mut index = position.index.min(9_999_999_999);
    for digit in rest.iter_mut().skip(1).rev() {
        *digit = b'0' + (index % 10) as u8;
        index /= 10;
    }
    text
}
