//! Finds the records and dead letters of rows by the header with the row's id.
//!
//! Input: topics that exist, ids, the time before which none of their rows was written. Output: what was found of each
//! id. Invariant: only committed records count; an id that is not found from that time on is looked for from the
//! beginning of every topic, since records may carry times of the rows' own choice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::failure::CommandFailure;
use postrider_core::record::{LSN_HEADER, ORIGIN_HEADER};
use postrider_kafka::{KafkaSpec, Reader, ReaderEvent, ReaderSpec, Received, StartOffset};
use postrider_patterns::dead_letter::DeadLetter;

/// How long the brokers may take to be found.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a wait for records is; the end of the topics ends it.
const WAIT: Duration = Duration::from_secs(1);
/// Clocks differ, and a transaction may commit before another one that began later.
const EARLIER_MS: i64 = 10 * 60 * 1_000;

/// Where to look.
pub(super) struct Search<'a> {
    pub(super) kafka: &'a KafkaSpec,
    /// The header with the row's id.
    pub(super) id_header: &'a str,
    pub(super) dead_letters: &'a str,
}

/// What was found of one id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Records {
    pub(super) delivered: Vec<Record>,
    pub(super) letters: Vec<Letter>,
}

/// A record in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) place: Place,
    /// In the log, as the header has it: `commitLSN.index`.
    pub(super) position: Option<String>,
    /// Why it was sent from the table: `backfill`, `repair`, `replay`.
    pub(super) origin: Option<String>,
}

/// A dead letter, the relay's or a consumer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) place: Place,
    pub(super) code: String,
    pub(super) reason: String,
}

/// Where something lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) timestamp_ms: Option<i64>,
}

/// What was found, by id.
pub(super) type Found = BTreeMap<String, Records>;

impl Search<'_> {
    /// Reads the topics.
    pub(super) fn find(
        &self,
        topics: &BTreeSet<String>,
        ids: &[String],
        since_ms: Option<i64>,
    ) -> Result<Found, CommandFailure> {
        let mut wanted: BTreeMap<Vec<u8>, &String> =
            ids.iter().map(|id| (id.to_ascii_lowercase().into_bytes(), id)).collect();
        let mut found = Found::new();
        let start = since_ms.map_or(StartOffset::Beginning, |ms| {
            StartOffset::Time(ms.saturating_sub(EARLIER_MS).max(0))
        });
        self.read(topics, start, &wanted, &mut found)?;
        wanted.retain(|_, id| !found.contains_key(*id));
        if !wanted.is_empty() && start != StartOffset::Beginning {
            self.read(topics, StartOffset::Beginning, &wanted, &mut found)?;
        }
        Ok(found)
    }

    fn read(
        &self,
        topics: &BTreeSet<String>,
        start: StartOffset,
        wanted: &BTreeMap<Vec<u8>, &String>,
        found: &mut Found,
    ) -> Result<(), CommandFailure> {
        if topics.is_empty() {
            return Ok(());
        }
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let spec = ReaderSpec { start, ..ReaderSpec::whole(&topics) };
        let mut reader = Reader::open(self.kafka, spec, CONNECT_LIMIT)?;
        loop {
            match reader.next(WAIT)? {
                ReaderEvent::Record(record) => self.note(&record, wanted, found),
                ReaderEvent::Idle => {}
                ReaderEvent::End => return Ok(()),
            }
        }
    }

    fn note(&self, record: &Received<'_>, wanted: &BTreeMap<Vec<u8>, &String>, found: &mut Found) {
        let of_row = |(name, value): (&str, Option<&[u8]>)| {
            (name == self.id_header).then_some(value).flatten().map(<[u8]>::to_ascii_lowercase)
        };
        let mut ids = record.headers().filter_map(of_row);
        let Some(id) = ids.find_map(|id| wanted.get(&id)) else { return };
        let place = Place {
            topic: record.topic().to_owned(),
            partition: record.partition(),
            offset: record.offset(),
            timestamp_ms: record.timestamp_ms(),
        };
        let of_id = found.entry((*id).clone()).or_default();
        if record.topic() == self.dead_letters
            && let Some(DeadLetter { code, reason, .. }) = DeadLetter::read(record.to_stored())
        {
            of_id.letters.push(Letter { place, code, reason });
            return;
        }
        let text = |wanted: &str| {
            let (_, value) = record.headers().find(|(name, _)| *name == wanted)?;
            Some(String::from_utf8_lossy(value?).into_owned())
        };
        let (position, origin) = (text(LSN_HEADER), text(ORIGIN_HEADER));
        of_id.delivered.push(Record { place, position, origin });
    }
}
