//! Finds the records and dead letters of rows by the header with the row's id.
//!
//! Invariant: only committed records count. An id that is not found in records since the oldest row
//! is searched from the beginning, because rows may choose their records' times. A dead letter with
//! a receipt was sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::failure::CommandFailure;
use postrider_core::record::{LSN_HEADER, ORIGIN_HEADER, PartitionOffset, receipt_of};
use postrider_kafka::{
    KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, Received, StartOffset,
};
use postrider_patterns::dead_letter::DeadLetter;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for records. The end of the topics also ends the wait.
const WAIT: Duration = Duration::from_secs(1);
/// Silence of the brokers, before the end of the topics, after which they do not answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// Margin in milliseconds, because clocks differ and transactions overlap.
const EARLIER_MS: i64 = 10 * 60 * 1_000;

pub(super) struct Search<'a> {
    pub(super) kafka: &'a KafkaSpec,
    pub(super) id_header: &'a str,
    pub(super) dead_letters: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Records {
    pub(super) delivered: Vec<Record>,
    pub(super) letters: Vec<Letter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) place: Place,
    /// Position in the log, as in the header: `commitLSN.index`.
    pub(super) position: Option<String>,
    /// Command that sent it: `backfill`, `repair` or `replay`.
    pub(super) origin: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) place: Place,
    pub(super) code: String,
    pub(super) reason: String,
    /// Topic of the original record.
    pub(super) meant_for: Option<String>,
    pub(super) is_retried: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) timestamp_ms: Option<i64>,
}

pub(super) type Found = BTreeMap<String, Records>;
/// Requested ids by their forms in records.
pub(super) type Wanted = BTreeMap<Vec<u8>, BTreeSet<String>>;

#[derive(Default)]
struct Seen {
    found: Found,
    receipts: BTreeSet<(i32, i64)>,
}

impl Search<'_> {
    pub(super) fn find(
        &self,
        topics: &BTreeSet<String>,
        wanted: &Wanted,
        since_ms: Option<i64>,
    ) -> Result<Found, CommandFailure> {
        let mut seen = Seen::default();
        let start = since_ms.map_or(StartOffset::Beginning, |ms| {
            StartOffset::Time(ms.saturating_sub(EARLIER_MS).max(0))
        });
        self.read(topics, start, wanted, &mut seen)?;
        let mut others = wanted.clone();
        others.retain(|_, asked| asked.iter().any(|id| !seen.found.contains_key(id)));
        if !others.is_empty() && start != StartOffset::Beginning {
            // These topics are read from their beginning, so nothing may be found twice.
            for id in others.values().flatten() {
                seen.found.remove(id);
            }
            self.read(topics, StartOffset::Beginning, &others, &mut seen)?;
        }
        for letter in seen.found.values_mut().flat_map(|records| &mut records.letters) {
            let place = &letter.place;
            letter.is_retried = seen.receipts.contains(&(place.partition, place.offset));
        }
        Ok(seen.found)
    }

    fn read(
        &self,
        topics: &BTreeSet<String>,
        start: StartOffset,
        wanted: &Wanted,
        seen: &mut Seen,
    ) -> Result<(), CommandFailure> {
        if topics.is_empty() {
            return Ok(());
        }
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let spec = ReaderSpec { start, ..ReaderSpec::whole(&topics) };
        let mut reader = Reader::open(self.kafka, spec, CONNECT_LIMIT)?;
        let (mut read, mut last) = (0, Instant::now());
        loop {
            match reader.next(WAIT)? {
                ReaderEvent::Record(record) => {
                    (read, last) = (read + 1, Instant::now());
                    self.note(&record, wanted, seen);
                }
                ReaderEvent::Idle if last.elapsed() < SILENCE_LIMIT => {}
                ReaderEvent::Idle => {
                    let waited_ms = last.elapsed().as_millis();
                    return Err(ReaderError::Late { read, waited_ms }.into());
                }
                ReaderEvent::End => return Ok(()),
            }
        }
    }

    fn note(&self, record: &Received<'_>, wanted: &Wanted, seen: &mut Seen) {
        let is_letter = record.topic() == self.dead_letters;
        if is_letter
            && let Some(PartitionOffset { partition, offset }) = receipt_of(&record.to_stored())
        {
            seen.receipts.insert((partition, offset));
            return;
        }
        let of_row = |(name, value): (&str, Option<&[u8]>)| {
            (name == self.id_header).then_some(value).flatten().and_then(|id| wanted.get(id))
        };
        let Some(ids) = record.headers().find_map(of_row) else { return };
        let place = Place {
            topic: record.topic().to_owned(),
            partition: record.partition(),
            offset: record.offset(),
            timestamp_ms: record.timestamp_ms(),
        };
        if is_letter && let Some(letter) = DeadLetter::read(record.to_stored()) {
            let DeadLetter { code, reason, topic: meant_for, .. } = letter;
            let letter = Letter { place, code, reason, meant_for, is_retried: false };
            for id in ids {
                seen.found.entry(id.clone()).or_default().letters.push(letter.clone());
            }
            return;
        }
        let text = |wanted: &str| {
            let (_, value) = record.headers().find(|(name, _)| *name == wanted)?;
            Some(String::from_utf8_lossy(value?).into_owned())
        };
        let record = Record { place, position: text(LSN_HEADER), origin: text(ORIGIN_HEADER) };
        for id in ids {
            seen.found.entry(id.clone()).or_default().delivered.push(record.clone());
        }
    }
}
