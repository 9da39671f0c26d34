//! Duplicates: produces 30 % of all records a second or third time, a little later and in another order.
//!
//! Input: the shop's topics. Output: the same records again, verbatim, in the same partitions. What
//! always holds: duplicates are not duplicated; how often each record was repeated is known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::shop_chaos::consumers;
use crate::shop_chaos::poison;
use crate::shop_chaos::stage::PARTITIONS;
use support::chance::Chance;
use support::topic;

/// How many records are repeated, and how many of those once more.
const REPEATED_PERCENT: u64 = 30;
const TWICE_PERCENT: u64 = 15;

/// How much later, in ms: some within the consumer's batch, some after a rebalance.
const LATER_MS: (u64, u64) = (0, 6_000);

/// How long the broker may take for records in flight: it may have been killed, and take a while to start.
const FLUSH_LIMIT: Duration = Duration::from_mins(3);

/// Records by the ids of their rows.
pub(crate) type Copies = BTreeMap<String, u32>;

/// See the module.
pub(crate) struct Duplicator {
    shared: Arc<Shared>,
    thread: JoinHandle<Copies>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Different records that were read.
    heard: AtomicUsize,
    /// Repeats that are still to come.
    pending: AtomicUsize,
    /// The error that ended it, for diagnosis.
    failure: Mutex<Option<KafkaError>>,
}

impl Duplicator {
    /// Starts consuming.
    pub(crate) fn start(bootstrap: &str, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let repeater = Repeater::new(bootstrap, Arc::clone(&shared), Chance::new(seed));
        Self { shared, thread: std::thread::spawn(move || repeater.repeat()) }
    }

    /// Different records that it has read.
    pub(crate) fn heard(&self) -> usize {
        self.shared.heard.load(Ordering::SeqCst)
    }

    /// Repeats that are still to come.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::SeqCst)
    }

    /// How often each record was repeated. Nothing may be pending.
    pub(crate) fn finish(self) -> Copies {
        self.shared.stop.store(true, Ordering::SeqCst);
        let copies = self.thread.join().unwrap();
        let failure = self.shared.failure.lock().unwrap();
        assert!(failure.is_none(), "the echo was not stored: {failure:?}");
        copies
    }
}

struct Repeater {
    shared: Arc<Shared>,
    chance: Chance,
    consumer: BaseConsumer,
    producer: BaseProducer,
    heard: BTreeSet<String>,
    copies: Copies,
    /// By when, and a number that tells those of one moment apart.
    due: BTreeMap<Reverse<(Instant, u64)>, OwnedMessage>,
    number: u64,
}

impl Repeater {
    fn new(bootstrap: &str, shared: Arc<Shared>, chance: Chance) -> Self {
        let consumer: BaseConsumer =
            topic::client(bootstrap).set("fetch.wait.max.ms", "50").create().unwrap();
        let mut all = TopicPartitionList::new();
        for name in consumers::topics() {
            for partition in 0..PARTITIONS {
                all.add_partition_offset(&name, partition, Offset::Beginning).unwrap();
            }
        }
        consumer.assign(&all).unwrap();
        // Otherwise a repeat by the client itself would be one that nobody knows of.
        let producer = topic::client(bootstrap).set("enable.idempotence", "true").create().unwrap();
        Self {
            shared,
            chance,
            consumer,
            producer,
            heard: BTreeSet::new(),
            copies: Copies::new(),
            due: BTreeMap::new(),
            number: 0,
        }
    }

    fn repeat(mut self) -> Copies {
        while !self.shared.stop.load(Ordering::SeqCst) {
            match self.consumer.poll(Duration::from_millis(5)) {
                Some(Ok(message)) => {
                    self.hear(&message.detach());
                }
                Some(Err(KafkaError::MessageConsumptionFatal(why))) => panic!("the echo: {why}"),
                // A broker that is away comes back.
                Some(Err(_)) | None => {}
            }
            self.send_due();
            self.producer.poll(Duration::ZERO);
        }
        if let Err(error) = self.producer.flush(FLUSH_LIMIT) {
            *self.shared.failure.lock().unwrap() = Some(error);
        }
        self.copies
    }

    fn hear(&mut self, message: &OwnedMessage) {
        let header = |name| {
            let mut headers = message.headers()?.iter();
            headers.find(|header| header.key == name)?.value
        };
        if header(poison::HEADER).is_some() {
            return;
        }
        let id = header("id").and_then(|id| str::from_utf8(id).ok()).unwrap_or_default().to_owned();
        if !self.heard.insert(id.clone()) {
            return;
        }
        if self.chance.percent(REPEATED_PERCENT) {
            let count = if self.chance.percent(TWICE_PERCENT) { 2 } else { 1 };
            self.copies.insert(id, count);
            for _ in 0..count {
                let later = self.chance.between(LATER_MS.0, LATER_MS.1);
                let at = Instant::now() + Duration::from_millis(later);
                self.number += 1;
                self.due.insert(Reverse((at, self.number)), message.clone());
            }
        }
        // In this order: who sees the record as heard sees its repeats as pending.
        self.shared.pending.store(self.due.len(), Ordering::SeqCst);
        self.shared.heard.store(self.heard.len(), Ordering::SeqCst);
    }

    fn send_due(&mut self) {
        let now = Instant::now();
        while let Some(next) = self.due.last_entry()
            && next.key().0.0 <= now
        {
            let message = next.remove();
            let mut record: BaseRecord<'_, [u8], [u8]> =
                BaseRecord::to(message.topic()).partition(message.partition());
            record.key = message.key();
            record.payload = message.payload();
            record.headers = message.headers().cloned();
            self.producer.send(record).map_err(|(error, _)| error).unwrap();
            if self.due.is_empty() {
                // What is pending no longer is in the topic, where the lag shows it.
                self.producer.flush(FLUSH_LIMIT).unwrap();
            }
        }
        self.shared.pending.store(self.due.len(), Ordering::SeqCst);
    }
}
