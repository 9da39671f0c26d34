//! The consumer's place in its Kafka group: what it is given to read, and how far it has come.
//!
//! Enters: the brokers' records and rebalances; places that are settled in the database. Leaves:
//! batches of records; offsets. What always holds: an offset is committed only when everything
//! before it in the partition is settled, and only for partitions that have been held since; whoever
//! calls [`Group::tend`] often enough keeps its membership, however long a batch takes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientConfig, ClientContext};

use super::lag::{Ends, unseen};
use super::membership::{Holdings, Partition, Place, Received};
use super::{ConsumerSpec, Counters, InboxError};
use crate::dead_letter::now_ms;
use postrider_kafka::stored;
use postrider_service::log_throttle::LogThrottle;

/// How soon a consumer that waits for records notices that it should stop.
const IDLE: Duration = Duration::from_millis(100);
/// Polls while a batch is at hand: its partitions are paused, so that only events come.
const POLLS_PER_TICK: usize = 16;
/// Bytes fetched ahead, in KiB: thousands of usual records, and bounded for large ones.
const FETCHED_KIB_MAX: &str = "16384";
/// Topics that are not there yet are looked for so often, in ms; the library's own choice is minutes.
const LOOK_EVERY_MS: &str = "5000";
/// How often the brokers are asked how much is left, and after each assignment: rarely, since the
/// consumer stands still for the answer.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// What the brokers say of a topic that is not there, or that they do not show us.
const TOPICS: [RDKafkaErrorCode; 4] = [
    RDKafkaErrorCode::UnknownTopicOrPartition,
    RDKafkaErrorCode::UnknownTopic,
    RDKafkaErrorCode::UnknownPartition,
    RDKafkaErrorCode::TopicAuthorizationFailed,
];

/// A member of the group.
pub(super) struct Group {
    consumer: BaseConsumer<Membership>,
    /// Those that it reads.
    topics: Vec<String>,
    /// Read while a batch was at hand; they come first in the next.
    carried: VecDeque<Received>,
    is_paused: bool,
    throttle: LogThrottle,
    /// When the brokers were asked how much is left, and in which assignment.
    asked: (Instant, u64),
}

/// What is held, and how far it is settled.
struct Membership {
    holdings: Mutex<Holdings>,
    counters: Arc<Counters>,
    /// A rebalance is over. While it lasted the brokers refused offsets, and the library does not tell
    /// of a commit in the background that failed.
    owes: AtomicBool,
}

impl Group {
    /// Joins in the background.
    pub(super) fn join(spec: &ConsumerSpec, counters: Arc<Counters>) -> Result<Self, InboxError> {
        let mut config = ClientConfig::new();
        config.set("queued.max.messages.kbytes", FETCHED_KIB_MAX);
        config.set("topic.metadata.refresh.interval.ms", LOOK_EVERY_MS);
        for (name, value) in &spec.kafka {
            config.set(name, value);
        }
        config
            .set("group.id", &spec.name)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "earliest")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set_log_level(RDKafkaLogLevel::Critical);
        let (holdings, owes) = (Mutex::default(), AtomicBool::default());
        let context = Membership { holdings, counters, owes };
        let consumer: BaseConsumer<Membership> =
            config.create_with_context(context).map_err(InboxError::of_client)?;
        let topics: Vec<&str> = spec.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(InboxError::Client)?;
        Ok(Self {
            consumer,
            topics: spec.topics.clone(),
            carried: VecDeque::new(),
            is_paused: false,
            throttle: LogThrottle::default(),
            asked: (Instant::now(), 0),
        })
    }

    /// What is at hand, up to `max`; waits a moment for the first.
    pub(super) fn collect(&mut self, max: usize) -> Result<Vec<Received>, InboxError> {
        if std::mem::take(&mut self.is_paused) {
            // What is not held any more needs no resuming.
            let _ = self.consumer.assignment().and_then(|held| self.consumer.resume(&held));
        }
        let mut batch: Vec<Received> = Vec::new();
        while batch.len() < max {
            let Some(record) = self.carried.pop_front() else { break };
            batch.push(record);
        }
        while batch.len() < max {
            let limit = if batch.is_empty() { IDLE } else { Duration::ZERO };
            let Some(record) = self.poll(limit)? else { break };
            batch.push(record);
        }
        // A rebalance among these polls may have taken some away.
        let membership = self.consumer.context();
        batch.retain(|record| membership.lock().holds(record));
        if membership.owes.swap(false, Ordering::Relaxed) {
            let settled = membership.lock().settled(|_| true);
            commit(&self.consumer, &settled, CommitMode::Async);
        }
        self.look();
        Ok(batch)
    }

    /// Tells the group that this member lives, while a batch is at hand.
    pub(super) fn tend(&mut self) -> Result<(), InboxError> {
        // Again each time: what a rebalance has brought is not paused.
        let _ = self.consumer.assignment().and_then(|held| self.consumer.pause(&held));
        self.is_paused = true;
        for _ in 0..POLLS_PER_TICK {
            let Some(record) = self.poll(Duration::ZERO)? else { break };
            self.carried.push_back(record);
        }
        let membership = self.consumer.context();
        self.carried.retain(|record| membership.lock().holds(record));
        self.look();
        Ok(())
    }

    /// Notes that these are settled, which begin what is at hand of each partition, and has the
    /// offsets committed in the background.
    pub(super) fn settle(&mut self, places: &[Place]) {
        let membership = self.consumer.context();
        if !places.is_empty() {
            membership.counters.stand(|standing| standing.progress_ms = Some(now_ms()));
        }
        let changed = membership.lock().settle(places);
        commit(&self.consumer, &changed, CommitMode::Async);
    }

    /// Commits what is settled and leaves, so that others take over at once.
    pub(super) fn leave(self) {
        let settled = self.consumer.context().lock().settled(|_| true);
        commit(&self.consumer, &settled, CommitMode::Sync);
    }

    /// Asks the brokers how much is left, if it is time.
    fn look(&mut self) {
        let membership = self.consumer.context();
        let (at, assignment) = self.asked;
        let last = membership.lock().last();
        if at.elapsed() < ASK_EVERY && assignment == last {
            return;
        }
        let (held, unknown) = {
            let holdings = membership.lock();
            (holdings.partitions(), holdings.unknown())
        };
        let ends = Ends::ask(&self.consumer, &self.topics, (held, unknown));
        // From the answer on: brokers that are slow to answer are not asked without a break.
        self.asked = (Instant::now(), last);
        let lag = ends.map(|ends| ends.behind(&mut membership.lock()));
        membership.counters.stand(|standing| {
            standing.are_brokers_away = lag.is_err();
            standing.lag_messages = lag.ok();
        });
    }

    /// The library does not say which topic is missing, so the brokers are asked which of them they show.
    fn tell(&self, error: &KafkaError, text: &str) {
        let is_about_topics = error.rdkafka_error_code().is_some_and(|code| TOPICS.contains(&code));
        let unseen = is_about_topics.then(|| unseen(&self.consumer, &self.topics));
        let Some(topics) = unseen.filter(|unseen| !unseen.is_empty()) else {
            tracing::warn!(error = text, "the brokers or a topic are away; waiting");
            return;
        };
        let group = "grant Read on the topics and on the consumer's group";
        let help = format!(
            "if they are not there: kafka-topics.sh --bootstrap-server <address> --create --topic {}; \
             if they are: {group}",
            topics.first().map_or("<topic>", String::as_str)
        );
        let topics = topics.join(", ");
        tracing::warn!(
            error = text,
            topics,
            help,
            "topics are missing, or may not be read; waiting"
        );
    }

    fn poll(&mut self, limit: Duration) -> Result<Option<Received>, InboxError> {
        match self.consumer.poll(limit) {
            None => Ok(None),
            // The rebalances that this poll brought are done: what comes is of the newest assignment.
            Some(Ok(message)) => Ok(self.consumer.context().lock().receive(stored(&message))),
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                Err(InboxError::Fatal(error))
            }
            Some(Err(error)) => {
                let text = error.to_string();
                if self.throttle.is_due(&text) {
                    self.tell(&error, &text);
                }
                Ok(None)
            }
        }
    }
}

/// Failing leaves the older offset: some messages then come again.
fn commit(
    consumer: &BaseConsumer<Membership>,
    settled: &BTreeMap<Partition, i64>,
    mode: CommitMode,
) {
    let mut offsets = TopicPartitionList::new();
    for ((topic, partition), next) in settled {
        // Refused only for numbers that no broker gives.
        let _ = offsets.add_partition_offset(topic, *partition, Offset::Offset(*next));
    }
    if offsets.count() > 0
        && let Err(error) = consumer.commit(&offsets, mode)
    {
        tracing::debug!(%error, "offsets are not committed; some messages will come again");
    }
}

impl Membership {
    fn lock(&self) -> MutexGuard<'_, Holdings> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_count(&self) {
        let count = u64::try_from(self.lock().count()).unwrap_or(u64::MAX);
        self.counters.stand(|standing| {
            standing.partitions = count;
            standing.has_joined = true;
        });
    }
}

impl ClientContext for Membership {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(?level, facility, message, "the Kafka client says");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the Kafka client has trouble");
    }
}

impl ConsumerContext for Membership {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(gone) = rebalance else { return };
        let gone = partitions(gone);
        // The next owner should begin where this one ended. If the group has given this member up,
        // there is a next owner already.
        if !consumer.assignment_lost() {
            let settled = self.lock().settled(|partition| gone.contains(partition));
            commit(consumer, &settled, CommitMode::Sync);
        }
        self.lock().revoke(&gone);
        self.tell_count();
        tracing::info!(count = gone.len(), "partitions were given up");
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Assign(new) = rebalance else { return };
        // What was taken away while a batch was at hand is still paused when it comes back, and is not
        // among those that the next batch resumes.
        let _ = consumer.resume(new);
        self.owes.store(true, Ordering::Relaxed);
        let new = partitions(new);
        tracing::info!(count = new.len(), "partitions assigned");
        self.lock().assign(new);
        self.tell_count();
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "offsets are not committed; some messages will come again");
        }
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    let elements = list.elements();
    elements.iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}
