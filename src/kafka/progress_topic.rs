//! Reads from its topic the newest progress record of a stream: how far an earlier session
//! delivered.
//!
//! Input: a topic of one partition, and a key. Output: the newest [`Progress`] of that key in a
//! committed transaction, or `None`. Invariant: everything written before the call is considered,
//! and later records delay nothing, although a live stream adds to the topic faster than it is
//! read. A read_committed consumer stops at the first open transaction. The end offset of *all*
//! records is therefore read first, and the reader waits until committed records reach it. Reading
//! starts at the tail, which contains a live stream's newest record.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use super::SinkError;
use super::consumer_events::{ConsumerEvents, NoConsumer, serve};
use super::settings::KafkaSpec;
use super::unawaited::Unawaited;
use postrider_core::progress::{Progress, ProgressSyntax};

const PARTITION: i32 = 0;
/// Time limit for reading; a stream is open.
const LIMIT: Duration = Duration::from_secs(4);
/// Time limit for the first connection.
const MEETING: Duration = Duration::from_secs(1);
const SLICE: Duration = Duration::from_millis(100);
/// Time for which all brokers must deny a topic before it counts as missing. A broker that has just
/// started may not know it yet.
const MISSING_FOR: Duration = Duration::from_secs(1);
/// Records read first. A busy stream writes twice as many per second, two in each transaction, plus
/// its marker.
const TAIL: i64 = 100;

struct Reading {
    newest: Option<Progress>,
    is_whole: bool,
}

pub(super) struct ProgressReader {
    committed: Unawaited<BaseConsumer<ConsumerEvents>>,
    everything: Unawaited<BaseConsumer<ConsumerEvents>>,
    topic: String,
    begun: Instant,
}

impl ProgressReader {
    pub(super) fn open(spec: &KafkaSpec, topic: &str) -> Result<Self, SinkError> {
        let consumer = |isolation: &str| -> Result<BaseConsumer<ConsumerEvents>, SinkError> {
            let mut config: ClientConfig = spec.common_config()?;
            config
                .set("group.id", "postrider-progress")
                .set("enable.auto.commit", "false")
                .set("enable.auto.offset.store", "false")
                .set("enable.partition.eof", "true")
                .set("isolation.level", isolation)
                .set("fetch.wait.max.ms", "10")
                .set("auto.offset.reset", "earliest")
                // With a rack, a lagging nearby follower may answer, and its end would count as the
                // topic's (KIP-392). The leader's end counts.
                .set("client.rack", "");
            let events = ConsumerEvents::quiet(spec.secrets.tokens.clone());
            events.consumer(&config, false).map_err(|error| match error {
                NoConsumer::Client(error) => unread(topic, &error),
                NoConsumer::Login(error) => error.into(),
            })
        };
        let (committed, everything) = (consumer("read_committed")?, consumer("read_uncommitted")?);
        for client in [&everything, &committed] {
            // A request for offsets before the connection waits for a timer of the library.
            if client.fetch_metadata(Some(topic), MEETING).is_err() {
                // The read asks again, and reports the error.
                break;
            }
        }
        Ok(Self {
            committed: committed.into(),
            everything: everything.into(),
            topic: topic.to_owned(),
            begun: Instant::now(),
        })
    }

    pub(super) fn newest(&mut self, key: &str) -> Result<Option<Progress>, SinkError> {
        self.begun = Instant::now();
        let Some((low, end)) = self.bounds(&self.everything)? else { return Ok(None) };
        self.await_commits(end)?;
        let newest = self.newest_before(low, end, key)?;
        if newest.is_some() {
            return Ok(newest);
        }
        // The log cleaner may have removed it because of a newer record.
        match self.bounds(&self.everything)? {
            Some((_, now)) if now > end => {
                self.await_commits(now)?;
                self.settled_between(end, now, key)
            }
            _ => Ok(None),
        }
    }

    /// Waits until every transaction that wrote before this offset has ended.
    fn await_commits(&self, end: i64) -> Result<(), SinkError> {
        while self.bounds(&self.committed)?.is_none_or(|(_, committed)| committed < end) {
            self.in_time("a transaction of an earlier relay, or of another writer, is open in it")?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn newest_before(&self, low: i64, end: i64, key: &str) -> Result<Option<Progress>, SinkError> {
        let mut tail = TAIL;
        loop {
            let start = low.max(end.saturating_sub(tail));
            if start >= end {
                return Ok(None);
            }
            let newest = self.settled_between(start, end, key)?;
            if newest.is_some() || start == low {
                return Ok(newest);
            }
            tail = tail.saturating_mul(10);
        }
    }

    /// The newest progress between these offsets. A reading that ends too early is repeated until
    /// two agree. A new leader may end a fetch too early, but does not report its end before it
    /// knows it (KIP-207).
    fn settled_between(
        &self,
        start: i64,
        end: i64,
        key: &str,
    ) -> Result<Option<Progress>, SinkError> {
        let mut before = self.newest_between(start, end, key)?;
        while !before.is_whole {
            self.bounds(&self.committed)?;
            let again = self.newest_between(start, end, key)?;
            if again.newest == before.newest {
                break;
            }
            before = again;
            self.in_time("two readings of it differ")?;
        }
        Ok(before.newest)
    }

    /// First offset, and the end offset for this reader; `None`: the topic does not exist.
    fn bounds(
        &self,
        consumer: &BaseConsumer<ConsumerEvents>,
    ) -> Result<Option<(i64, i64)>, SinkError> {
        let mut missing_since = None;
        loop {
            match consumer.fetch_watermarks(&self.topic, PARTITION, SLICE * 10) {
                Ok(bounds) => return Ok(Some(bounds)),
                Err(error) => match error.rdkafka_error_code() {
                    Some(
                        Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::UnknownTopic,
                    ) if self.is_missing(consumer) => {
                        let since = *missing_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= MISSING_FOR {
                            return Ok(None);
                        }
                    }
                    _ => {
                        missing_since = None;
                        self.tolerate(&error)?;
                    }
                },
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// True if the brokers do not know the topic. The library also reports this for a partition
    /// without a leader.
    fn is_missing(&self, consumer: &BaseConsumer<ConsumerEvents>) -> bool {
        let Ok(metadata) = consumer.fetch_metadata(Some(&self.topic), SLICE * 10) else {
            return false;
        };
        let found = metadata.topics().iter().find(|found| found.name() == self.topic);
        let error = found.and_then(MetadataTopic::error).map(Code::from);
        error == Some(Code::UnknownTopicOrPartition)
    }

    /// One reading, without records behind `end`.
    fn newest_between(&self, start: i64, end: i64, key: &str) -> Result<Reading, SinkError> {
        self.go_to(start).map_err(|error| unread(&self.topic, &error))?;
        let mut newest = None;
        loop {
            match self.committed.poll(SLICE).transpose() {
                Err(KafkaError::PartitionEOF(_)) => return Ok(Reading { newest, is_whole: false }),
                Err(error) => self.tolerate(&error)?,
                Ok(Some(record)) => {
                    if record.key() == Some(key.as_bytes()) {
                        newest = Some(self.decode(&record)?);
                    }
                    if record.offset() >= end - 1 {
                        return Ok(Reading { newest, is_whole: true });
                    }
                }
                Ok(None) => {}
            }
            self.in_time("the brokers are too slow")?;
        }
    }

    fn decode(&self, record: &BorrowedMessage<'_>) -> Result<Progress, ProgressSyntax> {
        let (topic, offset) = (self.topic.clone(), record.offset());
        Progress::decode(record.payload().unwrap_or_default()).map_err(|reason| ProgressSyntax {
            topic,
            offset,
            reason,
        })
    }

    /// Moves to this offset. A second assignment would take 0.1 s, because the library's broker
    /// thread sleeps that long if nothing is fetched.
    fn go_to(&self, offset: i64) -> KafkaResult<()> {
        let offset = Offset::Offset(offset);
        let is_assigned = self.committed.assignment()?.count() > 0;
        if is_assigned && self.committed.seek(&self.topic, PARTITION, offset, SLICE).is_ok() {
            return Ok(());
        }
        let mut place = TopicPartitionList::new();
        place.add_partition_offset(&self.topic, PARTITION, offset)?;
        self.committed.assign(&place)
    }

    /// Ignores temporary errors; one unreachable broker of several is an error too.
    fn tolerate(&self, error: &KafkaError) -> Result<(), SinkError> {
        if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) {
            return Err(unread(&self.topic, error));
        }
        // Nothing is assigned to this one.
        serve(&self.everything)?;
        match self.everything.context().outage_reason() {
            Some(reason) => self.in_time(&format!("cannot reach Kafka: {reason}")),
            None => self.in_time(&error.to_string()),
        }
    }

    fn in_time(&self, reason: &str) -> Result<(), SinkError> {
        if self.begun.elapsed() < LIMIT {
            return Ok(());
        }
        Err(SinkError::ProgressUnread { topic: self.topic.clone(), reason: reason.to_owned() })
    }
}

fn unread(topic: &str, error: &KafkaError) -> SinkError {
    SinkError::ProgressUnread { topic: topic.to_owned(), reason: error.to_string() }
}

/// The newest progress of this key, for a caller that does not deliver the stream.
pub fn newest_progress(spec: &KafkaSpec, key: &str) -> Result<Option<Progress>, SinkError> {
    ProgressReader::open(spec, &spec.progress_topic)?.newest(key)
}
