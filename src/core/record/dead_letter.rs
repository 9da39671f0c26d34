//! Parses a dead letter, and builds the record that is sent again.
//!
//! Input: a record of a dead-letter topic, whose first headers explain the failure. Output: a
//! [`DeadLetter`], the record to send, and the receipt that marks the letter.

use serde::{Deserialize, Serialize};

use super::consumer::{ConsumerFailure, without_history};
use super::headers::{
    ATTEMPTS_HEADER, COMMIT_TIMESTAMP_HEADER, CONSUMER_HEADER, CUT_HEADER, ERROR_CODE_HEADER,
    ERROR_HEADER, FAILED_HEADER, FIRST_FAILED_HEADER, LSN_HEADER, OFFSET_HEADER, PARTITION_HEADER,
    RETRIED_HEADER, TABLE_HEADER, TIMESTAMP_HEADER, TOO_LARGE_CODE, TOPIC_HEADER,
};
use super::letter_source::LetterSource;
use super::stored::first;
use super::{Header, PartitionOffset, StoredRecord, text};

/// An id of at most 1 KiB, six bytes per byte in JSON, and about 120 for the rest.
const NOTE_BYTES_MAX: usize = 8 << 10;

const SUMMARY_BYTES_MAX: usize = 256;

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Position.
    pub at: PartitionOffset,
    /// Time of writing, in Unix milliseconds.
    pub timestamp_ms: Option<i64>,
    /// Reason as a code.
    pub code: String,
    /// Reason as a sentence.
    pub reason: String,
    /// Intended topic of a row, or source topic of a message.
    pub topic: Option<String>,
    /// Writer, with its details.
    pub origin: DeadLetterOrigin,
    /// Original key.
    pub key: Option<Vec<u8>>,
    /// Original value, or the relay's note.
    pub value: Option<Vec<u8>>,
    /// Size of the value.
    pub value_bytes: Option<usize>,
    /// Original headers; a row's id comes first.
    pub headers: Vec<Header>,
    /// Whether large parts are missing.
    pub is_cut: bool,
    /// Whether a copy was sent and stored.
    pub is_retried: bool,
}

/// Writer of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterOrigin {
    /// The relay, for an unroutable row or refused record.
    Relay {
        /// Outbox table, if known.
        table: Option<String>,
        /// Log position.
        lsn: Option<String>,
        /// Stream; empty in letters of earlier versions.
        source: LetterSource,
        /// The row's own time, in Unix milliseconds.
        timestamp_ms: Option<i64>,
        /// Commit time.
        commit_timestamp_ms: Option<i64>,
    },
    /// A consumer.
    Consumer {
        /// Position of its record.
        at: PartitionOffset,
        /// Details.
        failure: ConsumerFailure,
    },
}

/// The relay's replacement for a large body.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// The row's id, if it is short text.
    pub id: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

impl DeadLetter {
    /// Parses a record; `None` if it is not a dead letter.
    pub fn read(record: StoredRecord) -> Option<Self> {
        let at = record.at();
        let StoredRecord { timestamp_ms, key, value, headers, .. } = record;
        let mut headers = headers.into_iter().peekable();
        let mut take = |wanted: &str| {
            let (_, value) = headers.next_if(|(name, _)| name == wanted)?;
            Some(String::from_utf8_lossy(&value.unwrap_or_default()).into_owned())
        };
        let (code, reason) = (take(ERROR_CODE_HEADER)?, take(ERROR_HEADER)?);
        let (topic, origin, is_cut) = if let Some(consumer) = take(CONSUMER_HEADER) {
            let topic = take(TOPIC_HEADER)?;
            let partition = take(PARTITION_HEADER)?.parse().ok()?;
            let at = PartitionOffset { partition, offset: take(OFFSET_HEADER)?.parse().ok()? };
            let failure = ConsumerFailure {
                consumer,
                attempts: take(ATTEMPTS_HEADER)?.parse().ok()?,
                first_failed_ms: take(FIRST_FAILED_HEADER)?.parse().ok()?,
                failed_ms: take(FAILED_HEADER)?.parse().ok()?,
            };
            (Some(topic), DeadLetterOrigin::Consumer { at, failure }, take(CUT_HEADER).is_some())
        } else {
            let (table, lsn, topic) = (take(TABLE_HEADER), take(LSN_HEADER), take(TOPIC_HEADER));
            let source = LetterSource::take(&mut take);
            let timestamp_ms = take(TIMESTAMP_HEADER).and_then(|ms| ms.parse().ok());
            let commit_timestamp_ms = take(COMMIT_TIMESTAMP_HEADER).and_then(|ms| ms.parse().ok());
            let origin =
                DeadLetterOrigin::Relay { table, lsn, source, timestamp_ms, commit_timestamp_ms };
            (topic, origin, code == TOO_LARGE_CODE)
        };
        let (value_bytes, headers) = (value.as_ref().map(Vec::len), headers.collect());
        let is_retried = false;
        let mut letter = Self {
            at,
            timestamp_ms,
            code,
            reason,
            topic,
            origin,
            key,
            value,
            value_bytes,
            headers,
            is_cut,
            is_retried,
        };
        // A row rejected for another reason may be too large as well.
        letter.is_cut |= letter.failure().is_none() && letter.is_note();
        Some(letter)
    }

    /// The consumer's failure.
    pub const fn failure(&self) -> Option<&ConsumerFailure> {
        match &self.origin {
            DeadLetterOrigin::Consumer { failure, .. } => Some(failure),
            DeadLetterOrigin::Relay { .. } => None,
        }
    }

    /// The outbox table, if named.
    pub fn table(&self) -> Option<&str> {
        match &self.origin {
            DeadLetterOrigin::Relay { table, .. } => table.as_deref(),
            DeadLetterOrigin::Consumer { .. } => None,
        }
    }

    /// The row's position, if named.
    pub fn lsn(&self) -> Option<&str> {
        match &self.origin {
            DeadLetterOrigin::Relay { lsn, .. } => lsn.as_deref(),
            DeadLetterOrigin::Consumer { .. } => None,
        }
    }

    /// The row's stream, if named.
    pub const fn source(&self) -> Option<&LetterSource> {
        match &self.origin {
            DeadLetterOrigin::Relay { source, .. } => Some(source),
            DeadLetterOrigin::Consumer { .. } => None,
        }
    }

    /// Text of an original header.
    pub fn header(&self, name: &str) -> Option<&str> {
        first(&self.headers, name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Id of the row or message. The relay's id header comes first and may have any name.
    pub fn id(&self) -> Option<&[u8]> {
        match &self.origin {
            DeadLetterOrigin::Relay { .. } => {
                self.headers.first().and_then(|(_, id)| id.as_deref())
            }
            DeadLetterOrigin::Consumer { .. } => {
                first(&self.headers, "id").or_else(|| first(&self.headers, "ce_id"))
            }
        }
    }

    /// Event type, from the relay's or CloudEvents' header.
    pub fn event_type(&self) -> Option<&str> {
        self.header("event_type").or_else(|| self.header("ce_type"))
    }

    /// Shortens the letter for lists.
    pub fn summarize(&mut self) {
        self.value = None;
        let id = self.id().map(beginning);
        self.headers.truncate(1);
        for (name, value) in &mut self.headers {
            (*name, *value) = ("id".to_owned(), id.clone());
        }
        self.key = self.key.as_deref().map(beginning);
    }

    /// True if the value is the relay's note.
    fn is_note(&self) -> bool {
        let Some(value) = self.value.as_deref() else { return false };
        if value.len() > NOTE_BYTES_MAX {
            return false;
        }
        let Ok(note) = serde_json::from_slice::<Note>(value) else { return false };
        let same_id = match self.id() {
            Some(known) => note.id.as_deref() == Some(&*String::from_utf8_lossy(known)),
            None => true,
        };
        let is_exact = serde_json::to_vec(&note).is_ok_and(|whole| whole == value);
        same_id && note.sha256.len() == 64 && is_exact
    }

    /// Headers of the record to send: its own, a row's position, a message's history, and the mark.
    pub fn headers_again(&self) -> Vec<Header> {
        let mark = retried(self.at);
        match &self.origin {
            DeadLetterOrigin::Relay { lsn, .. } => {
                let lsn = lsn.as_deref().map(|lsn| text(LSN_HEADER, lsn));
                self.headers.iter().cloned().chain(lsn).chain([mark]).collect()
            }
            DeadLetterOrigin::Consumer { failure, .. } => {
                let own = without_history(&self.headers).iter();
                let own = own.filter(|(name, _)| name != RETRIED_HEADER).cloned();
                own.chain(failure.history()).chain([mark]).collect()
            }
        }
    }

    /// A message keeps its partition, because later records of its key go there.
    pub const fn partition_again(&self) -> Option<i32> {
        match &self.origin {
            DeadLetterOrigin::Relay { .. } => None,
            DeadLetterOrigin::Consumer { at, .. } => Some(at.partition),
        }
    }

    /// Timestamp of the record to send: the row's own, or else the letter's. A message gets the
    /// current time.
    pub fn timestamp_again(&self, now_ms: i64) -> i64 {
        let DeadLetterOrigin::Relay { timestamp_ms, commit_timestamp_ms, .. } = self.origin else {
            return now_ms;
        };
        // Earlier versions stamped refused records with 1970, which retention removes at once.
        let stamped_ms = self.timestamp_ms.filter(|ms| *ms > 1);
        // The record was probably refused because its time was ahead of the brokers' clock.
        let commit_ms = commit_timestamp_ms.map(|ms| ms.min(now_ms));
        timestamp_ms.or(stamped_ms).or(commit_ms).unwrap_or(now_ms)
    }
}

impl DeadLetter {
    /// A dead letter for tests.
    #[doc(hidden)]
    pub fn rejected(offset: i64, code: &str, reason: &str) -> Self {
        let headers = vec![
            text(ERROR_CODE_HEADER, code),
            text(ERROR_HEADER, reason),
            text(TABLE_HEADER, "public.outbox"),
            text(LSN_HEADER, "0/1.0"),
            text("id", "7"),
        ];
        let value = Some(b"abc".to_vec());
        let record = StoredRecord { offset, value, headers, ..StoredRecord::default() };
        let Some(letter) = Self::read(record) else { unreachable!("it is a dead letter") };
        letter
    }
}

/// The mark of a record that was sent again.
pub fn retried(at: PartitionOffset) -> Header {
    text(RETRIED_HEADER, at.to_string())
}

/// The dead letter that a receipt covers.
pub fn receipt_of(record: &StoredRecord) -> Option<PartitionOffset> {
    let [(name, Some(at))] = record.headers.as_slice() else { return None };
    let at = str::from_utf8(at).ok()?.parse().ok()?;
    (name == RETRIED_HEADER && record.value.is_none()).then_some(at)
}

fn beginning(bytes: &[u8]) -> Vec<u8> {
    let end = match str::from_utf8(bytes) {
        Ok(text) => text.floor_char_boundary(SUMMARY_BYTES_MAX),
        Err(_) => bytes.len().min(SUMMARY_BYTES_MAX),
    };
    bytes.get(..end).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {

    use super::*;

    const AT: PartitionOffset = PartitionOffset { partition: 3, offset: 17 };

    fn relays() -> Vec<Header> {
        vec![
            text(ERROR_CODE_HEADER, "invalid_topic"),
            text(ERROR_HEADER, "a reason"),
            text(TABLE_HEADER, "public.outbox"),
            text(LSN_HEADER, "0/1.0"),
            text(TOPIC_HEADER, "bad/topic"),
        ]
    }

    fn own() -> Vec<Header> {
        vec![text("id", "7"), (TOPIC_HEADER.to_owned(), None), text("id", b"\xff")]
    }

    fn record(headers: &[Vec<Header>], value: Option<&[u8]>) -> StoredRecord {
        StoredRecord {
            topic: "dead".into(),
            partition: AT.partition,
            offset: AT.offset,
            timestamp_ms: Some(5),
            key: Some(b"k".to_vec()),
            value: value.map(<[u8]>::to_vec),
            headers: headers.concat(),
        }
    }

    fn read(headers: &[Vec<Header>], value: Option<&[u8]>) -> DeadLetter {
        DeadLetter::read(record(headers, value)).unwrap()
    }

    #[test]
    fn the_relays_words_and_the_rows_own_are_told_apart() {
        let letter = read(&[relays(), own()], None);
        assert_eq!((&*letter.code, &*letter.reason), ("invalid_topic", "a reason"));
        assert_eq!(
            (letter.table(), letter.topic.as_deref()),
            (Some("public.outbox"), Some("bad/topic"))
        );
        assert_eq!((letter.id(), &letter.headers), (Some(&b"7"[..]), &own()));
        assert_eq!(letter.source(), Some(&LetterSource::default()), "an earlier version's");
        let (database, slot) = (Some("shop".to_owned()), Some("s".to_owned()));
        let source = LetterSource { database, slot, ..LetterSource::default() };
        let times = vec![text(TIMESTAMP_HEADER, "9"), text(COMMIT_TIMESTAMP_HEADER, "8")];
        let letter = read(&[relays(), source.headers(), times, own()], None);
        assert_eq!((letter.source(), letter.timestamp_again(99)), (Some(&source), 9));
        assert_eq!((letter.id(), &letter.headers), (Some(&b"7"[..]), &own()));
        let bare = read(&[relays()[..2].to_vec(), own()[..1].to_vec()], None);
        assert_eq!((bare.table(), bare.lsn(), &bare.topic), (None, None, &None));
        assert_eq!(bare.headers, own()[..1]);
        for none in [[relays()[1..].to_vec(), own()].concat(), own(), Vec::new()] {
            assert_eq!(DeadLetter::read(record(&[none], None)), None);
        }
    }

    #[test]
    fn what_is_sent_again_is_what_the_consumer_would_have_got_and_a_mark() {
        let letter = read(&[relays(), own()], None);
        let marks = vec![text(LSN_HEADER, "0/1.0"), text(RETRIED_HEADER, "3:17")];
        assert_eq!(letter.headers_again(), [own(), marks].concat());
        assert_eq!((letter.partition_again(), letter.timestamp_again(99)), (None, 5));
        let commit = read(&[relays(), vec![text(COMMIT_TIMESTAMP_HEADER, "70")]], None);
        let timeless = DeadLetter { timestamp_ms: None, ..commit };
        assert_eq!([60, 99].map(|now_ms| timeless.timestamp_again(now_ms)), [60, 70]);
        let chosen = read(&[relays(), vec![text(TIMESTAMP_HEADER, "9")]], None);
        assert_eq!(chosen.timestamp_again(99), 9);
    }

    #[test]
    fn a_receipt_is_known_by_its_only_header_and_its_null_value() {
        let of = |headers, value| receipt_of(&record(&[headers], value));
        assert_eq!(of(vec![retried(AT)], None), Some(AT));
        assert_eq!(of(vec![retried(AT)], Some(b"")), None);
        assert_eq!(of([relays(), own()].concat(), None), None);
        assert_eq!(of(vec![retried(AT), text("id", "7")], None), None);
        assert_eq!(of(vec![text(RETRIED_HEADER, "soon")], None), None);
        assert_eq!(of(Vec::new(), None), None);
    }

    #[test]
    fn a_body_that_was_set_aside_is_known_whatever_the_code() {
        let sha256 = "0".repeat(64);
        let body = |id: &str| format!(r#"{{"id":"{id}","size":2000000,"sha256":"{sha256}"}}"#);
        let is_cut = |value: &str| read(&[relays(), own()], Some(value.as_bytes())).is_cut;
        assert!(is_cut(&body("7")));
        // An application may send such values.
        for own in [body("8"), body("7").replace(':', ": "), "{}".into(), "[".into()] {
            assert!(!is_cut(&own), "{own}");
        }
        assert!(!read(&[relays(), own()], None).is_cut);
        let too_large = vec![text(ERROR_CODE_HEADER, TOO_LARGE_CODE), text(ERROR_HEADER, "")];
        assert!(read(&[too_large], None).is_cut);
    }

    #[test]
    fn a_summary_has_the_beginnings_of_id_and_key_cut_between_characters() {
        let mut letter =
            read(&[relays(), vec![text("number", "é".repeat(200)), own()[0].clone()]], Some(b"v"));
        letter.key = Some(vec![0xff; 300]);
        letter.summarize();
        assert_eq!((letter.value_bytes, &letter.value), (Some(1), &None));
        assert_eq!(
            (letter.id(), letter.key.as_deref()),
            (Some("é".repeat(128).as_bytes()), Some(&[0xff; 256][..]))
        );
        assert_eq!(letter.headers.len(), 1);
        assert_eq!(beginning("éa".repeat(200).as_bytes()), "éa".repeat(85).as_bytes());
        assert_eq!(beginning(b"short"), b"short");
    }
}
