//! Makes the Kafka record of an outbox row, or explains why there is none.
//!
//! A record borrows the row and this router's scratch buffer. [`position_text`] prints the position
//! with which consumers drop repeats.

use super::cloudevents;
use super::datetime;
use super::decisions::{Decision, Decisions, TopicId};
use super::format::{EpochUnit, ValueFormat};
use super::record::{Headers, Record};
use super::rejection::{Rejection, RejectionCode};
use super::render::{Part, Unreadable, hex_digit};
use super::source::SourceColumn;
use super::spec::RowOrigin;
use super::trace;
use super::value::Encoder;
use crate::outbox::{Format, OutboxRow, Position, Value, type_oid};
use crate::record::{Header, LSN_HEADER, ORIGIN_HEADER};

#[derive(Debug, Clone)]
pub(super) struct HeaderSource {
    pub(super) source: SourceColumn,
    pub(super) name: String,
    pub(super) content: HeaderContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderContent {
    /// NULL is a null value.
    Column,
    /// The trace context; omitted without one.
    Trace,
}

#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) key: SourceColumn,
    pub(super) headers: Vec<HeaderSource>,
    pub(super) partition: Option<SourceColumn>,
}

/// Makes records of outbox rows. Upholds G4: every row is a record, a rejection, or dropped by a
/// rule; and G7: no column's bytes cause a panic.
#[derive(Debug, Clone)]
pub struct Router {
    pub(super) id: SourceColumn,
    pub(super) encoder: Encoder,
    pub(super) destinations: Vec<Destination>,
    pub(super) decisions: Decisions,
    pub(super) id_header: String,
    pub(super) max_record_bytes: usize,
    pub(super) lsn_header: bool,
    pub(super) origin: RowOrigin,
    pub(super) letter_source: Vec<Header>,
    pub(super) timestamp: Option<(SourceColumn, EpochUnit)>,
    pub(super) cloud_event: Option<(SourceColumn, SourceColumn)>,
    /// Reused, so that a row allocates nothing.
    pub(super) found: Found,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    scratch: Vec<u8>,
    id: Part,
    value: Part,
    key: Part,
    headers: Vec<Part>,
    attributes: Vec<(&'static str, Part)>,
    lsn: Part,
}

struct Routed {
    topic: TopicId,
    destination: usize,
    partition: Option<i32>,
    timestamp_ms: i64,
}

/// A huge row does not hold its memory.
const SCRATCH_KEPT_BYTES: usize = 1 << 20;

impl Router {
    /// Makes a row's record, valid until the next call; `None` if a rule drops the row.
    ///
    /// # Panics
    ///
    /// If parts and headers do not agree: a bug.
    pub fn route<'a>(&'a mut self, row: &OutboxRow<'a>) -> Result<Option<Record<'a>>, Rejection> {
        let mut scratch = std::mem::take(&mut self.found.scratch);
        scratch.clear();
        scratch.shrink_to(SCRATCH_KEPT_BYTES);
        let routed = self.find(row, &mut scratch);
        self.found.scratch = scratch;
        let routed = match routed {
            Ok(Some(routed)) => routed,
            Ok(None) => return Ok(None),
            Err(rejection) => return Err(self.foremost(row, rejection)),
        };
        let (found, destination) = (&self.found, self.destination(routed.destination));
        let bytes =
            |part: Part, source: &SourceColumn| part.bytes(row.column(source.slot), &found.scratch);
        let mut headers = Headers::new();
        headers.push((self.id_header.as_str(), bytes(found.id, &self.id)));
        for (name, part) in &found.attributes {
            headers.push((name, part.bytes(Value::Absent, &found.scratch)));
        }
        assert_eq!(destination.headers.len(), found.headers.len(), "each header has its part");
        for (header, part) in destination.headers.iter().zip(&found.headers) {
            if header.is_sent(*part) {
                headers.push((header.name.as_str(), bytes(*part, &header.source)));
            }
        }
        if let Some(origin) = self.origin.header() {
            headers.push((ORIGIN_HEADER, Some(origin.as_bytes())));
        } else if self.lsn_header && self.origin == RowOrigin::Log {
            headers.push((LSN_HEADER, found.lsn.bytes(Value::Absent, &found.scratch)));
        }
        let record = Record {
            topic: self.decisions.name(routed.topic),
            partition: routed.partition,
            key: bytes(found.key, &destination.key),
            value: bytes(found.value, &self.encoder.payload),
            headers,
            timestamp_ms: routed.timestamp_ms,
        };
        let (size, limit) = (record.wire_size_max(), self.max_record_bytes);
        if size > limit {
            let reason =
                format!("the record has {size} bytes or more, kafka.message_max_bytes is {limit}");
            return Err(self.foremost(row, Rejection { code: RejectionCode::TooLarge, reason }));
        }
        Ok(Some(record))
    }

    /// Prefers the reason that forbids sending the letter again: consumers would misread text in
    /// the database's encoding.
    #[cold]
    fn foremost(&self, row: &OutboxRow<'_>, found: Rejection) -> Rejection {
        if !row.has_untranslatable() {
            return found;
        }
        let of = |to: &Destination| {
            let headers = to.headers.iter().map(|header| header.source.clone());
            headers.chain([to.key.clone()]).collect::<Vec<_>>()
        };
        let mut sources = vec![self.id.clone(), self.encoder.payload.clone()];
        sources.extend(self.destinations.iter().flat_map(of));
        let foremost = sources.iter().find_map(|source| match row.column(source.slot) {
            Value::Bytes { format: Format::Untranslatable, .. } => {
                Some(source.unreadable(Unreadable::Untranslatable))
            }
            _ => None,
        });
        foremost.filter(|_| row.excerpt().is_none()).unwrap_or(found)
    }

    pub(super) fn destination(&self, number: usize) -> &Destination {
        place_of(&self.destinations, number)
    }

    fn find(
        &mut self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Routed>, Rejection> {
        if let Some(excerpt) = row.excerpt() {
            return self.find_cut(row, excerpt.whole_bytes(), scratch);
        }
        if let Some(flaw) = row.flaw() {
            let reason = format!("the logical message is not a row: {flaw}");
            return Err(Rejection { code: RejectionCode::InvalidValue, reason });
        }
        let (topic, destination) = match self.decisions.decide(row, scratch)? {
            Decision::Drop => return Ok(None),
            Decision::Send { topic, destination } => (topic, destination),
        };
        let timestamp_ms = self.timestamp_ms(row, scratch)?;
        let to = place_of(&self.destinations, destination);
        self.found.id = self.encoder.header(row, &self.id, scratch)?;
        if matches!(self.found.id, Part::Null | Part::Absent) {
            return Err(self.id.reject(RejectionCode::MissingValue, "is NULL"));
        }
        self.found.key = self.encoder.key(row, &to.key, scratch)?;
        if let Some(version) = &self.encoder.schema_version {
            version.demand(row)?;
        }
        self.found.value = self.encoder.value(row, scratch)?;
        self.found.headers.clear();
        for source in &to.headers {
            self.found.headers.push(source.part(row, &self.encoder, scratch)?);
        }
        let partition = to.partition.as_ref().map(|source| partition(source, row)).transpose()?;
        let partition = partition.flatten();
        self.attributes(row, timestamp_ms, scratch)?;
        let start = scratch.len();
        scratch.extend(position_text(row.position()));
        self.found.lsn = Part::Scratch { start, end: scratch.len() };
        Ok(Some(Routed { topic, destination, partition, timestamp_ms }))
    }

    /// Drops an oversized row only if a rule certainly applies.
    #[cold]
    fn find_cut(
        &mut self,
        row: &OutboxRow<'_>,
        bytes: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Routed>, Rejection> {
        if self.decisions.sees_all_of(row)
            && let Ok(Decision::Drop) = self.decisions.decide(row, scratch)
        {
            return Ok(None);
        }
        let reason =
            format!("the row has {bytes} bytes as Postgres sends it, more than source.frame_max");
        Err(Rejection { code: RejectionCode::TooLarge, reason })
    }

    fn attributes(
        &mut self,
        row: &OutboxRow<'_>,
        timestamp_ms: i64,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        self.found.attributes.clear();
        let Some((kind, subject)) = &self.cloud_event else { return Ok(()) };
        let event = cloudevents::CloudEvent {
            id: &self.id,
            kind,
            subject,
            payload: &self.encoder.payload,
            source: &self.encoder.format.cloudevents_source,
            timestamp_ms,
        };
        if self.encoder.format.value == ValueFormat::CloudEventsBinary {
            let value = self.found.value;
            return event.binary(row, value, &mut self.found.attributes, scratch);
        }
        if matches!(self.found.value, Part::Null | Part::Absent) {
            return Ok(());
        }
        self.found.value = event.structured(row, self.found.value, scratch)?;
        let start = scratch.len();
        scratch.extend(cloudevents::STRUCTURED);
        let part = Part::Scratch { start, end: scratch.len() };
        self.found.attributes.push((cloudevents::CONTENT_TYPE, part));
        Ok(())
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
            (true, EpochUnit::Seconds) => number().and_then(|s| s.checked_mul(1000)),
            (true, EpochUnit::Milliseconds) => number(),
            (true, EpochUnit::Microseconds) => number().map(|us| us.div_euclid(1000)),
            (false, _) => datetime::parse(text).map(|us| us.div_euclid(1000)),
        };
        // Kafka has no timestamps before 1970; -1 means none.
        unix_ms.filter(|ms| *ms >= 0).ok_or_else(|| {
            source.reject(RejectionCode::InvalidValue, "is not a moment since 1970-01-01")
        })
    }
}

/// The destination with this compiled index. Upholds G4: no row is omitted for a missing
/// destination.
fn place_of(destinations: &[Destination], number: usize) -> &Destination {
    let Some(destination) = destinations.get(number) else {
        unreachable!("a decision for destination {number} of {}", destinations.len());
    };
    destination
}

fn is_integer(value: Value<'_>) -> bool {
    use type_oid::{INT2, INT4, INT8};
    matches!(value, Value::Bytes { type_oid: INT2 | INT4 | INT8, .. })
}

/// `None`: the partitioner chooses.
fn partition(source: &SourceColumn, row: &OutboxRow<'_>) -> Result<Option<i32>, Rejection> {
    source.demand(row)?;
    if matches!(row.column(source.slot), Value::Null | Value::Absent) {
        return Ok(None);
    }
    let number = source.integer(row).and_then(|number| i32::try_from(number).ok());
    number.filter(|number| *number >= 0).map(Some).ok_or_else(|| {
        source.reject(RejectionCode::InvalidValue, "is not the number of a partition")
    })
}

impl HeaderSource {
    fn part(
        &self,
        row: &OutboxRow<'_>,
        encoder: &Encoder,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        if self.content == HeaderContent::Column {
            return encoder.header(row, &self.source, scratch);
        }
        let value = row.column(self.source.slot);
        let part = self.source.render(row, scratch)?;
        let Some(text) = part.bytes(value, scratch) else { return Ok(Part::Absent) };
        if trace::is_bare(text) {
            let is_blank = text.trim_ascii().is_empty();
            let is_sent = self.name == trace::TRACEPARENT_HEADER && !is_blank;
            return Ok(if is_sent { part } else { Part::Absent });
        }
        let mut made = Vec::new();
        if !trace::extract(text, &self.name, &mut made) {
            return Ok(Part::Absent);
        }
        let start = scratch.len();
        scratch.extend(&made);
        Ok(Part::Scratch { start, end: scratch.len() })
    }

    pub(super) fn is_sent(&self, part: Part) -> bool {
        match part {
            Part::Absent => false,
            Part::Null => self.content == HeaderContent::Column,
            Part::Frame { .. } | Part::Scratch { .. } => true,
        }
    }
}

const POSITION_TEXT_BYTES: usize = 27;

/// A position that sorts as bytes: 16 upper-case hexadecimal digits of the commit LSN, a point, 10
/// decimal digits of the row's index, for example `000000016B374D84.0000000003`.
pub fn position_text(position: Position) -> [u8; POSITION_TEXT_BYTES] {
    let mut text = [b'.'; POSITION_TEXT_BYTES];
    let (lsn, rest) = text.split_at_mut(16);
    for (pair, byte) in lsn.chunks_exact_mut(2).zip(position.commit_lsn.get().to_be_bytes()) {
        pair.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xF)]);
    }
    // A transaction of 10^10 rows would need terabytes of log.
    let mut index = position.index.min(9_999_999_999);
    for digit in rest.iter_mut().skip(1).rev() {
        *digit = b'0' + (index % 10) as u8;
        index /= 10;
    }
    text
}
