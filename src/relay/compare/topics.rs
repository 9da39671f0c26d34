//! Reads records back from topics, and converts them to entries.
//!
//! Input: topics, and an optional start time. Output: an entry per record of a row and per dead
//! letter of the relay, and the retention of each topic. Invariant: only committed records count,
//! up to the stable offset at the start of a call. The reader does not write, and does not join a
//! consumer group.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::content::{Content, position};
use super::entry::{Entry, IdToken, Kind, flag, hash_of, table_mark};
use super::error::CompareError;
use super::sorter::Sorter;
use crate::meter::{Meter, Total, Unit};
use postrider_core::record::{
    DeadLetter, DeadLetterOrigin, Kinship, LSN_HEADER, LetterSource, ORIGIN_HEADER, RETRIED_HEADER,
};
use postrider_core::route::RowOrigin;
use postrider_kafka::{
    KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, Received, StartOffset, TopicBounds,
    topic_bounds,
};

const CONNECT_LIMIT: Duration = Duration::from_secs(15);

const SILENCE_LIMIT: Duration = Duration::from_mins(1);

/// Maximum single wait, so that a signal is noticed.
const TICK: Duration = Duration::from_millis(200);

/// Limits of librdkafka's read-ahead per partition, instead of 100,000 records and 50 MB. A batch
/// may be compressed to a tenth. Settings in [kafka.properties] take precedence.
const READ_AHEAD: [(&str, &str); 4] = [
    ("queued.min.messages", "2000"),
    ("fetch.queue.backoff.ms", "5"),
    ("fetch.message.max.bytes", "262144"),
    ("fetch.max.bytes", "1048576"),
];

/// Maximum size of a topic that one client reads whole, because the client may queue all its
/// records. A larger topic needs a client per partition, which takes about 0.1 s to start.
const READ_AT_ONCE: u64 = 20_000;

/// Maximum gap before the first record, for transaction markers and aborted records.
const UNSEEN_MAX: u64 = 1_000;

#[derive(Debug, Default)]
pub struct TopicNumbers {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl TopicNumbers {
    pub fn of(&mut self, topic: &str) -> u32 {
        if let Some(number) = self.numbers.get(topic) {
            return *number;
        }
        let Ok(number) = u32::try_from(self.names.len()) else { unreachable!("2^32 topics") };
        self.names.push(topic.to_owned());
        self.numbers.insert(topic.to_owned(), number);
        number
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn name(&self, number: u32) -> Option<&str> {
        self.names.get(usize::try_from(number).ok()?).map(String::as_str)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// Log position; the snapshot contains every row committed before it.
    pub lsn: u64,
    /// Server's clock, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// In a compacted topic, only the newest record per key is guaranteed to exist.
    pub is_compacted: bool,
    /// Milliseconds since the Unix epoch. Older records may have been removed.
    pub since_ms: Option<i64>,
    pub is_open: bool,
}

impl Kept {
    pub fn may_lack(self, time_ms: Option<i64>) -> bool {
        self.is_compacted || self.since_ms.is_some_and(|since| time_ms.is_none_or(|it| it <= since))
    }
}

#[derive(Debug)]
pub struct Topics {
    kafka: KafkaSpec,
    content: Content,
    dead_letters: String,
    source: LetterSource,
    horizon: Horizon,
    /// Milliseconds since the Unix epoch. `None`: all records are read.
    since_ms: Option<i64>,
    next: BTreeMap<(String, i32), u64>,
    kept: BTreeMap<String, Kept>,
    /// End of each partition when it was first read.
    ends: BTreeMap<(String, i32), u64>,
    /// Whether record times are commit times, unless brokers set them.
    commit_times: bool,
    /// Time of the first record read, by topic and partition, if earlier ones exist.
    floors: BTreeMap<(u32, i32), i64>,
    pub without_id: u64,
    pub read: u64,
}

impl Topics {
    /// Without `commit_times`, record times do not show where to start, so `since_ms` is ignored.
    pub fn new(
        kafka: &KafkaSpec,
        content: Content,
        (dead_letters, source): (&str, LetterSource),
        (horizon, since_ms, commit_times): (Horizon, Option<i64>, bool),
    ) -> Self {
        let since_ms = since_ms.filter(|_| commit_times);
        let mut kafka = kafka.clone();
        "postrider-verify".clone_into(&mut kafka.client_id);
        for (name, value) in READ_AHEAD {
            kafka.properties.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
        Self {
            kafka,
            content,
            dead_letters: dead_letters.to_owned(),
            source,
            horizon,
            since_ms,
            next: BTreeMap::new(),
            kept: BTreeMap::new(),
            ends: BTreeMap::new(),
            commit_times,
            floors: BTreeMap::new(),
            without_id: 0,
            read: 0,
        }
    }

    /// Reads records that are new since the last call. `false`: `goes_on` returned `false`.
    pub fn read(
        &mut self,
        numbers: &mut TopicNumbers,
        out: &mut Sorter<Entry>,
        meter: &Meter,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, CompareError> {
        let all = topic_bounds(&self.kafka, numbers.names())?;
        let before = self.read;
        let mut goes_on = |read: u64| {
            meter.set_done(read - before);
            goes_on()
        };
        if let Some(total) = self.unread(&all) {
            meter.begin("reading records", Unit::Records, total);
        }
        for (topic, bounds) in all {
            let is_new = bounds
                .partitions
                .iter()
                .all(|at| !self.next.contains_key(&(topic.clone(), at.partition)));
            if is_new {
                self.kept.insert(topic.clone(), gone(&bounds));
            }
            // The next call reads the records that are not stable yet.
            let is_open = bounds.partitions.iter().any(|at| at.stable < at.end);
            self.kept.entry(topic.clone()).or_default().is_open = is_open;
            let number = numbers.of(&topic);
            for mut part in self.wanted((number, &topic), &bounds, is_new) {
                let spec = ReaderSpec {
                    partition: part.partition,
                    start: part.start,
                    ..ReaderSpec::whole(&[&topic])
                };
                let reader = Reader::open(&self.kafka, spec, CONNECT_LIMIT)?;
                if !self.read_part(reader, &mut part, out, &mut goes_on)? {
                    return Ok(false);
                }
                let seen = part.seen.into_iter();
                self.next.extend(seen.map(|(at, next)| ((topic.clone(), at), next)));
            }
            for at in &bounds.partitions {
                self.ends.entry((topic.clone(), at.partition)).or_insert(at.end);
                let next = self.next.entry((topic.clone(), at.partition)).or_insert(at.first);
                // Transaction markers may follow the last record.
                *next = (*next).max(at.stable);
            }
        }
        Ok(true)
    }

    fn wanted(
        &self,
        (number, topic): (u32, &str),
        bounds: &TopicBounds,
        is_new: bool,
    ) -> Vec<Part> {
        let partitions = bounds.partitions.iter();
        if is_new {
            let start = self.since_ms.map_or(StartOffset::Beginning, StartOffset::Time);
            let rest: BTreeMap<i32, (u64, u64)> = partitions
                .filter(|at| at.first < at.stable)
                .map(|at| (at.partition, (at.first, at.stable)))
                .collect();
            if rest.values().map(|(first, stable)| stable - first).sum::<u64>() <= READ_AT_ONCE {
                let whole = Part::new(number, None, start, rest);
                return Some(whole).filter(|whole| !whole.rest.is_empty()).into_iter().collect();
            }
            let alone = rest.into_iter().map(|(partition, ends)| {
                let rest = BTreeMap::from([(partition, ends)]);
                Part::new(number, Some(partition), start, rest)
            });
            return alone.collect();
        }
        let more = partitions.filter_map(|at| {
            let next =
                self.next.get(&(topic.to_owned(), at.partition)).copied().unwrap_or(at.first);
            let next = next.max(at.first);
            let start = StartOffset::Offset(i64::try_from(next).ok()?);
            let rest = BTreeMap::from([(at.partition, (next, at.stable))]);
            (next < at.stable).then_some(Part::new(number, Some(at.partition), start, rest))
        });
        more.collect()
    }

    /// Number of unread records; `None` if all were read.
    fn unread(&self, all: &BTreeMap<String, TopicBounds>) -> Option<Total> {
        let parts = all.iter().flat_map(|(topic, bounds)| {
            bounds.partitions.iter().map(move |at| {
                let next = self.next.get(&(topic.clone(), at.partition)).copied();
                at.stable.saturating_sub(next.unwrap_or(at.first).max(at.first))
            })
        });
        let records = parts.sum();
        // If reading starts at a time, only a part of the topic is read.
        let is_whole = self.since_ms.is_none() || !self.next.is_empty();
        let total = if is_whole { Total::About(records) } else { Total::Unknown };
        (records > 0).then_some(total)
    }

    fn read_part(
        &mut self,
        mut reader: Reader,
        part: &mut Part,
        out: &mut Sorter<Entry>,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, CompareError> {
        let mut last = Instant::now();
        while !part.rest.is_empty() {
            match reader.next(TICK)? {
                ReaderEvent::Record(record) => {
                    last = Instant::now();
                    self.read += 1;
                    let Ok(offset) = u64::try_from(record.offset()) else {
                        unreachable!("an offset is not negative")
                    };
                    self.note(&record, offset, part);
                    let flags = if self.has_no_order(&record, part) { flag::UNORDERED } else { 0 };
                    if let Some(entry) = self.entry(&record, (part.topic, offset), flags) {
                        out.push(entry)?;
                    }
                }
                ReaderEvent::End => break,
                ReaderEvent::Idle if last.elapsed() < SILENCE_LIMIT => {}
                ReaderEvent::Idle => {
                    let read = usize::try_from(self.read).unwrap_or(usize::MAX);
                    let waited_ms = last.elapsed().as_millis();
                    return Err(ReaderError::Late { read, waited_ms }.into());
                }
            }
            if !goes_on(self.read) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn note(&mut self, record: &Received<'_>, offset: u64, part: &mut Part) {
        let is_first = part.seen.insert(record.partition(), offset + 1).is_none();
        let Some((first, end)) = part.rest.get(&record.partition()).copied() else { return };
        if part.is_the_first() && is_first && (first > 0 || self.since_ms.is_some()) {
            let time_ms = record.timestamp_ms().unwrap_or(i64::MAX);
            self.floors.insert((part.topic, record.partition()), time_ms);
        }
        let is_oldest = self.since_ms.is_none() || offset <= first + UNSEEN_MAX;
        if part.is_the_first() && is_first && first > 0 && is_oldest {
            let kept = self.kept.entry(record.topic().to_owned()).or_default();
            // A time that the row chose, or of a repeated record, does not show which rows were
            // written earlier.
            let is_again = record.headers().any(|(name, _)| name == RETRIED_HEADER);
            let is_told = (self.commit_times && !is_again) || record.has_append_time();
            let time_ms = record.timestamp_ms().filter(|_| is_told).unwrap_or(i64::MAX);
            kept.since_ms = Some(kept.since_ms.map_or(time_ms, |known| known.max(time_ms)));
        }
        if offset + 1 >= end {
            part.rest.remove(&record.partition());
        }
    }

    /// A record without a key, or a possible repeat of an unread record, may follow a later one. If
    /// reading starts in the middle, a repeat has an earlier commit time than the first record
    /// read.
    fn has_no_order(&self, record: &Received<'_>, part: &Part) -> bool {
        if record.key().is_none() {
            return true;
        }
        if self.kept.get(record.topic()).is_some_and(|kept| kept.is_compacted) {
            return true;
        }
        let Some(floor) = self.floors.get(&(part.topic, record.partition())) else { return false };
        let is_commits = self.commit_times && !record.has_append_time();
        !is_commits || record.timestamp_ms().is_none_or(|time| time < *floor)
    }

    fn entry(
        &mut self,
        record: &Received<'_>,
        (topic, offset): (u32, u64),
        mut flags: u8,
    ) -> Option<Entry> {
        if record.topic() == self.dead_letters {
            return self.dead_letter(record, topic, offset);
        }
        let (mut id, mut place) = (None, None);
        for (name, value) in record.headers() {
            match (name, value) {
                (LSN_HEADER, Some(text)) => place = position(text).or(place),
                (RETRIED_HEADER, _) => flags |= flag::AGAIN,
                (ORIGIN_HEADER, Some(origin)) if is_replay(origin) => flags |= flag::AGAIN,
                (name, Some(value)) if name == self.content.id_header => {
                    id = id.or(Some(IdToken::of(value)));
                }
                _ => {}
            }
        }
        let Some(id) = id else {
            self.without_id += 1;
            return None;
        };
        let (rank, index) = place.unwrap_or_default();
        flags |= if place.is_some() { flag::RANKED } else { 0 };
        flags |= self.newer(place, record.timestamp_ms());
        let content =
            self.content.hash(record.topic(), record.key(), record.value(), record.headers());
        let (partition, key) = (record.partition(), hash_of(&record.key()));
        let kind = Kind::Record;
        Some(Entry { id, kind, topic, partition, place: offset, content, key, rank, index, flags })
    }

    /// Ignores receipts, and dead letters of consumers or of another system's stream.
    fn dead_letter(&mut self, record: &Received<'_>, topic: u32, offset: u64) -> Option<Entry> {
        let letter = DeadLetter::read(record.to_stored())?;
        // A replayed row that became a dead letter may have been delivered before.
        if letter.header(ORIGIN_HEADER).is_some_and(|origin| is_replay(origin.as_bytes())) {
            return None;
        }
        let DeadLetterOrigin::Relay { lsn, table, source, .. } = &letter.origin else {
            return None;
        };
        let kinship = self.source.kinship(source);
        if kinship == Kinship::Foreign {
            return None;
        }
        let Some(id) = letter.id().map(IdToken::of) else {
            self.without_id += u64::from(kinship != Kinship::Sibling);
            return None;
        };
        let place = lsn.as_deref().and_then(|lsn| position(lsn.as_bytes()));
        Some(Entry {
            id,
            kind: Kind::DeadLetter,
            topic,
            partition: record.partition(),
            place: offset,
            content: 0,
            key: 0,
            rank: kinship as u64,
            index: table.as_deref().map_or(0, table_mark),
            flags: self.newer(place, record.timestamp_ms()),
        })
    }

    fn newer(&self, place: Option<(u64, u32)>, time_ms: Option<i64>) -> u8 {
        let is_newer = match place {
            Some((lsn, _)) => lsn >= self.horizon.lsn,
            None => time_ms.is_none_or(|time| time >= self.horizon.at_ms),
        };
        if is_newer { flag::NEWER } else { 0 }
    }

    /// Whether an open transaction hides records that existed at the first look.
    pub fn is_behind(&self, topic: &str) -> bool {
        let ends = self.ends.iter().filter(|((name, _), _)| name == topic);
        ends.into_iter().any(|(at, end)| self.next.get(at).is_none_or(|next| next < end))
    }

    pub fn kept(&self, numbers: &TopicNumbers) -> Vec<Kept> {
        let kept = |name: &String| self.kept.get(name).copied().unwrap_or_default();
        numbers.names().iter().map(kept).collect()
    }

    pub fn missing<'n>(&self, numbers: &'n TopicNumbers) -> Vec<&'n str> {
        let names = numbers.names().iter().map(String::as_str);
        names.filter(|name| !self.kept.contains_key(*name)).collect()
    }
}

struct Part {
    topic: u32,
    partition: Option<i32>,
    start: StartOffset,
    rest: BTreeMap<i32, (u64, u64)>,
    seen: BTreeMap<i32, u64>,
}

impl Part {
    const fn is_the_first(&self) -> bool {
        !matches!(self.start, StartOffset::Offset(_))
    }

    const fn new(
        topic: u32,
        partition: Option<i32>,
        start: StartOffset,
        rest: BTreeMap<i32, (u64, u64)>,
    ) -> Self {
        Self { topic, partition, start, rest, seen: BTreeMap::new() }
    }
}

fn is_replay(origin: &[u8]) -> bool {
    RowOrigin::Replay.header().is_some_and(|replay| replay.as_bytes() == origin)
}

/// Initial retention. A partition that lost all records may have held any row.
fn gone(bounds: &TopicBounds) -> Kept {
    let is_empty = bounds.partitions.iter().any(|at| at.first > 0 && at.first == at.end);
    Kept {
        is_compacted: bounds.is_compacted,
        since_ms: is_empty.then_some(i64::MAX),
        is_open: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_kafka::PartitionBounds;

    #[test]
    fn a_partition_from_which_all_was_removed_says_nothing() {
        let bounds = |first, end| TopicBounds {
            partitions: vec![PartitionBounds { partition: 0, first, end, stable: end }],
            is_compacted: false,
        };
        assert_eq!(gone(&bounds(0, 0)).since_ms, None);
        assert_eq!(gone(&bounds(5, 9)).since_ms, None);
        assert_eq!(gone(&bounds(9, 9)).since_ms, Some(i64::MAX));
    }

    #[test]
    fn topics_keep_their_numbers() {
        let mut numbers = TopicNumbers::default();
        assert_eq!(["a", "b", "a"].map(|topic| numbers.of(topic)), [0, 1, 0]);
        assert_eq!((numbers.names().len(), numbers.name(1), numbers.name(2)), (2, Some("b"), None));
    }
}
