//! Who reads the topics all the time: one reader that sees only what is committed in Kafka, and one
//! that sees everything.
//!
//! Output: every record as a few bytes ([`Seen`]). Ends at the records of [`say_goodbye`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::crash::judge::{Moment, Seen};
use crate::load::rows::{self, NO_LANE, NOBODY, PARTITIONS, PLACES, TOPICS};
use support::topic;

/// The key of the last record of every partition.
const GOODBYE: &[u8] = b"goodbye";

/// How long the last records may take to become visible: less than it takes Kafka to end by itself
/// a transaction that was left open (`transaction.timeout.ms`, a minute), so that one is noticed.
const GOODBYE_LIMIT: Duration = Duration::from_secs(45);

/// Where records are read: the topics' names, in the order of their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    pub(crate) bootstrap: String,
    pub(crate) prefix: String,
    /// When the run began, in ms since 1970.
    pub(crate) opened_ms: i64,
}

impl Shelf {
    /// A moment of the run, from ms since 1970.
    pub(crate) fn moment(&self, now_ms: i64) -> Moment {
        Moment::try_from((now_ms - self.opened_ms).max(0)).unwrap()
    }

    /// This moment.
    pub(crate) fn now(&self) -> Moment {
        self.moment(now_ms())
    }

    /// All topics, the dead letters' last.
    pub(crate) fn topics(&self) -> Vec<String> {
        let names = (0..TOPICS).map(|topic| format!("{}t{topic}", self.prefix));
        names.chain([self.dead_letters()]).collect()
    }

    pub(crate) fn dead_letters(&self) -> String {
        format!("{}dead-letters", self.prefix)
    }

    /// Every partition at one offset.
    pub(crate) fn all(&self, offset: Offset) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for topic in self.topics() {
            for partition in 0..i32::try_from(PARTITIONS).unwrap() {
                list.add_partition_offset(&topic, partition, offset).unwrap();
            }
        }
        list
    }

    /// Counts partitions through all topics.
    pub(crate) fn place(&self, topic: &str, partition: i32) -> u8 {
        let name = &topic[self.prefix.len()..];
        let topic = rows::topic(name).map_or(TOPICS, usize::from);
        u8::try_from(topic * PARTITIONS + usize::try_from(partition).unwrap()).unwrap()
    }
}

/// The time in ms since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// A reader with its thread.
pub(crate) struct Reader {
    news: Arc<News>,
    thread: JoinHandle<Vec<Seen>>,
}

/// What a reader tells while it reads.
struct News {
    records: AtomicU64,
    /// The smallest record in bytes: key, value and headers.
    smallest: AtomicU64,
    /// From which number on a row shows that the relay is back; `NOBODY` once one was read.
    awaited: AtomicU32,
    /// The kill that it is to come back from.
    killed: Mutex<Instant>,
    recoveries: Mutex<Vec<Duration>>,
}

impl Reader {
    /// Reads from the beginning. `isolation` as Kafka names it;
    pub(crate) fn start(shelf: &Shelf, isolation: &str) -> Self {
        let mut config = topic::client(&shelf.bootstrap);
        config
            .set("isolation.level", isolation)
            .set("fetch.wait.max.ms", "50")
            // Asks again soon where there was nothing, so that it sees a record when it is there.
            .set("fetch.error.backoff.ms", "50");
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.assign(&shelf.all(Offset::Beginning)).unwrap();
        let news = Arc::new(News {
            records: AtomicU64::new(0),
            smallest: AtomicU64::new(u64::MAX),
            awaited: AtomicU32::new(NOBODY),
            killed: Mutex::new(Instant::now()),
            recoveries: Mutex::default(),
        });
        let thread = std::thread::spawn({
            let (shelf, news) = (shelf.clone(), Arc::clone(&news));
            move || read(&shelf, &consumer, &news)
        });
        Self { news, thread }
    }

    /// Begins to wait for a row that was not written before the kill of this moment; its number is
    /// at least `first`. Gives up waiting for an earlier one.
    pub(crate) fn await_row(&self, first: u32) {
        *self.news.killed.lock().unwrap() = Instant::now();
        self.news.awaited.store(first, Ordering::SeqCst);
    }

    /// Whether that row was read.
    pub(crate) fn has_recovered(&self) -> bool {
        self.news.awaited.load(Ordering::SeqCst) == NOBODY
    }

    /// From each kill to the row that was awaited, where it came before the next kill.
    pub(crate) fn recoveries(&self) -> Vec<Duration> {
        self.news.recoveries.lock().unwrap().clone()
    }

    /// The smallest record so far in bytes: key, value and headers.
    pub(crate) fn smallest(&self) -> u64 {
        self.news.smallest.load(Ordering::SeqCst)
    }

    /// Records that were read.
    pub(crate) fn records(&self) -> u64 {
        self.news.records.load(Ordering::SeqCst)
    }

    /// Everything, once every partition has said goodbye.
    ///
    /// # Panics
    /// When that takes too long: then a transaction was left open in Kafka.
    pub(crate) fn finish(self) -> Vec<Seen> {
        let (mut records, mut deadline) = (self.records(), Instant::now() + GOODBYE_LIMIT);
        while !self.thread.is_finished() {
            if self.records() > records {
                (records, deadline) = (self.records(), Instant::now() + GOODBYE_LIMIT);
            }
            assert!(Instant::now() < deadline, "a partition's last record never became visible");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.thread.join().unwrap()
    }
}

impl News {
    fn note(&self, number: u32, weight: u64) {
        self.records.fetch_add(1, Ordering::SeqCst);
        self.smallest.fetch_min(weight, Ordering::SeqCst);
        let awaited = self.awaited.load(Ordering::SeqCst);
        if number == NOBODY || number < awaited {
            return;
        }
        let killed = *self.killed.lock().unwrap();
        // Unless another kill came in between.
        let sequential = Ordering::SeqCst;
        if self.awaited.compare_exchange(awaited, NOBODY, sequential, sequential).is_ok() {
            self.recoveries.lock().unwrap().push(killed.elapsed());
        }
    }
}

fn weight(message: &BorrowedMessage<'_>) -> u64 {
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    let headers: usize = headers.map(|header| header.key.len() + length(header.value)).sum();
    (length(message.key()) + length(message.payload()) + headers) as u64
}

fn read(shelf: &Shelf, consumer: &BaseConsumer, news: &News) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut farewells = 0;
    while farewells < PLACES {
        let message = match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => message,
            // A broker that is away comes back; what is fatal would last.
            Some(Err(KafkaError::MessageConsumptionFatal(why))) => panic!("a reader: {why}"),
            Some(Err(_)) | None => continue,
        };
        if message.key() == Some(GOODBYE) {
            farewells += 1;
            continue;
        }
        let seen = seen(shelf, &message);
        news.note(seen.number, weight(&message));
        all.push(seen);
    }
    all
}

fn seen(shelf: &Shelf, message: &BorrowedMessage<'_>) -> Seen {
    let place = shelf.place(message.topic(), message.partition());
    let offset = u32::try_from(message.offset()).unwrap();
    let (number, lane) = row(shelf, message).unwrap_or((NOBODY, NO_LANE));
    let stored = shelf.moment(message.timestamp().to_millis().unwrap());
    Seen { number, lane, place, offset, stored }
}

/// Number and lane, where the record is all that a row's record should be.
fn row(shelf: &Shelf, message: &BorrowedMessage<'_>) -> Option<(u32, rows::Lane)> {
    let id = message.headers()?.iter().find(|header| header.key == "id")?.value?;
    let number = rows::number(std::str::from_utf8(id).ok()?)?;
    let is_whole = message.payload()? == rows::payload(number).as_bytes();
    let topic = rows::topic(&message.topic()[shelf.prefix.len()..])?;
    let key = rows::key(std::str::from_utf8(message.key()?).ok()?)?;
    is_whole.then(|| (number, rows::lane(topic, key)))
}

/// Writes the last record of every partition. Nobody may write after it.
pub(crate) fn say_goodbye(shelf: &Shelf) {
    let producer: BaseProducer = topic::client(&shelf.bootstrap).create().unwrap();
    for topic in shelf.topics() {
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            let record = BaseRecord::to(&topic).partition(partition).key(GOODBYE).payload("");
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
    }
    producer.flush(Duration::from_mins(1)).unwrap();
}
