//! Reads a stream's newest committed progress record: how far an earlier session delivered.
//!
//! Invariant: everything written before the call is considered, and later records delay nothing. A
//! read_committed consumer stops at the first open transaction, so the reader waits until committed
//! records reach the end offset of *all* records. Reading starts at the tail, where a live stream's
//! newest record is.

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
const MEETING: Duration = Duration::from_secs(1);
const SLICE: Duration = Duration::from_millis(100);
/// A broker that just started may not know the topic yet.
const MISSING_FOR: Duration = Duration::from_secs(1);
/// Records read first. A busy stream writes twice as many per second, with markers.
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
                // Ignores followers: with a rack a lagging nearby one may answer (KIP-392).
                .set("client.rack", "");
            let events = ConsumerEvents::quiet(spec.secrets.tokens.clone());
            events.consumer(&config, false).map_err(|error| match error {
                NoConsumer::Client(error) => unread(topic, &error),
                NoConsumer::Login(error) => error.into(),
            })
        };
        let (committed, everything) = (consumer("read_committed")?, consumer("read_uncommitted")?);
        for client in [&everything, &committed] {
            // Without a connection a request for offsets waits for a timer of the library.
            if client.fetch_metadata(Some(topic), MEETING).is_err() {
                // The later read reports the error.
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
        // A newer record may have made the log cleaner remove the older one.
        match self.bounds(&self.everything)? {
            Some((_, now)) if now > end => {
                self.await_commits(now)?;
                self.settled_between(end, now, key)
            }
            _ => Ok(None),
        }
    }

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

    /// Repeated until two readings agree. A new leader may end a fetch early, but knows its end
    /// before reporting it (KIP-207).
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

    /// `None`: the topic does not exist.
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

    /// For a partition without a leader the library reports the same error.
    fn is_missing(&self, consumer: &BaseConsumer<ConsumerEvents>) -> bool {
        let Ok(metadata) = consumer.fetch_metadata(Some(&self.topic), SLICE * 10) else {
            return false;
        };
        let found = metadata.topics().iter().find(|found| found.name() == self.topic);
        let error = found.and_then(MetadataTopic::error).map(Code::from);
        error == Some(Code::UnknownTopicOrPartition)
    }

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

    /// A second assignment takes 0.1 s: the library's broker thread sleeps if nothing is fetched.
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

    /// Ignores temporary errors until the time limit.
    fn tolerate(&self, error: &KafkaError) -> Result<(), SinkError> {
        if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) {
            return Err(unread(&self.topic, error));
        }
        // Nothing is assigned to this client.
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

pub fn newest_progress(spec: &KafkaSpec, key: &str) -> Result<Option<Progress>, SinkError> {
    ProgressReader::open(spec, &spec.progress_topic)?.newest(key)
}
