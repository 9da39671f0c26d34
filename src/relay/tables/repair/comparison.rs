//! Compares the rows of tables with the records of their topics, and selects the rows to send by
//! their numbers.
//!
//! Invariant: repeated scans return the rows in the same order, so a row's number identifies it.
//! Memory does not grow with the number of rows.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::delivered::{Outcome, Terms, UnknownReason, judge};
use crate::compare::{
    Columns, CompareError, Content, Entry, Expected, Horizon, Seen, Sorter, SpillError, Spilled,
    TimeColumn, TopicNumbers, Topics, flag,
};
use crate::error::RelayError;
use crate::meter::{Meter, Total, Unit};
use crate::plan::Plan;
use crate::start::translator;
use postrider_config::Rejected;
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::progress::UnknownRows;
use postrider_core::record::LetterSource;
use postrider_postgres::wal::{
    Connection, Positions, RowNumbers, RowNumbersWriter, SessionParams, TableScan, TableStream,
    expected_rows,
};

const TICK: Duration = Duration::from_millis(200);
const ROWS_BETWEEN: u64 = 1_000;
/// All records count.
const NO_HORIZON: Horizon = Horizon { lsn: u64::MAX, at_ms: i64::MAX };
/// Maximum time to wait for an open Kafka transaction. Exceeds the default limit of the brokers.
const OPEN_LIMIT: Duration = Duration::from_secs(70);
/// Tolerance between the clock of a row's time and the clock of its commit.
const CLOCKS_APART_MS: i64 = 10 * 60 * 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RepairCounts {
    pub rows: u64,
    /// Includes dead letters.
    pub delivered: u64,
    pub missing: u64,
    pub unknown: u64,
    pub unknown_because: BTreeMap<UnknownReason, u64>,
    pub pending: u64,
    /// Pending rows that the slot may have passed. Postgres publishes the slot's progress late.
    pub undecided: u64,
    pub left_out: u64,
    /// Rows to send although newer rows of their keys are already in Kafka.
    pub after_newer_rows_of_their_key: u64,
    /// Topics that do not exist. Their rows count as missing.
    pub topics_missing: Vec<String>,
}

pub(super) struct Sides<'a> {
    pub(super) plan: &'a Plan,
    pub(super) letter_source: LetterSource,
    pub(super) params: &'a SessionParams,
    pub(super) folder: &'a Path,
    /// Time of the oldest row, in milliseconds since the Unix epoch, if known.
    pub(super) since_ms: Option<i64>,
    pub(super) unknown: Option<UnknownRows>,
    /// End of re-reading the topics for records that a killed producer had in flight.
    pub(super) arrive_by: Option<Instant>,
    pub(super) meter: &'a Meter,
}

pub(super) struct Compared {
    pub(super) connection: Connection,
    pub(super) counts: RepairCounts,
    pub(super) send: RowNumbers,
}

impl Sides<'_> {
    /// Returns `None` if `goes_on` returns `false`. Rows that the slot has not passed count as
    /// [pending](RepairCounts::pending), unless they are delivered.
    pub(super) fn compare(
        &self,
        mut connection: Connection,
        scans: Vec<TableScan>,
        goes_on: &(dyn Fn() -> bool + '_),
    ) -> Result<Option<Compared>, RelayError> {
        let expected = expected_rows(&scans, &mut connection)?;
        self.meter.begin("reading rows", Unit::Rows, Total::About(expected));
        let config = &self.plan.config;
        let mut numbers = TopicNumbers::default();
        let dead_letters = numbers.of(&config.dead_letters.topic);
        let mut entries = Sorter::new(self.folder)?;
        let mut outcomes = Outcomes::new(self.folder, self.unknown)?;
        let mut stream = TableStream::begin(connection, scans, whole());
        let mut rows = Rows {
            numbers: &mut numbers,
            entries: &mut entries,
            out: &mut outcomes,
            meter: self.meter,
        };
        if !rows.read(&mut stream, &mut self.expected()?, goes_on)? {
            return Ok(None);
        }
        let connection = stream.into_connection();
        let topics = self.read_topics(&mut numbers, &mut entries, goes_on)?;
        let Some(topics) = topics else { return Ok(None) };
        self.meter.begin("comparing", Unit::Rows, Total::Unknown);
        let mut kept = topics.kept(&numbers);
        for (topic, kept) in numbers.names().iter().zip(&mut kept) {
            kept.is_open = topics.is_behind(topic);
        }
        let skips_rejected = config.route.rejected == Rejected::Skip;
        let terms = Terms { topics: kept, dead_letters, skips_rejected };
        judge(&mut entries, &terms, |row, outcome| outcomes.add(row, outcome))?;
        let (mut counts, send) = outcomes.finish()?;
        let is_letters = |topic: &&str| *topic == config.dead_letters.topic;
        let missing = topics.missing(&numbers).into_iter().filter(|topic| !is_letters(topic));
        counts.topics_missing = missing.map(str::to_owned).collect();
        Ok(Some(Compared { connection, counts, send }))
    }

    fn expected(&self) -> Result<Expected, RelayError> {
        let mut plan = self.plan.clone();
        // The pipeline must return rejected rows.
        plan.config.route.rejected = Rejected::Skip;
        let outbox = &plan.config.outbox;
        let others = outbox.aliases.get(&outbox.id).into_iter().flatten();
        let columns = Columns {
            id: [&outbox.id].into_iter().chain(others).cloned().collect(),
            time: Some(TimeColumn { name: outbox.created_at.clone(), is_needed: false }),
            order: None,
        };
        let (pipeline, content) = (plan.pipeline()?, Content::of(&plan.config));
        Ok(Expected::new(pipeline, translator(self.params), content, columns, 0))
    }

    fn read_topics(
        &self,
        numbers: &mut TopicNumbers,
        entries: &mut Sorter<Entry>,
        goes_on: &(dyn Fn() -> bool + '_),
    ) -> Result<Option<Topics>, RelayError> {
        let config = &self.plan.config;
        let since_ms = self.since_ms.map(|ms| (ms - CLOCKS_APART_MS).max(0));
        let from = (NO_HORIZON, since_ms, config.outbox.timestamp.is_none());
        let letters = &config.dead_letters.topic;
        let letters = (letters.as_str(), self.letter_source.clone());
        let mut topics = Topics::new(&self.plan.kafka, Content::of(config), letters, from);
        let deadline = Instant::now() + OPEN_LIMIT;
        loop {
            if !topics.read(numbers, entries, self.meter, goes_on)? || !goes_on() {
                return Ok(None);
            }
            let now = Instant::now();
            let is_open = numbers.names().iter().any(|topic| topics.is_behind(topic));
            let may_arrive = self.arrive_by.is_some_and(|until| now < until);
            if !may_arrive && (!is_open || now >= deadline) {
                return Ok(Some(topics));
            }
            std::thread::sleep(TICK);
        }
    }
}

const fn whole() -> Positions {
    Positions { first: Lsn::new(1), rows: 0, end: Lsn::new(u64::MAX) }
}

struct Rows<'a> {
    numbers: &'a mut TopicNumbers,
    entries: &'a mut Sorter<Entry>,
    out: &'a mut Outcomes,
    meter: &'a Meter,
}

impl Rows<'_> {
    fn read(
        &mut self,
        stream: &mut TableStream,
        expected: &mut Expected,
        goes_on: &(dyn Fn() -> bool + '_),
    ) -> Result<bool, RelayError> {
        let mut next_look = 0;
        while !stream.is_done() {
            match stream.peek()? {
                None => {
                    stream.fill(TICK)?;
                    next_look = 0;
                }
                // The last keepalive settles only positions that are already settled.
                Some(Frame::Keepalive { .. }) => stream.consume(),
                Some(frame) => {
                    let seen = expected.look(frame, self.numbers)?;
                    let marks = stream.marks()?;
                    match seen {
                        Seen::NoRow => {}
                        Seen::Row(entry) => {
                            let flags = entry.flags | marks;
                            self.entries.push(Entry { flags, ..entry })?;
                        }
                        Seen::NoId => self.out.add_without_id(expected.rows, marks)?,
                    }
                    stream.consume();
                }
            }
            if expected.rows >= next_look {
                self.meter.set_done(expected.rows);
                if !goes_on() {
                    return Ok(false);
                }
                next_look = expected.rows + ROWS_BETWEEN;
            }
        }
        Ok(true)
    }
}

struct Outcomes {
    counts: RepairCounts,
    unknown: Option<UnknownRows>,
    send: Sorter<RowNumber>,
    keys: Sorter<KeyedRow>,
    folder: std::path::PathBuf,
}

impl Outcomes {
    fn new(folder: &Path, unknown: Option<UnknownRows>) -> Result<Self, SpillError> {
        let (counts, folder_kept) = (RepairCounts::default(), folder.to_owned());
        let (send, keys) = (Sorter::new(folder)?, Sorter::new(folder)?);
        Ok(Self { counts, unknown, send, keys, folder: folder_kept })
    }

    fn add_without_id(&mut self, number: u64, flags: u8) -> Result<(), RelayError> {
        self.count(flags, Outcome::Unknown(UnknownReason::NoId));
        let is_sent = self.unknown == Some(UnknownRows::Send);
        if is_sent { Ok(self.send.push(RowNumber(number))?) } else { Ok(()) }
    }

    fn add(&mut self, row: &Entry, outcome: Outcome) -> Result<(), RelayError> {
        self.count(row.flags, outcome);
        // A dropped slot cannot deliver the rows that it has not passed, so they are sent too.
        let is_sent = match outcome {
            Outcome::Missing => true,
            Outcome::Unknown(_) => self.unknown == Some(UnknownRows::Send),
            Outcome::Delivered | Outcome::LeftOut => false,
        };
        if is_sent {
            self.send.push(RowNumber(row.place))?;
        }
        if (is_sent || outcome == Outcome::Delivered) && !row.has(flag::UNORDERED) {
            let of = (row.index, row.topic, row.rank);
            self.keys.push(KeyedRow { of, number: Reverse(row.place), is_sent })?;
        }
        Ok(())
    }

    fn count(&mut self, flags: u8, outcome: Outcome) {
        let counts = &mut self.counts;
        counts.rows += 1;
        let is_before = outcome == Outcome::Unknown(UnknownReason::BeforeStream);
        let is_pending = flags & flag::NOT_PASSED != 0 && !is_before;
        match outcome {
            Outcome::Delivered => counts.delivered += 1,
            Outcome::LeftOut => counts.left_out += 1,
            Outcome::Missing | Outcome::Unknown(_) if is_pending => {
                counts.pending += 1;
                counts.undecided += u64::from(flags & flag::UNDECIDED != 0);
            }
            Outcome::Missing => counts.missing += 1,
            Outcome::Unknown(reason) => {
                counts.unknown += 1;
                *counts.unknown_because.entry(reason).or_default() += 1;
            }
        }
    }

    fn finish(mut self) -> Result<(RepairCounts, RowNumbers), RelayError> {
        let mut newer: Option<(u32, u32, u64)> = None;
        let counts = &mut self.counts;
        self.keys.read::<SpillError>(|row| {
            // The newest row of a key comes first.
            if !row.is_sent {
                newer = Some(row.of);
            } else if newer == Some(row.of) {
                counts.after_newer_rows_of_their_key += 1;
            }
            Ok(())
        })?;
        drop(self.keys);
        let failed = |doing| {
            let folder = self.folder.clone();
            move |source| CompareError::from(SpillError::new(&folder, doing, source))
        };
        let file = tempfile::tempfile_in(&self.folder).map_err(failed("create"))?;
        let mut numbers = RowNumbersWriter::new(file);
        let write = failed("write");
        self.send.read::<CompareError>(|RowNumber(number)| numbers.push(number).map_err(&write))?;
        let numbers = numbers.finish().map_err(failed("write"))?;
        Ok((self.counts, numbers))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RowNumber(u64);

impl Spilled for RowNumber {
    const BYTES: usize = 8;

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.0.to_be_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self(u64::from_be_bytes(bytes.try_into().ok()?)))
    }
}

/// Sorts the newest row of a key first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KeyedRow {
    of: (u32, u32, u64),
    number: Reverse<u64>,
    /// `false` if the row is already delivered.
    is_sent: bool,
}

impl Spilled for KeyedRow {
    const BYTES: usize = 25;

    fn write(self, out: &mut Vec<u8>) {
        let (table, topic, key) = self.of;
        out.extend(table.to_be_bytes());
        out.extend(topic.to_be_bytes());
        out.extend(key.to_be_bytes());
        out.extend(self.number.0.to_be_bytes());
        out.push(u8::from(self.is_sent));
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (table, rest) = bytes.split_first_chunk()?;
        let (topic, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let of = (u32::from_be_bytes(*table), u32::from_be_bytes(*topic), u64::from_be_bytes(*key));
        let number = Reverse(u64::from_be_bytes(*number));
        Some(Self { of, number, is_sent: *rest.first()? == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{IdToken, Kind};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_are_read_from_disk_as_they_were_written(table: u32, topic: u32, key: u64, number: u64, is_sent: bool) {
            let row = KeyedRow { of: (table, topic, key), number: Reverse(number), is_sent };
            let mut bytes = Vec::new();
            row.write(&mut bytes);
            prop_assert_eq!(bytes.len(), KeyedRow::BYTES);
            prop_assert_eq!(KeyedRow::read(&bytes), Some(row));
        }
    }

    fn row(place: u64, key: u64, flags: u8) -> Entry {
        let id = IdToken::of(place.to_string().as_bytes());
        let kind = Kind::Row;
        Entry {
            id,
            kind,
            topic: 1,
            partition: -1,
            place,
            content: 0,
            key: 0,
            rank: key,
            index: 3,
            flags,
        }
    }

    fn counted(unknown: Option<UnknownRows>, rows: &[(Entry, Outcome)]) -> RepairCounts {
        let mut outcomes = Outcomes::new(&std::env::temp_dir(), unknown).unwrap();
        for (row, outcome) in rows {
            outcomes.add(row, *outcome).unwrap();
        }
        outcomes.finish().unwrap().0
    }

    #[test]
    fn rows_that_come_after_newer_ones_of_their_key_are_counted() {
        let (sent, there) = (Outcome::Missing, Outcome::Delivered);
        let maybe = Outcome::Unknown(UnknownReason::IdShared);
        let rows = [
            (row(1, 7, 0), sent),
            (row(2, 8, 0), sent),
            (row(3, 7, 0), maybe),
            (row(4, 7, 0), there),
            (row(5, 7, 0), sent),
            (row(6, 9, flag::UNORDERED), sent),
            (row(7, 9, flag::UNORDERED), there),
        ];
        let late = |unknown| counted(unknown, &rows).after_newer_rows_of_their_key;
        assert_eq!((late(None), late(Some(UnknownRows::Send))), (1, 2));
    }

    #[test]
    fn rows_that_the_slot_will_deliver_are_pending() {
        let rows = [
            (row(1, 7, flag::NOT_PASSED | flag::UNDECIDED), Outcome::Missing),
            (row(2, 7, flag::NOT_PASSED), Outcome::Delivered),
            (row(3, 7, flag::NOT_PASSED), Outcome::Unknown(UnknownReason::Removed)),
            (row(4, 7, 0), Outcome::Unknown(UnknownReason::Removed)),
            (row(5, 7, 0), Outcome::LeftOut),
            (
                row(6, 7, flag::NOT_PASSED | flag::BEFORE),
                Outcome::Unknown(UnknownReason::BeforeStream),
            ),
        ];
        let counts = counted(None, &rows);
        let RepairCounts { rows, delivered, missing, unknown, pending, left_out, .. } = counts;
        assert_eq!((rows, delivered, missing, unknown, pending, left_out), (6, 1, 0, 2, 2, 1));
        assert_eq!(counts.undecided, 1, "the other one is of a stream that has left out none");
    }
}
