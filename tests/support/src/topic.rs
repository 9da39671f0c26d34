//! Reads topics, and creates them, with a client that knows nothing of the product.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::metadata::MetadataPartition;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::wait::within;

/// How long the end of a transaction is waited for.
const MARKERS_LIMIT: Duration = Duration::from_secs(5);
/// How long a reader may wait for what the brokers say is there.
const READ_LIMIT: Duration = Duration::from_mins(1);

/// How long one question to a broker may take.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// A record as it lies in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// In wire order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp_ms: Option<i64>,
}

impl Stored {
    /// The text of the first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// Settings of every client here.
pub fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("group.id", super::unique("reader"))
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("allow.auto.create.topics", "false")
        .set("reconnect.backoff.max.ms", "500");
    config
}

/// Creates a topic on real Kafka, with `name=value` topic settings, and waits for its leaders.
pub fn create(bootstrap: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    create_all(bootstrap, &[topic.to_owned()], partitions, settings);
}

/// Creates topics at once, and waits for their leaders.
pub fn create_all(bootstrap: &str, topics: &[String], partitions: i32, settings: &[(&str, &str)]) {
    ask_for(bootstrap, topics, partitions, settings);
    let consumer: BaseConsumer = client(bootstrap).create().unwrap();
    for topic in topics {
        let is_led = || ends(&consumer, topic).len() == usize::try_from(partitions).unwrap();
        super::wait_for("the topic", || is_led().then_some(()));
    }
}

/// Creates one until the controller has it; a broker may not know of it yet.
pub fn create_only(bootstrap: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    ask_for(bootstrap, &[topic.to_owned()], partitions, settings);
}

fn ask_for(bootstrap: &str, topics: &[String], partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create().unwrap();
    let wanted = topics.iter().map(|topic| {
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1));
        settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value))
    });
    let wanted: Vec<NewTopic<'_>> = wanted.collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(admin.create_topics(&wanted, &AdminOptions::new()));
    for created in outcome.unwrap() {
        created.unwrap();
    }
}

/// Gives a topic of real Kafka so many partitions in all, and waits for their leaders.
pub fn grow(bootstrap: &str, topic: &str, partitions: usize) {
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let wanted = NewPartitions::new(topic, partitions);
    let outcome = runtime.block_on(admin.create_partitions([&wanted], &AdminOptions::new()));
    for grown in outcome.unwrap() {
        grown.unwrap();
    }
    let consumer: BaseConsumer = client(bootstrap).create().unwrap();
    super::wait_for("the partitions", || {
        (ends(&consumer, topic).len() == partitions).then_some(())
    });
}

/// Replaces the settings of a topic of real Kafka, and waits until its broker has them.
pub fn alter(bootstrap: &str, topic: &str, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wanted = AlterConfig::new(ResourceSpecifier::Topic(topic));
    for (name, value) in settings {
        wanted = wanted.set(name, value);
    }
    let outcome = runtime.block_on(admin.alter_configs([&wanted], &AdminOptions::new()));
    for altered in outcome.unwrap() {
        altered.unwrap();
    }
    super::wait_for("the settings", || {
        let asked = [&ResourceSpecifier::Topic(topic)];
        let told = runtime.block_on(admin.describe_configs(asked, &AdminOptions::new())).ok()?;
        let told = told.into_iter().next()?.ok()?;
        let has = |(name, value): &(&str, &str)| {
            told.get(name).is_some_and(|entry| entry.value.as_deref() == Some(*value))
        };
        settings.iter().all(has).then_some(())
    });
}

/// Removes the records before this offset from every partition of a topic of real Kafka that has as many.
pub fn remove_before(bootstrap: &str, topic: &str, offset: i64) {
    let consumer: BaseConsumer = client(bootstrap).create().unwrap();
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create().unwrap();
    let mut wanted = TopicPartitionList::new();
    for (partition, end) in ends(&consumer, topic) {
        wanted.add_partition_offset(topic, partition, Offset::Offset(offset.min(end))).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin.delete_records(&wanted, &AdminOptions::new())).unwrap();
}

/// Deletes a topic of real Kafka, and waits until it is gone.
pub fn delete(bootstrap: &str, topic: &str) {
    delete_all(bootstrap, &[topic.to_owned()]);
}

/// Deletes topics at once, and waits until they are gone.
pub fn delete_all(bootstrap: &str, topics: &[String]) {
    if topics.is_empty() {
        return;
    }
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let doomed: Vec<&str> = topics.iter().map(String::as_str).collect();
    let outcome = runtime.block_on(admin.delete_topics(&doomed, &AdminOptions::new()));
    for deleted in outcome.unwrap() {
        deleted.unwrap();
    }
    super::wait_for("the topics to go", || {
        let there = names(bootstrap, "");
        topics.iter().all(|topic| !there.contains(topic)).then_some(())
    });
}

/// Names of all topics that begin with `prefix`.
pub fn names(bootstrap: &str, prefix: &str) -> Vec<String> {
    let consumer: BaseConsumer = client(bootstrap).create().unwrap();
    let metadata = patiently(|| consumer.fetch_metadata(None, ASK_LIMIT));
    let topics = metadata.topics().iter().map(|topic| topic.name().to_owned());
    let mut names: Vec<String> = topics.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// Waits until the topics whose names begin with `prefix` hold at least `count` offsets, of which records are a part.
pub fn wait_for_offsets(bootstrap: &str, prefix: &str, count: usize) {
    super::wait_for("records", || {
        // A client of its own per look: one that met a starting broker may know no broker for long.
        let consumer: BaseConsumer = client(bootstrap).create().unwrap();
        let metadata = patiently(|| consumer.fetch_metadata(None, ASK_LIMIT));
        let topics = metadata.topics().iter().filter(|topic| topic.name().starts_with(prefix));
        let partitions = topics.flat_map(|topic| {
            let ids = topic.partitions().iter().map(MetadataPartition::id);
            ids.map(|id| (topic.name(), id))
        });
        let offsets: i64 = partitions
            .map(|(topic, id)| {
                let (low, end) = patiently(|| consumer.fetch_watermarks(topic, id, ASK_LIMIT));
                end - low
            })
            .sum();
        (offsets >= i64::try_from(count).unwrap()).then_some(())
    });
}

/// The end of every partition of a topic: what lies below was stored before this was called. Asks
/// again while a leader is being elected.
pub fn ends(consumer: &BaseConsumer, topic: &str) -> Vec<(i32, i64)> {
    let metadata = patiently(|| consumer.fetch_metadata(Some(topic), ASK_LIMIT));
    let partitions = metadata.topics()[0].partitions().iter().map(|partition| {
        let id = partition.id();
        let (_, end) = patiently(|| consumer.fetch_watermarks(topic, id, ASK_LIMIT));
        (id, end)
    });
    partitions.collect()
}

fn patiently<T>(mut ask: impl FnMut() -> KafkaResult<T>) -> T {
    let mut last = None;
    let answer = within(READ_LIMIT, || ask().map_err(|error| last = Some(error)).ok());
    answer.unwrap_or_else(|| panic!("{last:?}"))
}

/// Everything that lies in the topics now, per partition in offset order; of transactions what was
/// committed. Offsets have gaps where transactions end, so that only the end can be waited for.
///
/// A commit is answered before its markers are written to the partitions: those are waited for, but not
/// for as long as a transaction may stay open.
pub fn read(bootstrap: &str, topics: &[String]) -> Vec<Stored> {
    let committed: BaseConsumer = client(bootstrap).create().unwrap();
    let everything: BaseConsumer =
        client(bootstrap).set("isolation.level", "read_uncommitted").create().unwrap();
    let begun = Instant::now();
    for topic in topics {
        let stored_to = ends(&everything, topic);
        let left = MARKERS_LIMIT.saturating_sub(begun.elapsed());
        let _ = within(left, || (ends(&committed, topic) >= stored_to).then_some(()));
    }
    read_now(bootstrap, topics)
}

/// The same without the transactions whose markers are still to be written.
pub fn read_now(bootstrap: &str, topics: &[String]) -> Vec<Stored> {
    topics.iter().flat_map(|topic| read_one(bootstrap, topic)).collect()
}

fn read_one(bootstrap: &str, topic: &str) -> Vec<Stored> {
    let mut records = Vec::new();
    for_each(bootstrap, topic, |record| records.push(stored(record)));
    records
}

/// Visits what is committed in a topic, to its end as it is now, without holding more than one record.
pub fn for_each(bootstrap: &str, topic: &str, mut visit: impl FnMut(&BorrowedMessage<'_>)) {
    let mut config = client(bootstrap);
    // A broker that has no more says so soon.
    config.set("enable.partition.eof", "true").set("fetch.wait.max.ms", "10");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut assignment = TopicPartitionList::new();
    let mut unfinished = BTreeSet::new();
    for (partition, end) in ends(&consumer, topic) {
        let (low, _) = patiently(|| consumer.fetch_watermarks(topic, partition, ASK_LIMIT));
        if low < end {
            assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
            unfinished.insert(partition);
        }
    }
    consumer.assign(&assignment).unwrap();
    let deadline = Instant::now() + READ_LIMIT;
    while !unfinished.is_empty() {
        assert!(Instant::now() < deadline, "the end of {unfinished:?} of {topic} never came");
        match consumer.poll(Duration::from_millis(200)) {
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                unfinished.remove(&partition);
            }
            // Of a broker that went: the client finds the new leader by itself.
            None
            | Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown,
            ))) => {}
            Some(message) => visit(&message.unwrap()),
        }
    }
}

fn stored(message: &BorrowedMessage<'_>) -> Stored {
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    Stored {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect(),
        timestamp_ms: message.timestamp().to_millis(),
    }
}
