//! What every test here needs: a topic, a database, messages to send, and a consumer whose effect
//! is an insert without a unique key, so that only the consumer prevents duplicates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use postrider::dead_letter::{DeadLetter, DeadLetters, Filter};
use postrider::inbox::{
    Backoff, CacheSpec, Consumer, ConsumerCounters, ConsumerSnapshot, ConsumerSpec, ConsumerStatus,
    Effects, Failure, InboxError, Interest, Message, Prepared,
};
use postrider::sandbox::postgres::Cluster;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio_postgres::Transaction;
use uuid::Uuid;

use support::kafka::{self, Kafka};
use support::postgres::{self, Database};
use support::task::let_pass;
use support::{topic, unique, wait_for};

pub(crate) const PARTITIONS: i32 = 3;
/// What `TestEffects` takes; everything else it does not know.
pub(crate) const HANDLED: &str = "Counted";
pub(crate) const IGNORED: &str = "Ignored";

/// A topic and a database of the test's own.
pub(crate) struct Scene {
    pub(crate) bootstrap: String,
    pub(crate) topic: String,
    /// The consumer's name, which is also the group's.
    pub(crate) name: String,
    pub(crate) database: Database,
}

/// A record to send, as the relay would.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Draft {
    /// A good message.
    pub(crate) fn new(number: usize) -> Self {
        Self::of(Uuid::now_v7(), HANDLED, number)
    }

    pub(crate) fn of(id: Uuid, event_type: &str, number: usize) -> Self {
        Self {
            headers: vec![("id", id.to_string()), ("event_type", event_type.to_owned())],
            key: format!("account-{}", number % 17),
            value: format!("{{\"number\": {number}}}"),
        }
    }

    pub(crate) fn many(count: usize) -> Vec<Self> {
        (0..count).map(Self::new).collect()
    }
}

impl Scene {
    /// `None` where there is no Kafka; that is said once.
    pub(crate) fn new(stem: &str) -> Option<Self> {
        Some(Self::on(kafka::shared()?, postgres::installed(), stem))
    }

    /// A scene whose topic has one partition.
    pub(crate) fn of_one_partition(stem: &str) -> Option<Self> {
        let scene = Self::new(stem)?;
        let topic = unique(stem);
        topic::create(&scene.bootstrap, &topic, 1, &[]);
        Some(Self { topic, ..scene })
    }

    /// A scene on servers of the test's own.
    pub(crate) fn on(kafka: &Kafka, cluster: &Cluster, stem: &str) -> Self {
        let database = Database::migrated(cluster, stem);
        database.sql().run("CREATE TABLE deeds (message_id uuid, number bigint, place text)");
        let (topic, name) = (unique(stem), unique(&format!("{stem}-consumer")));
        topic::create(&kafka.bootstrap(), &topic, PARTITIONS, &[]);
        Self { bootstrap: kafka.bootstrap(), topic, name, database }
    }

    /// Waits between attempts are short here, and what may come later is not waited for.
    pub(crate) fn spec(&self) -> ConsumerSpec {
        let database = self.database.address().unix_url().parse().unwrap();
        let mut spec =
            ConsumerSpec::new(&self.name, [self.topic.as_str()], &self.bootstrap, database);
        spec.backoff =
            Backoff { first: Duration::from_millis(20), max: Duration::from_millis(200) };
        spec.give_up_after = Duration::ZERO;
        spec
    }

    /// The same with a cache.
    pub(crate) fn spec_with_cache(&self, url: &str) -> ConsumerSpec {
        let mut cache = CacheSpec::new(url);
        // Builds run beside the tests.
        cache.timeout = Duration::from_secs(5);
        let mut spec = self.spec();
        spec.cache = Some(cache);
        spec
    }

    /// Sends them in order and waits until they are stored: those of a partition in one batch, so that a
    /// consumer gets them together.
    pub(crate) fn send(&self, drafts: &[Draft]) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap).set("partitioner", "murmur2_random");
        config.set("linger.ms", "60000");
        let producer: BaseProducer = config.create().unwrap();
        for draft in drafts {
            let headers =
                draft.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                    headers.insert(Header { key, value: Some(value) })
                });
            let record = BaseRecord::to(&self.topic).key(&draft.key).payload(&draft.value);
            producer.send(record.headers(headers)).unwrap();
        }
        producer.flush(Duration::from_secs(30)).unwrap();
    }

    pub(crate) fn start<E: Effects>(&self, effects: E) -> Running {
        Running::start(self.spec(), effects)
    }

    /// Rows that the effects wrote, and how many different messages they are of.
    pub(crate) fn effect_rows(&self) -> (usize, usize) {
        let sql = "SELECT count(*), count(DISTINCT message_id) FROM deeds";
        let rows = self.database.sql().rows(sql);
        let number = |index: usize| rows[0][index].as_ref().unwrap().parse().unwrap();
        (number(0), number(1))
    }

    pub(crate) fn markers(&self) -> usize {
        let sql =
            format!("SELECT count(*) FROM processed_messages WHERE consumer = '{}'", self.name);
        self.database.sql().value(&sql).parse().unwrap()
    }

    /// Waits until that many messages have had their effects, and says that none had them twice.
    pub(crate) fn await_effects(&self, count: usize) {
        wait_for("the effects", || (self.effect_rows().1 >= count).then_some(()));
        assert_eq!(self.effect_rows(), (count, count));
    }

    /// The group's offsets; -1 is none. The group may have members.
    pub(crate) fn committed(&self) -> Vec<i64> {
        let consumer = self.group_client();
        let mut wanted = TopicPartitionList::new();
        wanted.add_partition_range(&self.topic, 0, PARTITIONS - 1);
        let known = consumer.committed_offsets(wanted, Duration::from_secs(20)).unwrap();
        let offsets = known.elements();
        offsets.iter().map(|element| element.offset().to_raw().unwrap().max(-1)).collect()
    }

    /// Waits until the group's offsets are past so many messages: each is handled, whatever has become of it.
    pub(crate) fn await_offsets(&self, count: i64) {
        let known = || self.committed().into_iter().map(|offset| offset.max(0)).sum::<i64>();
        wait_for("the offsets", || (known() == count).then_some(()));
    }

    /// Has everything delivered again. The group must have no members.
    pub(crate) fn rewind(&self) {
        let mut offsets = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            offsets.add_partition_offset(&self.topic, partition, Offset::Offset(0)).unwrap();
        }
        let consumer = self.group_client();
        wait_for("the group to be empty", || consumer.commit(&offsets, CommitMode::Sync).ok());
    }

    fn group_client(&self) -> BaseConsumer {
        topic::client(&self.bootstrap).set("group.id", &self.name).create().unwrap()
    }

    pub(crate) fn dead_letters(&self) -> DeadLetters {
        let settings = vec![("bootstrap.servers".to_owned(), self.bootstrap.clone())];
        DeadLetters::new(&self.name, &settings)
    }

    pub(crate) fn letters(&self) -> Vec<DeadLetter> {
        self.dead_letters().list(&Filter::default()).unwrap()
    }
}

/// Watermarks all sessions of consumers in the database.
pub(crate) fn terminate_sessions(database: &Database) {
    database.sql().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = 'postrider-inbox' AND datname = current_database()",
    );
}

/// A consumer that runs beside the test.
pub(crate) struct Running {
    counters: Arc<ConsumerCounters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<ConsumerSnapshot, InboxError>>>,
}

impl Running {
    pub(crate) fn start<E: Effects>(spec: ConsumerSpec, effects: E) -> Self {
        let consumer = Consumer::new(spec, effects).unwrap();
        let counters = consumer.counters();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(consumer.run(async { drop(stopped.await) }))
        });
        Self { counters, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn now(&self) -> ConsumerSnapshot {
        self.counters.snapshot()
    }

    pub(crate) fn status(&self) -> ConsumerStatus {
        self.counters.status()
    }

    pub(crate) fn await_status(&self, what: &str, is_so: impl Fn(&ConsumerStatus) -> bool) {
        wait_for(what, || Some(self.status()).filter(|status| is_so(status)));
    }

    pub(crate) fn await_counters(
        &self,
        what: &str,
        is_so: impl Fn(&ConsumerSnapshot) -> bool,
    ) -> ConsumerSnapshot {
        wait_for(what, || Some(self.now()).filter(|snapshot| is_so(snapshot)))
    }

    /// Asks it to stop and waits for its end.
    pub(crate) fn stop(mut self) -> ConsumerSnapshot {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    /// Whether it has not ended by itself.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits until it ends by itself.
    pub(crate) fn end(mut self) -> InboxError {
        self.thread.take().unwrap().join().unwrap().unwrap_err()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The outcome of an attempt, by the number of the message and the number of the attempt, from 1.
type OutcomeOf = dyn Fn(i64, u32) -> Outcome + Send + Sync;

/// The outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The row is written.
    Succeed,
    /// The row is written, and then the effect fails.
    Fail,
    /// The row is written, and then the message is called poison.
    Poison,
    /// The row is written, and then something that the effect needs is away.
    Unavailable,
    /// The row is written, and then the session ends.
    CutSession,
    /// The row is written; then a statement fails, and the effect does not say so.
    HideFailure,
    /// The row is written, after this time.
    Sleep(Duration),
    /// The row is written, and then the effect panics.
    Panic,
    /// The row is written, and then this is run.
    Run(&'static str),
    /// The row is written, and the stock of the message's number is decremented.
    TakeStock,
}

static WRITE: Prepared = Prepared::new("INSERT INTO deeds VALUES ($1, $2, $3)");

static TAKE_STOCK: Prepared =
    Prepared::new("UPDATE shelves SET stock = stock - 1 WHERE number = $1");

/// Writes a row for each message.
#[derive(Clone)]
pub(crate) struct TestEffects {
    outcome_of: Arc<OutcomeOf>,
    attempts: Arc<Mutex<HashMap<i64, u32>>>,
    on_commit: Arc<dyn Fn() + Send + Sync>,
}

impl TestEffects {
    pub(crate) fn plain() -> Self {
        Self::with(|_, _| Outcome::Succeed)
    }

    pub(crate) fn with(outcome_of: impl Fn(i64, u32) -> Outcome + Send + Sync + 'static) -> Self {
        Self {
            outcome_of: Arc::new(outcome_of),
            attempts: Arc::default(),
            on_commit: Arc::new(|| {}),
        }
    }

    pub(crate) fn then(mut self, on_commit: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_commit = Arc::new(on_commit);
        self
    }

    /// How often the message with this number was tried.
    pub(crate) fn attempts(&self, number: i64) -> u32 {
        self.attempts.lock().unwrap().get(&number).copied().unwrap_or(0)
    }
}

impl Effects for TestEffects {
    fn interest(&self, event_type: &str) -> Interest {
        match event_type {
            HANDLED => Interest::Handle,
            IGNORED => Interest::Ignore,
            _ => Interest::Unknown,
        }
    }

    async fn apply(&self, tx: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let number = message.payload["number"].as_i64().unwrap();
        let position = format!("{}:{}", message.record.partition, message.record.offset);
        tx.execute(&WRITE.of(tx).await?, &[&message.id, &number, &position]).await?;
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempt = attempts.entry(number).or_default();
            *attempt += 1;
            *attempt
        };
        match (self.outcome_of)(number, attempt) {
            Outcome::Succeed => Ok(()),
            Outcome::Fail => Err(Failure::technical("the bank does not answer")),
            Outcome::Poison => Err(Failure::poison("the account is not in this ledger")),
            Outcome::Unavailable => Err(Failure::unavailable("the bank is closed")),
            Outcome::CutSession => {
                tx.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await?;
                Ok(())
            }
            Outcome::HideFailure => {
                let _ = tx.batch_execute("SELECT 1 / 0").await;
                Ok(())
            }
            Outcome::Sleep(time) => {
                let_pass(time, "a slow effect").await;
                Ok(())
            }
            Outcome::Panic => panic!("account 4711 has no owner"),
            Outcome::Run(sql) => Ok(tx.batch_execute(sql).await?),
            Outcome::TakeStock => {
                tx.execute(&TAKE_STOCK.of(tx).await?, &[&number]).await?;
                Ok(())
            }
        }
    }

    fn committed(&self) {
        (self.on_commit)();
    }
}
