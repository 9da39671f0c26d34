//! Copies delivered records and dead letters for the dashboard.
//!
//! Invariant: while nobody watches ([`DeliveredTap::allow`]) a record costs one relaxed atomic
//! load, and nothing is copied. Only confirmed records are shown. Keys and payloads are copied only
//! if they may be shown.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers as _};

use postrider_core::ledger::Ticket;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::SentDeadLetter;
use postrider_core::route::{ERROR_HEADER, EXPLANATION_HEADERS, TABLE_HEADER, TOPIC_HEADER};
use postrider_core::sink::CommitPlace;

/// About 200 KiB with payloads.
pub const RECORDS_MAX: usize = 200;
/// Bytes copied of a key, a payload or a header: a line on a screen.
const TEXT_BYTES_MAX: usize = 400;
/// About 100 KiB with reasons.
pub const DEAD_LETTERS_MAX: usize = 50;
/// Rows choose topics, so their number is not trustworthy.
const TOPICS_MAX: usize = 1_000;
/// Stored but unconfirmed records: at most one Kafka transaction's.
const WAITING_MAX: usize = RECORDS_MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TapSpec {
    pub shows_payloads: bool,
    /// True if rows come from the log.
    pub has_positions: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TapHeaders {
    pub id: String,
    pub event_type: String,
}

/// A shared tap. The default never copies.
#[derive(Clone, Default)]
pub struct DeliveredTap(Option<Arc<Tap>>);

struct Tap {
    spec: TapSpec,
    headers: Mutex<TapHeaders>,
    allowance: AtomicU32,
    ring: Mutex<Ring>,
    dead_letters: Mutex<VecDeque<TappedDeadLetter>>,
    partitions: Mutex<HashMap<String, usize>>,
}

#[derive(Default)]
struct Ring {
    last: u64,
    records: VecDeque<DeliveredRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub bytes: usize,
    /// The beginning; `None` if it may not be shown.
    pub text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredRecord {
    /// From 1, per process.
    pub number: u64,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub id: Option<String>,
    pub event_type: Option<String>,
    /// `None` if the record has no key.
    pub key: Option<Content>,
    /// `None` is a tombstone.
    pub payload: Option<Content>,
    /// `None` for polled rows.
    pub position: Option<Lsn>,
    /// Microseconds since the Unix epoch.
    pub committed_us: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TappedDeadLetter {
    pub at_us: i64,
    pub code: &'static str,
    /// A sentence without payload.
    pub reason: Option<String>,
    /// `None` if the row has no readable id.
    pub id: Option<String>,
    /// False if a long id was cut.
    pub is_whole_id: bool,
    pub table: Option<String>,
    pub topic: Option<String>,
    /// `None` if the record has no key.
    pub key: Option<Content>,
    /// `None` is a tombstone.
    pub payload: Option<Content>,
}

pub(super) type Waiting = Vec<(Ticket, DeliveredRecord)>;

impl DeliveredTap {
    pub fn new(spec: TapSpec, headers: TapHeaders) -> Self {
        Self(Some(Arc::new(Tap {
            spec,
            headers: Mutex::new(headers),
            allowance: AtomicU32::new(0),
            ring: Mutex::default(),
            dead_letters: Mutex::default(),
            partitions: Mutex::default(),
        })))
    }

    pub fn take_headers(&self, headers: TapHeaders) {
        if let Some(tap) = &self.0 {
            *tap.headers() = headers;
        }
    }

    pub fn shows_payloads(&self) -> bool {
        self.0.as_ref().is_some_and(|tap| tap.spec.shows_payloads)
    }

    /// Replaces earlier allowances.
    pub fn allow(&self, records: u32) {
        if let Some(tap) = &self.0 {
            tap.allowance.store(records, Ordering::Relaxed);
        }
    }

    pub fn close(&self) {
        if let Some(tap) = &self.0 {
            tap.allowance.store(0, Ordering::Relaxed);
            tap.ring().records = VecDeque::new();
        }
    }

    /// Oldest first; all records if the number belongs to an earlier process.
    pub fn after(&self, number: u64) -> Vec<DeliveredRecord> {
        let Some(tap) = &self.0 else { return Vec::new() };
        let ring = tap.ring();
        let number = if number > ring.last { 0 } else { number };
        ring.records.iter().filter(|record| record.number > number).cloned().collect()
    }

    pub fn dead_letter(&self, letter: &SentDeadLetter, at_us: i64) {
        let Some(tap) = &self.0 else { return };
        let letter = tap.spec.tapped(letter, at_us);
        let mut letters = tap.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        if letters.len() == DEAD_LETTERS_MAX {
            letters.pop_front();
        }
        letters.push_back(letter);
    }

    pub fn dead_letters(&self) -> Vec<TappedDeadLetter> {
        let Some(tap) = &self.0 else { return Vec::new() };
        let letters = tap.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.iter().rev().cloned().collect()
    }

    pub(super) fn counted(&self, topic: &str, partitions: usize) {
        let Some(tap) = &self.0 else { return };
        let mut known = tap.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < TOPICS_MAX || known.contains_key(topic) {
            known.insert(topic.to_owned(), partitions);
        }
    }

    pub fn partitions(&self, topic: &str) -> Option<usize> {
        let known = self.0.as_ref()?.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(topic).copied()
    }

    /// Copies a stored record if someone watches.
    #[inline]
    pub(super) fn stored(
        &self,
        ticket: Ticket,
        message: &BorrowedMessage<'_>,
    ) -> Option<DeliveredRecord> {
        let tap = self.0.as_ref()?;
        if tap.allowance.load(Ordering::Relaxed) == 0 {
            return None;
        }
        tap.copy(ticket, message)
    }

    pub(super) fn confirmed(&self, waiting: &mut Waiting, ticket: Ticket, commit: CommitPlace) {
        let Some(tap) = &self.0 else { return };
        let Some(at) = waiting.iter().position(|(waits, _)| *waits == ticket) else { return };
        let (_, mut record) = waiting.remove(at);
        record.position = Some(commit.lsn).filter(|_| tap.spec.has_positions);
        record.committed_us = commit.time_us;
        tap.ring().add(record);
    }
}

impl Tap {
    fn headers(&self) -> MutexGuard<'_, TapHeaders> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn copy(&self, ticket: Ticket, message: &BorrowedMessage<'_>) -> Option<DeliveredRecord> {
        if ticket == postrider_core::transaction::PROGRESS_TICKET {
            return None;
        }
        let take = |left: u32| left.checked_sub(1);
        self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let content = |bytes: &[u8]| self.spec.content(bytes);
        let headers = self.headers();
        Some(DeliveredRecord {
            number: 0,
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            id: header(message, &headers.id),
            event_type: header(message, &headers.event_type),
            key: message.key().map(content),
            payload: message.payload().map(content),
            position: None,
            committed_us: 0,
        })
    }
}

impl TapSpec {
    fn content(self, bytes: &[u8]) -> Content {
        Content { bytes: bytes.len(), text: self.shows_payloads.then(|| beginning(bytes)) }
    }

    fn tapped(self, letter: &SentDeadLetter, at_us: i64) -> TappedDeadLetter {
        let SentDeadLetter { record, code } = letter;
        let named = |name: &str| {
            let found = record.headers.iter().find(|(known, _)| known == name);
            found.and_then(|(_, value)| value.as_deref())
        };
        // The first header of the row itself is its id.
        let is_own = |(name, _): &&(String, _)| !EXPLANATION_HEADERS.contains(&name.as_str());
        let id = record.headers.iter().find(is_own).and_then(|(_, value)| value.as_deref());
        TappedDeadLetter {
            at_us,
            code: code.as_str(),
            reason: named(ERROR_HEADER).map(beginning),
            is_whole_id: id
                .is_none_or(|id| std::str::from_utf8(id).is_ok() && id.len() <= TEXT_BYTES_MAX),
            id: id.map(beginning),
            table: named(TABLE_HEADER).map(beginning),
            topic: named(TOPIC_HEADER).map(beginning),
            key: record.key.as_deref().map(|key| self.content(key)),
            payload: record.value.as_deref().map(|value| self.content(value)),
        }
    }
}

impl Ring {
    fn add(&mut self, record: DeliveredRecord) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.last += 1;
        self.records.push_back(DeliveredRecord { number: self.last, ..record });
    }
}

pub(super) fn wait(waiting: &mut Waiting, ticket: Ticket, record: DeliveredRecord) {
    if waiting.len() < WAITING_MAX {
        waiting.push((ticket, record));
    }
}

fn header(message: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let headers = message.headers()?;
    let found = headers.iter().find(|header| header.key == name)?;
    found.value.map(beginning)
}

/// Other bytes become replacement characters.
fn beginning(bytes: &[u8]) -> String {
    let cut = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < bytes.len() {
        while text.ends_with(char::REPLACEMENT_CHARACTER) {
            text.pop();
        }
        text.push('…');
    }
    text
}

impl PartialEq for DeliveredTap {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for DeliveredTap {}

impl fmt::Debug for DeliveredTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeliveredTap").field(&self.0.as_ref().map(|tap| &tap.spec)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::route::{OwnedRecord, RejectionCode};

    fn record(offset: i64) -> DeliveredRecord {
        DeliveredRecord {
            number: 0,
            topic: "orders".to_owned(),
            partition: 0,
            offset,
            id: None,
            event_type: None,
            key: None,
            payload: None,
            position: None,
            committed_us: 0,
        }
    }

    #[test]
    fn the_last_records_are_kept_and_those_after_a_number_are_told() {
        let spec = TapSpec { has_positions: true, shows_payloads: false };
        let tap = DeliveredTap::new(spec, TapHeaders::default());
        let commit = CommitPlace { lsn: Lsn::new(7), time_us: 8 };
        let (ticket, other) = (Ticket::new(1, 2), Ticket::new(1, 3));
        for offset in 0..205 {
            let mut waiting = Waiting::new();
            wait(&mut waiting, ticket, record(offset));
            tap.confirmed(&mut waiting, other, commit);
            assert_eq!(waiting.len(), 1, "of another record");
            tap.confirmed(&mut waiting, ticket, commit);
            assert!(waiting.is_empty());
        }
        let kept = tap.after(0);
        assert_eq!((kept.len(), kept[0].offset, kept[0].number), (RECORDS_MAX, 5, 6));
        assert_eq!((kept[0].position, kept[0].committed_us), (Some(Lsn::new(7)), 8));
        assert_eq!((tap.after(204).len(), tap.after(205).len()), (1, 0));
        assert_eq!(tap.after(206).len(), RECORDS_MAX, "a number of an earlier process");
        tap.close();
        assert_eq!(tap.after(0), []);
        let never = DeliveredTap::default();
        never.allow(5);
        never.confirmed(&mut vec![(ticket, record(1))], ticket, commit);
        assert_eq!(never.after(0), []);
    }

    fn letter(id: &[u8]) -> SentDeadLetter {
        let header = |name: &str, value: &[u8]| (name.to_owned(), Some(value.to_vec()));
        let record = OwnedRecord {
            topic: "dead".to_owned(),
            partition: None,
            key: Some(b"customer-7".to_vec()),
            value: None,
            headers: vec![
                header(ERROR_HEADER, b"the topic name is not legal"),
                header(TOPIC_HEADER, b"not a topic"),
                header("id", id),
            ],
            timestamp_ms: 0,
        };
        SentDeadLetter { record, code: RejectionCode::InvalidTopic }
    }

    #[test]
    fn the_last_dead_letters_are_kept_without_their_keys() {
        let tap = DeliveredTap::new(TapSpec::default(), TapHeaders::default());
        for at_us in 1..=60 {
            tap.dead_letter(&letter(b"17"), at_us);
        }
        let kept = tap.dead_letters();
        assert_eq!((kept.len(), kept[0].at_us, kept[49].at_us), (DEAD_LETTERS_MAX, 60, 11));
        let TappedDeadLetter { code, id, topic, key, .. } = kept[0].clone();
        assert_eq!((code, id.as_deref()), ("invalid_topic", Some("17")));
        assert_eq!(topic.as_deref(), Some("not a topic"));
        assert_eq!(key, Some(Content { bytes: 10, text: None }));
        let shown = TapSpec { shows_payloads: true, ..TapSpec::default() };
        let key = shown.tapped(&letter(b"17"), 1).key.unwrap();
        assert_eq!(key.text.as_deref(), Some("customer-7"));
        DeliveredTap::default().dead_letter(&letter(b"17"), 1);
        assert_eq!(DeliveredTap::default().dead_letters(), []);
    }

    #[test]
    fn an_id_that_is_cut_or_not_text_is_not_whole() {
        let is_whole = |id: &[u8]| TapSpec::default().tapped(&letter(id), 1).is_whole_id;
        assert!(is_whole(b"17") && !is_whole(&[0xff]) && !is_whole(&[b'x'; TEXT_BYTES_MAX + 1]));
    }

    #[test]
    fn partitions_of_many_topics_do_not_grow_the_tap() {
        let tap = DeliveredTap::new(TapSpec::default(), TapHeaders::default());
        for number in 0..=TOPICS_MAX {
            tap.counted(&number.to_string(), 3);
        }
        tap.counted("0", 4);
        let last = TOPICS_MAX.to_string();
        assert_eq!(
            (tap.partitions("0"), tap.partitions("1"), tap.partitions(&last)),
            (Some(4), Some(3), None)
        );
    }

    #[test]
    fn what_waits_for_its_confirmation_is_bounded() {
        let mut waiting = Waiting::new();
        for offset in 0..1_000 {
            wait(&mut waiting, Ticket::new(1, 2), record(offset));
        }
        assert_eq!(waiting.len(), WAITING_MAX);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(beginning(b"short"), "short");
        let long = "ü".repeat(TEXT_BYTES_MAX);
        assert_eq!(beginning(&long.as_bytes()[1..]).matches('ü').count(), TEXT_BYTES_MAX / 2 - 1);
        assert!(beginning(long.as_bytes()).ends_with("ü…"));
    }
}
