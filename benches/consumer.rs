//! How fast the idempotent consumer is, on real Apache Kafka, PostgreSQL and Redis:
//! `cargo bench --bench consumer -- figures`.
//!
//! Messages lie in a topic of three partitions; each has one insert as its effect, beside its marker.
//! Then all are delivered again, without the cache of done messages, and with one that knows them.
//! Leaves one line of JSON. PostgreSQL runs without fsync, as in the other benches, so that what is
//! measured is the consumer and not the disk. Fails when a message has no effect or two. A plain
//! `cargo bench` runs nothing of it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this crate is a bench; what goes wrong should stop it"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use postrider::inbox::{
    CacheSpec, Consumer, ConsumerSnapshot, ConsumerSpec, Effects, Failure, Interest, Message,
    Prepared,
};
use postrider::sandbox::redis::Redis;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use serde_json::json;
use support::kafka::{self, Kafka};
use support::postgres::{self, Database};
use support::topic;
use tokio_postgres::Transaction;
use uuid::Uuid;

/// What has to be said for it to run.
const WORD: &str = "figures";
const MESSAGES: u64 = 100_000;
const TOPIC: &str = "orders";
const PARTITIONS: i32 = 3;
const NAME: &str = "measured";
/// Bytes of text in each payload, about what an order has.
const NOTE_BYTES: usize = 200;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    if arguments.next().is_none_or(|word| word != WORD) {
        return ExitCode::SUCCESS;
    }
    let messages = arguments.next().map_or(MESSAGES, |text| text.parse().unwrap());
    let Some(kafka) = kafka::start(&kafka::Options { measured: true, ..Default::default() }) else {
        return ExitCode::FAILURE;
    };
    let scene = Scene::new(kafka, messages);
    let (first, first_s) = scene.consume(None);
    scene.rewind();
    let (repeats, repeats_s) = scene.consume(None);
    // What is measured is a cache that knows; so it is told first, by one more delivery.
    let redis = Redis::start().unwrap();
    scene.rewind();
    scene.consume(Some(&redis));
    scene.rewind();
    let (cached, cached_s) = scene.consume(Some(&redis));
    let effects = scene.database.sql().value("SELECT count(*) FROM effects");
    let once = effects == messages.to_string() && first.processed == messages;
    let line = json!({
        "messages": messages,
        "per_s": per_s(messages, first_s),
        "repeats_per_s": per_s(messages, repeats_s),
        "repeats_cached_per_s": per_s(messages, cached_s),
        "cache_hit_rate": share(cached.cache_hits, cached.cache_hits + cached.cache_misses),
        "database_statements_saved": repeats.statements.saturating_sub(cached.statements),
        "effects_once": once,
    });
    println!("{line}");
    if once { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

static INSERT: Prepared = Prepared::new("INSERT INTO effects VALUES ($1, $2, $3)");

struct Insert;

impl Effects for Insert {
    fn interest(&self, _: &str) -> Interest {
        Interest::Handle
    }

    async fn apply(&self, tx: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let total = message.payload["total"].as_i64();
        let total = total.ok_or_else(|| Failure::poison("the payload has no total"))?;
        let insert = INSERT.of(tx).await?;
        tx.execute(&insert, &[&message.id, &message.aggregate_id, &total]).await?;
        Ok(())
    }
}

struct Scene {
    kafka: Kafka,
    database: Database,
    messages: u64,
}

impl Scene {
    fn new(kafka: Kafka, messages: u64) -> Self {
        let database = Database::migrated(postgres::installed(), "consumer");
        database.sql().run("CREATE TABLE effects (message_id uuid, account text, total bigint)");
        topic::create(&kafka.bootstrap(), TOPIC, PARTITIONS, &[]);
        let scene = Self { kafka, database, messages };
        scene.send();
        scene
    }

    fn send(&self) {
        let mut config = topic::client(&self.kafka.bootstrap());
        let producer: BaseProducer = config.set("linger.ms", "20").create().unwrap();
        let note = "x".repeat(NOTE_BYTES);
        for number in 0..self.messages {
            let (id, key) = (Uuid::now_v7().to_string(), format!("account-{}", number % 5_000));
            let value = json!({ "total": number, "note": note }).to_string();
            let header = |key, value| Header { key, value: Some(value) };
            let headers = OwnedHeaders::new()
                .insert(header("id", id.as_str()))
                .insert(header("event_type", "OrderCreated"))
                .insert(header("aggregate_type", "order"));
            let mut record = BaseRecord::to(TOPIC).key(&key).payload(&value).headers(headers);
            while let Err((error, back)) = producer.send(record) {
                let full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
                assert_eq!(error, full);
                producer.poll(Duration::from_millis(10));
                record = back;
            }
        }
        producer.flush(Duration::from_mins(1)).unwrap();
    }

    /// Consumes everything; the time runs from the first message that is done to the last, so that
    /// joining the group is not in it.
    fn consume(&self, redis: Option<&Redis>) -> (ConsumerSnapshot, f64) {
        let database = self.database.address().unix_url().parse().unwrap();
        let mut spec = ConsumerSpec::new(NAME, [TOPIC], &self.kafka.bootstrap(), database);
        spec.cache = redis.map(|redis| CacheSpec::new(redis.url()));
        let consumer = Consumer::new(spec, Insert).unwrap();
        let counters = consumer.counters();
        let done = move || {
            let now = counters.snapshot();
            now.processed + now.duplicates
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut begun = None;
        let mut seconds = 0.0;
        let end = async {
            while done() < self.messages {
                if begun.is_none() && done() > 0 {
                    begun = Some((Instant::now(), done()));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let (begun, before) = begun.unwrap();
            // As if the messages before that moment had taken their share of the time.
            seconds = begun.elapsed().as_secs_f64() / share(self.messages - before, self.messages);
        };
        let snapshot = runtime.block_on(consumer.run(end)).unwrap();
        (snapshot, seconds)
    }

    /// Has everything delivered again.
    fn rewind(&self) {
        let mut offsets = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            offsets.add_partition_offset(TOPIC, partition, Offset::Offset(0)).unwrap();
        }
        let mut config = topic::client(&self.kafka.bootstrap());
        let consumer: BaseConsumer = config.set("group.id", NAME).create().unwrap();
        support::wait_for("the group to be empty", || {
            consumer.commit(&offsets, CommitMode::Sync).ok()
        });
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 messages")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 messages")]
fn per_s(messages: u64, seconds: f64) -> f64 {
    (messages as f64 / seconds).round()
}
