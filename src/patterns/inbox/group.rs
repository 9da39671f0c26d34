//! Membership in the Kafka consumer group: fetches batches, follows rebalances, commits offsets, updates
//! the lag.
//!
//! Input: settings of the consumer; positions of handled records. Output: batches of records; committed
//! offsets; warnings about topics that are missing or may not be read. Invariant: an offset is committed
//! only when everything before it in the partition is handled, and only for partitions that have been
//! assigned since; calling `Group::poll_paused` often enough keeps the membership, however long a batch
//! takes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientConfig, ClientContext};

use super::assignments::{Assignments, Partition, ReceivedRecord, RecordPosition};
use super::lag::{Watermarks, missing_topics};
use super::{ConsumerCounters, ConsumerSpec, InboxError};
use crate::dead_letter::now_ms;
use postrider_kafka::to_stored_record;
use postrider_service::log_throttle::LogThrottle;

/// How soon a consumer that waits for records notices that it should stop.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// Polls while a batch is being processed: its partitions are paused, so that only events arrive.
const POLLS_PER_TICK: usize = 16;
/// Prefetched bytes, in KiB: thousands of usual records, and bounded for large ones.
const FETCHED_KIB_MAX: &str = "16384";
/// How often metadata is refreshed, in ms, to find topics that are created later; the default is minutes.
const METADATA_REFRESH_MS: &str = "5000";
/// How often the lag is requested, besides after each assignment: rarely, since the consumer blocks for it.
const LAG_INTERVAL: Duration = Duration::from_secs(5);

/// Errors for a topic that does not exist, or that may not be described.
const TOPIC_ERRORS: [RDKafkaErrorCode; 4] = [
    RDKafkaErrorCode::UnknownTopicOrPartition,
    RDKafkaErrorCode::UnknownTopic,
    RDKafkaErrorCode::UnknownPartition,
    RDKafkaErrorCode::TopicAuthorizationFailed,
];

/// A member of the group.
pub(super) struct Group {
    consumer: Arc<BaseConsumer<GroupContext>>,
    /// Those that it reads.
    topics: Vec<String>,
    /// Received while a batch was being processed; they come first in the next.
    buffered: VecDeque<ReceivedRecord>,
    is_paused: bool,
    throttle: LogThrottle,
    /// When the lag was last requested, and in which epoch.
    asked: (Instant, u64),
}

/// Tells whether records are still this member's.
pub(super) struct Membership {
    consumer: Arc<BaseConsumer<GroupContext>>,
}

/// The assignment, shared with librdkafka's callbacks.
struct GroupContext {
    assignments: Mutex<Assignments>,
    counters: Arc<ConsumerCounters>,
    /// A rebalance has ended. During it the brokers refuse offset commits, and librdkafka does not report a
    /// failed asynchronous commit.
    commit_due: AtomicBool,
}

impl Group {
    /// Joins in the background.
    pub(super) fn join(
        spec: &ConsumerSpec,
        counters: Arc<ConsumerCounters>,
    ) -> Result<Self, InboxError> {
        let mut config = ClientConfig::new();
        config.set("queued.max.messages.kbytes", FETCHED_KIB_MAX);
        config.set("topic.metadata.refresh.interval.ms", METADATA_REFRESH_MS);
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
        let (assignments, commit_due) = (Mutex::default(), AtomicBool::default());
        let context = GroupContext { assignments, counters, commit_due };
        let consumer: BaseConsumer<GroupContext> =
            config.create_with_context(context).map_err(InboxError::of_client)?;
        let topics: Vec<&str> = spec.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(InboxError::Client)?;
        Ok(Self {
            consumer: Arc::new(consumer),
            topics: spec.topics.clone(),
            buffered: VecDeque::new(),
            is_paused: false,
            throttle: LogThrottle::default(),
            asked: (Instant::now(), 0),
        })
    }

    /// The next batch, up to `max` records; waits a moment for the first.
    pub(super) fn collect(&mut self, max: usize) -> Result<Vec<ReceivedRecord>, InboxError> {
        if std::mem::take(&mut self.is_paused) {
            // A revoked partition needs no resuming.
            let _ = self.consumer.assignment().and_then(|held| self.consumer.resume(&held));
        }
        let mut batch: Vec<ReceivedRecord> = Vec::new();
        while batch.len() < max {
            let Some(record) = self.buffered.pop_front() else { break };
            batch.push(record);
        }
        while batch.len() < max {
            let limit = if batch.is_empty() { POLL_TIMEOUT } else { Duration::ZERO };
            let Some(record) = self.poll(limit)? else { break };
            batch.push(record);
        }
        // A rebalance during these polls may have revoked some.
        let context = self.consumer.context();
        batch.retain(|record| context.lock().is_current(&record.position()));
        if context.commit_due.swap(false, Ordering::Relaxed) {
            let handled = context.lock().handled(|_| true);
            commit(&self.consumer, &handled, CommitMode::Async);
        }
        self.look();
        Ok(batch)
    }

    /// Polls while a batch is being processed, to stay within `max.poll.interval.ms`.
    pub(super) fn poll_paused(&mut self) -> Result<(), InboxError> {
        // Each time again: newly assigned partitions are not paused.
        let _ = self.consumer.assignment().and_then(|held| self.consumer.pause(&held));
        self.is_paused = true;
        for _ in 0..POLLS_PER_TICK {
            let Some(record) = self.poll(Duration::ZERO)? else { break };
            self.buffered.push_back(record);
        }
        let context = self.consumer.context();
        self.buffered.retain(|record| context.lock().is_current(&record.position()));
        self.look();
        Ok(())
    }

    /// For questions while a batch is being processed.
    pub(super) fn membership(&self) -> Membership {
        Membership { consumer: Arc::clone(&self.consumer) }
    }

    /// Notes that these are handled, and commits the offsets asynchronously.
    pub(super) fn mark_handled(&mut self, positions: &[RecordPosition]) {
        let context = self.consumer.context();
        if !positions.is_empty() {
            context.counters.update_status(|status| status.progress_ms = Some(now_ms()));
        }
        let changed = context.lock().mark_handled(positions);
        commit(&self.consumer, &changed, CommitMode::Async);
    }

    /// Commits the offsets and leaves, so that the partitions are reassigned at once.
    pub(super) fn leave(self) {
        let handled = self.consumer.context().lock().handled(|_| true);
        commit(&self.consumer, &handled, CommitMode::Sync);
    }

    /// Updates the lag, if it is time.
    fn look(&mut self) {
        let context = self.consumer.context();
        let (at, assignment) = self.asked;
        let last = context.lock().epoch();
        if at.elapsed() < LAG_INTERVAL && assignment == last {
            return;
        }
        let (held, unknown) = {
            let assignments = context.lock();
            (assignments.partitions(), assignments.unknown())
        };
        let ends = Watermarks::ask(&self.consumer, &self.topics, (held, unknown));
        // Counted from the answer: slow brokers are not asked without a break.
        self.asked = (Instant::now(), last);
        let lag = ends.map(|ends| ends.lag(&mut context.lock()));
        context.counters.update_status(|status| {
            status.are_brokers_unavailable = lag.is_err();
            status.lag_messages = lag.ok();
        });
    }

    /// librdkafka does not say which topic is missing, so the brokers' metadata are read.
    fn tell(&self, error: &KafkaError, text: &str) {
        let is_about_topics =
            error.rdkafka_error_code().is_some_and(|code| TOPIC_ERRORS.contains(&code));
        let missing_topics = is_about_topics.then(|| missing_topics(&self.consumer, &self.topics));
        let Some(topics) = missing_topics.filter(|missing_topics| !missing_topics.is_empty())
        else {
            tracing::warn!(error = text, "cannot reach the brokers or a topic; retrying");
            return;
        };
        let group = "grant Read on the topics and on the consumer group";
        let help = format!(
            "if they do not exist: kafka-topics.sh --bootstrap-server <address> --create --topic {}; \
             if they do: {group}",
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

    fn poll(&mut self, limit: Duration) -> Result<Option<ReceivedRecord>, InboxError> {
        match self.consumer.poll(limit) {
            None => Ok(None),
            // Rebalances of this poll are complete: the record is of the newest epoch.
            Some(Ok(message)) => Ok(self.consumer.context().lock().tag(to_stored_record(&message))),
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

impl Membership {
    /// Whether its partition has been assigned ever since it was received, as far as this process knows.
    pub(super) fn is_current(&self, position: &RecordPosition) -> bool {
        self.consumer.context().lock().is_current(position)
    }

    /// The same as the brokers know it: they take an offset from a member of the group's current generation
    /// alone, so that a process which was frozen is refused. An error may pass: during a rebalance they take
    /// no offset from anybody.
    pub(super) async fn confirm(&self, position: &RecordPosition) -> KafkaResult<()> {
        let consumer = Arc::clone(&self.consumer);
        let first = consumer.context().lock().first_unhandled(position);
        let Some(((topic, partition), offset)) = first else {
            return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::IllegalGeneration));
        };
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&topic, partition, Offset::Offset(offset))?;
        // The consumer must be polled meanwhile: the answer may have to wait for a coordinator.
        let answer =
            tokio::task::spawn_blocking(move || consumer.commit(&offsets, CommitMode::Sync));
        answer.await.unwrap_or(Err(KafkaError::Canceled))
    }
}

/// A failure leaves the older offset: some messages are then redelivered.
fn commit(
    consumer: &BaseConsumer<GroupContext>,
    handled: &BTreeMap<Partition, i64>,
    mode: CommitMode,
) {
    let mut offsets = TopicPartitionList::new();
    for ((topic, partition), next) in handled {
        // Fails only for invalid offsets, which no broker returns.
        let _ = offsets.add_partition_offset(topic, *partition, Offset::Offset(*next));
    }
    if offsets.count() > 0
        && let Err(error) = consumer.commit(&offsets, mode)
    {
        tracing::debug!(%error, "cannot commit offsets; some messages will be redelivered");
    }
}

impl GroupContext {
    fn lock(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_partition_count(&self) {
        let count = u64::try_from(self.lock().count()).unwrap_or(u64::MAX);
        self.counters.update_status(|status| {
            status.partitions = count;
            status.has_joined = true;
        });
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(?level, facility, message, "log line of the Kafka client");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "error of the Kafka client");
    }
}

impl ConsumerContext for GroupContext {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(gone) = rebalance else { return };
        let gone = partitions(gone);
        // The next owner should start where this one ended. If the assignment is lost, there is a next
        // owner already.
        if !consumer.assignment_lost() {
            let handled = self.lock().handled(|partition| gone.contains(partition));
            commit(consumer, &handled, CommitMode::Sync);
        }
        self.lock().revoke(&gone);
        self.update_partition_count();
        tracing::info!(count = gone.len(), "partitions revoked");
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Assign(new) = rebalance else { return };
        // A partition that was revoked while paused is still paused when it is assigned again, and is not
        // among those that the next batch resumes.
        let _ = consumer.resume(new);
        self.commit_due.store(true, Ordering::Relaxed);
        let new = partitions(new);
        tracing::info!(count = new.len(), "partitions assigned");
        self.lock().assign(new);
        self.update_partition_count();
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "cannot commit offsets; some messages will be redelivered");
        }
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    let elements = list.elements();
    elements.iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}
