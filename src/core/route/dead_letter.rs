//! Builds the dead letter of a rejected row or refused record.
//!
//! The letter has the consumers' value and headers that explain the failure. Size and hash replace
//! a value that is too large. Every letter contains the row's id, up to 1 KiB, and omits oversized
//! parts, or G4 would not hold.

use serde::Serialize;

use super::record::{NO_TIMESTAMP, OwnedRecord};
use super::rejection::{Rejection, RejectionCode};
use super::render::{Part, hex_digit, render};
use super::router::{HeaderContent, Router, position_text};
use super::source::SourceColumn;
use super::spec::RowOrigin;
use super::trace::TRACESTATE_HEADER;
use crate::json::Json;
use crate::outbox::{Format, OutboxRow, Value, type_oid};
use crate::pgoutput::{Digest, Excerpt};
use crate::record::{
    COMMIT_TIMESTAMP_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, EXPLANATION_HEADERS, Header,
    LSN_HEADER, LetterSource, Note, ORIGIN_HEADER, TABLE_HEADER, TIMESTAMP_HEADER, TOPIC_HEADER,
};

/// Enough for ids, keys and traces.
const KEPT_PART_BYTES_MAX: usize = 1024;

const CUTS_TOLD_MAX: usize = 16;

/// Four times the longest topic name; a logical message's prefix has any length.
const EXPLANATION_BYTES_MAX: usize = 1000;

impl Router {
    /// Adds the stream's names to dead letters.
    pub fn name_source(&mut self, source: &LetterSource) {
        self.letter_source = source.headers();
    }

    /// The dead letter of a rejected row, with wire bytes of unreadable values.
    pub fn dead_letter(
        &self,
        row: &OutboxRow<'_>,
        rejection: &Rejection,
        topic: &str,
    ) -> OwnedRecord {
        self.letter(row, rejection, topic, rejection.code == RejectionCode::TooLarge)
    }

    /// A dead letter with a note instead of the body.
    pub fn short_dead_letter(
        &self,
        row: &OutboxRow<'_>,
        rejection: &Rejection,
        topic: &str,
    ) -> OwnedRecord {
        self.letter(row, rejection, topic, true)
    }

    fn letter(
        &self,
        row: &OutboxRow<'_>,
        rejection: &Rejection,
        topic: &str,
        is_short: bool,
    ) -> OwnedRecord {
        let mut headers = explanation(rejection);
        headers.push(header(TABLE_HEADER, cut(&row.table().to_string())));
        if self.origin == RowOrigin::Log {
            headers.push(header(LSN_HEADER, position_text(row.position()).to_vec()));
        }
        let (intended, destination) = self.decisions.intended(row);
        if let Some(intended) = intended {
            headers.push(header(TOPIC_HEADER, cut(&intended)));
        }
        headers.extend(self.letter_source.iter().cloned());
        let commit_ms = row.position().commit_time.unix_ms();
        let own_ms = self.timestamp_ms(row, &mut Vec::new()).ok().filter(|ms| *ms != commit_ms);
        if let Some(own_ms) = own_ms {
            headers.push(header(TIMESTAMP_HEADER, own_ms.to_string().into_bytes()));
        }
        let explained = headers.len();
        headers.push((self.id_header.clone(), as_sent(row, &self.id)));
        headers.extend(self.origin.header().map(|origin| header(ORIGIN_HEADER, origin.into())));
        let destination = self.destination(destination);
        for header in &destination.headers {
            let is_sent = match row.column(header.source.slot) {
                Value::Absent => false,
                Value::Null => header.content == HeaderContent::Column,
                Value::Bytes { .. } => header.name != TRACESTATE_HEADER,
            };
            if is_sent {
                headers.push((header.name.clone(), as_sent(row, &header.source)));
            }
        }
        let mut record = OwnedRecord {
            topic: topic.to_owned(),
            partition: None,
            key: as_sent(row, &destination.key),
            value: match row.flaw() {
                Some(_) => Some(row.content().to_vec()),
                None if self.lacks_payload(row) => Some(all_columns(row)),
                None => as_sent(row, &self.encoder.payload),
            },
            headers,
            timestamp_ms: commit_ms,
        };
        if let Some(excerpt) = row.excerpt() {
            record.value = Some(self.stand_in(row, excerpt));
            set_aside(&mut record, explained);
            return record;
        }
        self.fit(record, explained, is_short)
    }

    /// True if rows come from the log.
    pub fn reads_log(&self) -> bool {
        self.origin == RowOrigin::Log
    }

    /// The row's id for an audit line, up to 1 KiB.
    pub fn id_of(&self, row: &OutboxRow<'_>) -> Option<String> {
        shown(row, &self.id)
    }

    fn stand_in(&self, row: &OutboxRow<'_>, excerpt: &Excerpt) -> Vec<u8> {
        let id = shown(row, &self.id);
        let payload = self.payload_digest(row, excerpt);
        let cuts = excerpt.cuts().iter().take(CUTS_TOLD_MAX).map(|cut| {
            let column = row.column_name(cut.column);
            CutColumn { column, size: cut.sent.bytes, sha256: cut.sent.hexadecimal() }
        });
        to_json(&CutRow {
            id,
            size: payload.map(|payload| payload.bytes),
            sha256: payload.map(|payload| payload.hexadecimal()),
            row_size: excerpt.whole_bytes(),
            cut: cuts.collect(),
        })
    }

    /// Digest of the payload, or of a logical message's content.
    fn payload_digest(&self, row: &OutboxRow<'_>, excerpt: &Excerpt) -> Option<Digest> {
        if row.is_message()
            && let Some(content) = excerpt.cuts().first()
        {
            return Some(content.sent);
        }
        let payload = &self.encoder.payload;
        let Some(cut) = row.cut(payload.slot) else {
            return rendered(row, payload).map(|bytes| Digest::of(&bytes));
        };
        let is_bytea = matches!(
            row.column(payload.slot),
            Value::Bytes { type_oid: type_oid::BYTEA, format: Format::Text, .. }
        );
        Some(cut.bytea.filter(|_| is_bytea).unwrap_or(cut.sent))
    }

    /// The dead letter of a refused record. `commit_ms`: its commit time in Unix milliseconds.
    pub fn dead_letter_of_refused(
        &self,
        refused: &OwnedRecord,
        rejection: &Rejection,
        topic: &str,
        commit_ms: i64,
    ) -> OwnedRecord {
        let mut headers = explanation(rejection);
        let is_lsn = |header: &&Header| header.0 == LSN_HEADER;
        headers.extend(refused.headers.iter().rfind(is_lsn).cloned());
        headers.push(header(TOPIC_HEADER, cut(&refused.topic)));
        headers.extend(self.letter_source.iter().cloned());
        if refused.timestamp_ms != commit_ms {
            headers.push(header(TIMESTAMP_HEADER, refused.timestamp_ms.to_string().into_bytes()));
        }
        let explained = headers.len();
        headers.extend(refused.headers.iter().filter(|header| !is_lsn(header)).cloned());
        let record = OwnedRecord {
            topic: topic.to_owned(),
            partition: None,
            key: refused.key.clone(),
            value: refused.value.clone(),
            headers,
            timestamp_ms: commit_ms,
        };
        // The broker's limit may be lower than the configured one.
        self.fit(record, explained, rejection.code == RejectionCode::TooLarge)
    }

    fn lacks_payload(&self, row: &OutboxRow<'_>) -> bool {
        !row.is_message() && row.column(self.encoder.payload.slot) == Value::Absent
    }

    /// Keeps the first `explained` headers; the next header is the id.
    fn fit(&self, mut record: OwnedRecord, explained: usize, is_short: bool) -> OwnedRecord {
        let too_large = is_short || record.as_record().wire_size_max() > self.max_record_bytes;
        if !too_large {
            return record;
        }
        let id = record.headers.get(explained).and_then(|(_, value)| value.as_deref());
        let id = id.map(|bytes| String::from_utf8_lossy(prefix(bytes)).into_owned());
        record.value = record.value.as_deref().map(|value| {
            let size = value.len() as u64;
            to_json(&Note { id, size, sha256: Digest::of(value).hexadecimal() })
        });
        set_aside(&mut record, explained);
        record
    }
}

/// Removes the timestamp, so that brokers accept the letter whatever their clock shows.
pub fn untimed(mut letter: OwnedRecord, commit_ms: i64) -> OwnedRecord {
    let mut own = 0;
    for name in EXPLANATION_HEADERS {
        own += usize::from(letter.headers.get(own).is_some_and(|(found, _)| found == name));
    }
    letter.headers.insert(own, header(COMMIT_TIMESTAMP_HEADER, commit_ms.to_string().into_bytes()));
    letter.timestamp_ms = NO_TIMESTAMP;
    letter
}

fn set_aside(record: &mut OwnedRecord, explained: usize) {
    let is_kept = |bytes: &Vec<u8>| bytes.len() <= KEPT_PART_BYTES_MAX;
    record.key = record.key.take().filter(is_kept);
    for (_, value) in record.headers.iter_mut().skip(explained) {
        *value = value.take().filter(is_kept);
    }
}

fn explanation(rejection: &Rejection) -> Vec<Header> {
    vec![
        header(ERROR_CODE_HEADER, rejection.code.as_str().into()),
        header(ERROR_HEADER, cut(&rejection.reason)),
    ]
}

fn header(name: &str, value: Vec<u8>) -> Header {
    (name.to_owned(), Some(value))
}

fn cut(text: &str) -> Vec<u8> {
    let end = text.floor_char_boundary(EXPLANATION_BYTES_MAX);
    let (kept, _) = text.split_at(end);
    kept.into()
}

fn prefix(bytes: &[u8]) -> &[u8] {
    bytes.get(..KEPT_PART_BYTES_MAX).unwrap_or(bytes)
}

#[derive(Serialize)]
struct CutRow<'r> {
    id: Option<String>,
    size: Option<usize>,
    sha256: Option<String>,
    row_size: usize,
    cut: Vec<CutColumn<'r>>,
}

#[derive(Serialize)]
struct CutColumn<'r> {
    column: Option<&'r str>,
    size: usize,
    sha256: String,
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    let Ok(json) = serde_json::to_vec(value) else {
        unreachable!("texts and numbers can be written into memory");
    };
    json
}

/// A value that is not in UTF-8 is printed like a bytea.
fn all_columns(row: &OutboxRow<'_>) -> Vec<u8> {
    let member = |(name, value): (&str, Option<(&[u8], Format)>)| {
        let text = value.map(|(bytes, format)| printed(bytes, format));
        (name.to_owned(), text.map_or(Json::Null, Json::String))
    };
    let mut text = Vec::new();
    Json::Object(row.all().map(member).collect()).write(&mut text);
    text
}

fn printed(bytes: &[u8], format: Format) -> String {
    if format != Format::Untranslatable {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let digits = bytes.iter().flat_map(|byte| [hex_digit(byte >> 4), hex_digit(byte & 15)]);
    let digits = digits.map(|digit| char::from(digit.to_ascii_lowercase()));
    ['\\', 'x'].into_iter().chain(digits).collect()
}

fn shown(row: &OutboxRow<'_>, source: &SourceColumn) -> Option<String> {
    let format = match row.column(source.slot) {
        Value::Bytes { format: Format::Untranslatable, .. } => Format::Untranslatable,
        _ => Format::Text,
    };
    Some(printed(prefix(&rendered(row, source)?), format))
}

/// Bytes for Kafka, or unreadable wire bytes; `None` for a cut value.
fn as_sent(row: &OutboxRow<'_>, source: &SourceColumn) -> Option<Vec<u8>> {
    if row.cut(source.slot).is_some() {
        return None;
    }
    rendered(row, source)
}

/// Like [`as_sent`], with the beginning of a cut value.
fn rendered(row: &OutboxRow<'_>, source: &SourceColumn) -> Option<Vec<u8>> {
    let value = row.column(source.slot);
    let mut scratch = Vec::new();
    let part = render(value, &mut scratch).unwrap_or(Part::Frame { skip: 0 });
    part.bytes(value, &scratch).map(<[u8]>::to_vec)
}
