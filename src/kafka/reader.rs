//! A consumer of whole topics without a consumer group, so that reading leaves no trace in the
//! cluster.
//!
//! Records are in order within each partition. librdkafka reports a partition's end without its
//! topic, so a reader that stops at the end reads topics one by one.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::metadata::MetadataPartition;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Message, Timestamp, TopicPartitionList};

use super::bootstrap_servers::BootstrapServers;
use super::consumer_events::{ConsumerEvents, NoConsumer, serve};
use super::start_offset::{StartOffset, place};
use super::topic_book::to_create;
use super::{KafkaSpec, SettingsError, SinkError};
use postrider_core::record::StoredRecord;
use postrider_credentials::TokenKeeper;

/// Precision of limits.
const SLICE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub struct ReaderSpec {
    /// At least one; topics must exist.
    pub topics: Vec<String>,
    pub partition: Option<i32>,
    pub start: StartOffset,
    pub stop_at_end: bool,
    pub isolation: Isolation,
    /// Milliseconds that a broker may hold an empty answer. The embedded broker waits for the full
    /// time, so latencies there need 1.
    pub fetch_wait_ms: u32,
    /// True if brokers may create a missing topic.
    pub may_create: bool,
}

impl ReaderSpec {
    pub fn whole(topics: &[&str]) -> Self {
        Self { stop_at_end: true, ..Self::following(topics) }
    }

    pub fn following(topics: &[&str]) -> Self {
        Self {
            topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
            partition: None,
            start: StartOffset::Beginning,
            stop_at_end: false,
            isolation: Isolation::Committed,
            fetch_wait_ms: 100,
            may_create: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Includes records outside of transactions.
    #[default]
    Committed,
    Uncommitted,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    NoEntry(SinkError),
    #[error("cannot reach Kafka at {brokers}")]
    Unreachable {
        /// Addresses tried.
        brokers: String,
    },
    #[error("topic `{0}` does not exist")]
    UnknownTopic(String),
    #[error("topic `{topic}` has no partition {partition}")]
    UnknownPartition {
        topic: String,
        /// Partition asked for.
        partition: i32,
    },
    #[error("not authorised to read topic `{0}`")]
    Unauthorised(String),
    /// The offset is no longer kept, or not yet written.
    #[error("the topic does not hold the offset asked for: {0}")]
    OffsetGone(String),
    #[error("read {read} records in {waited_ms} ms without reaching the end")]
    Late {
        read: usize,
        /// Milliseconds waited.
        waited_ms: u128,
    },
    #[error("the Kafka client failed: {0}")]
    Client(String),
}

impl ReaderError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Settings(error) => error.hint(),
            Self::NoEntry(error) => error.hint(),
            Self::Unreachable { .. } => {
                Some("check kafka.brokers (or -b) and that the broker is running".into())
            }
            Self::OffsetGone(_) => Some("use -o beginning".into()),
            Self::Unauthorised(topic) => Some(format!(
                "allow it: kafka-acls.sh --bootstrap-server BROKER --add --allow-principal \
                 User:NAME --operation Read --operation Describe --topic '{topic}'"
            )),
            Self::UnknownTopic(topic) => Some(format!("check its name; {}", to_create(topic))),
            Self::UnknownPartition { .. } => {
                Some("leave the partition out to read all of them".into())
            }
            Self::Late { .. } => Some("check that the brokers are healthy, and try again".into()),
            Self::Client(_) => Some("check that the brokers are running and reachable".into()),
        }
    }
}

#[derive(Debug)]
pub enum ReaderEvent<'a> {
    Record(Received<'a>),
    Idle,
    /// Only with `stop_at_end`.
    End,
}

#[derive(Debug)]
pub struct Received<'a>(BorrowedMessage<'a>);

impl Received<'_> {
    pub fn topic(&self) -> &str {
        self.0.topic()
    }

    pub fn partition(&self) -> i32 {
        self.0.partition()
    }

    pub fn offset(&self) -> i64 {
        self.0.offset()
    }

    /// Milliseconds since the Unix epoch, if present.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.0.timestamp().to_millis()
    }

    pub fn has_append_time(&self) -> bool {
        matches!(self.0.timestamp(), Timestamp::LogAppendTime(_))
    }

    /// Null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    pub fn value(&self) -> Option<&[u8]> {
        self.0.payload()
    }

    /// Name and value, in wire order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let all = self.0.headers().into_iter().flat_map(Headers::iter);
        all.map(|header| (header.key, header.value))
    }

    pub fn to_stored(&self) -> StoredRecord {
        to_stored_record(&self.0)
    }
}

pub fn to_stored_record(message: &BorrowedMessage<'_>) -> StoredRecord {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    let owned = |bytes: &[u8]| bytes.to_vec();
    StoredRecord {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms: message.timestamp().to_millis(),
        key: message.key().map(owned),
        value: message.payload().map(owned),
        headers: headers.map(|header| (header.key.to_owned(), header.value.map(owned))).collect(),
    }
}

pub struct Reader {
    config: ClientConfig,
    tokens: Option<TokenKeeper>,
    brokers: String,
    spec: ReaderSpec,
    limit: Duration,
    /// Each group has its own consumer.
    ahead: VecDeque<Vec<String>>,
    current: Option<Open>,
}

struct Open {
    consumer: BaseConsumer<ConsumerEvents>,
    bootstrap: BootstrapServers,
    unfinished: BTreeSet<i32>,
}

impl Reader {
    pub fn open(kafka: &KafkaSpec, spec: ReaderSpec, limit: Duration) -> Result<Self, ReaderError> {
        let mut config = kafka.common_config()?;
        let isolation = match spec.isolation {
            Isolation::Committed => "read_committed",
            Isolation::Uncommitted => "read_uncommitted",
        };
        config
            // The library requires a group name; nothing is committed.
            .set("group.id", "postrider-reader")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", isolation)
            // A reader that skips records would hide a loss.
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", spec.fetch_wait_ms.to_string())
            .set("fetch.error.backoff.ms", "100")
            // Reads 16 MiB ahead instead of 64.
            .set("queued.max.messages.kbytes", "16384");
        let ahead = if spec.stop_at_end {
            // Ignores followers, which may lag: with a rack a nearby one may answer (KIP-392).
            config.set("client.rack", "");
            spec.topics.iter().map(|topic| vec![topic.clone()]).collect()
        } else {
            VecDeque::from([spec.topics.clone()])
        };
        let brokers = kafka.brokers.join(",");
        let tokens = kafka.secrets.tokens.clone();
        let mut reader = Self { config, tokens, brokers, spec, limit, ahead, current: None };
        reader.turn_page()?;
        Ok(reader)
    }

    /// `wait` has a precision of 0.1 s.
    pub fn next(&mut self, wait: Duration) -> Result<ReaderEvent<'_>, ReaderError> {
        let ended = |open: &Open| open.unfinished.is_empty();
        if self.spec.stop_at_end && self.current.as_ref().is_none_or(ended) && !self.turn_page()? {
            return Ok(ReaderEvent::End);
        }
        let Some(Open { consumer, bootstrap, unfinished }) = &mut self.current else {
            return Ok(ReaderEvent::End);
        };
        let deadline = Instant::now() + wait;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let context = consumer.context();
            context.tell_outage();
            if bootstrap.restore(consumer.client(), context.has_connection()) {
                context.lost();
            }
            match consumer.poll(rest.min(SLICE)) {
                Some(Ok(message)) => return Ok(ReaderEvent::Record(Received(message))),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    unfinished.remove(&partition);
                    if self.spec.stop_at_end && unfinished.is_empty() {
                        return Ok(ReaderEvent::Idle);
                    }
                }
                Some(Err(error)) => {
                    lasting(&error, &self.spec.topics)?;
                    consumer.context().hear(&error);
                }
                None => {}
            }
            if Instant::now() >= deadline {
                return Ok(ReaderEvent::Idle);
            }
        }
    }

    /// At most `most` records.
    pub fn collect(
        &mut self,
        most: usize,
        within: Duration,
    ) -> Result<Vec<StoredRecord>, ReaderError> {
        let begun = Instant::now();
        let mut all = Vec::new();
        while all.len() < most {
            match self.next(SLICE)? {
                ReaderEvent::Record(record) => all.push(record.to_stored()),
                ReaderEvent::End => break,
                ReaderEvent::Idle if begun.elapsed() < within => {}
                ReaderEvent::Idle => {
                    let waited_ms = begun.elapsed().as_millis();
                    return Err(ReaderError::Late { read: all.len(), waited_ms });
                }
            }
        }
        Ok(all)
    }

    fn turn_page(&mut self) -> Result<bool, ReaderError> {
        self.current = None;
        let Some(topics) = self.ahead.pop_front() else { return Ok(false) };
        let events = ConsumerEvents::reading(self.tokens.clone());
        let consumer = events.consumer(&self.config, self.spec.may_create);
        let consumer = consumer.map_err(|error| match error {
            NoConsumer::Client(error) => ReaderError::Client(error.to_string()),
            NoConsumer::Login(error) => error.into(),
        })?;
        let deadline = Instant::now() + self.limit;
        let mut wanted = TopicPartitionList::new();
        for topic in &topics {
            for partition in self.partitions(&consumer, topic, deadline)? {
                wanted.add_partition(topic, partition);
            }
        }
        let wanted = place(&consumer, wanted, self.spec.start, deadline)?;
        let unfinished = wanted.elements().iter().map(TopicPartitionListElem::partition).collect();
        consumer.assign(&wanted).map_err(|error| ReaderError::Client(error.to_string()))?;
        let bootstrap = BootstrapServers::new(self.brokers.clone());
        self.current = Some(Open { consumer, bootstrap, unfinished });
        Ok(true)
    }

    fn partitions(
        &self,
        consumer: &BaseConsumer<ConsumerEvents>,
        topic: &str,
        deadline: Instant,
    ) -> Result<Vec<i32>, ReaderError> {
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let answer = consumer.fetch_metadata(Some(topic), rest.min(10 * SLICE));
            let let_in = serve(consumer);
            consumer.context().tell_outage();
            let_in.map_err(ReaderError::NoEntry)?;
            let unreachable = || ReaderError::Unreachable { brokers: self.brokers.clone() };
            let metadata = match answer {
                Ok(metadata) => metadata,
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(SLICE);
                    continue;
                }
                Err(_) => return Err(unreachable()),
            };
            let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
                return Err(ReaderError::UnknownTopic(topic.to_owned()));
            };
            match found.error().map(Code::from) {
                Some(Code::TopicAuthorizationFailed) => {
                    return Err(ReaderError::Unauthorised(topic.to_owned()));
                }
                Some(Code::LeaderNotAvailable) if Instant::now() < deadline => {
                    std::thread::sleep(SLICE);
                    continue;
                }
                Some(_) => return Err(ReaderError::UnknownTopic(topic.to_owned())),
                None => {}
            }
            let all: Vec<i32> = found.partitions().iter().map(MetadataPartition::id).collect();
            return match self.spec.partition {
                None => Ok(all),
                Some(partition) if all.contains(&partition) => Ok(vec![partition]),
                Some(partition) => {
                    Err(ReaderError::UnknownPartition { topic: topic.to_owned(), partition })
                }
            };
        }
    }
}

fn lasting(error: &KafkaError, topics: &[String]) -> Result<(), ReaderError> {
    let topics = || topics.join("`, `");
    match error.rdkafka_error_code() {
        Some(Code::OffsetOutOfRange | Code::AutoOffsetReset) => {
            Err(ReaderError::OffsetGone(topics()))
        }
        Some(Code::TopicAuthorizationFailed) => Err(ReaderError::Unauthorised(topics())),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
            Err(ReaderError::UnknownTopic(topics()))
        }
        Some(Code::Fatal) => Err(ReaderError::Client(error.to_string())),
        _ => Ok(()),
    }
}
