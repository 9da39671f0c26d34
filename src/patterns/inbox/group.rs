//! Membership in the Kafka consumer group: batches, rebalances, seeks, offset commits, lag.
//!
//! Invariant: an assigned partition is not read until its start is decided. An offset is committed
//! only if all earlier records are handled, the database has the offset, and the partition is still
//! assigned.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::assignments::{Advance, Partition, ReceivedRecord};
use super::counters::add;
use super::lag::{Watermarks, list, missing_topics};
use super::membership::{GroupContext, Membership, commit, partitions};
use super::start::{DatabaseOffsets, Plan, Start};
use super::{ConsumerCounters, ConsumerSpec, InboxError};
use crate::dead_letter::now_ms;
use postrider_kafka::{BootstrapServers, to_stored_record};
use postrider_service::log_throttle::LogThrottle;

const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// The partitions are paused, so only events arrive.
const POLLS_PER_TICK: usize = 16;
const FETCHED_KIB_MAX: &str = "16384";
/// Milliseconds. The default of minutes is too long to find new topics.
const METADATA_REFRESH_MS: &str = "5000";
/// The consumer blocks for a request, so the interval is long.
const LAG_INTERVAL: Duration = Duration::from_secs(5);

/// librdkafka only records the start, without a request to brokers.
const SEEK_TIMEOUT: Duration = Duration::from_secs(1);

const LEAVE_LIMIT: Duration = Duration::from_secs(5);

const TOPIC_ERRORS: [RDKafkaErrorCode; 4] = [
    RDKafkaErrorCode::UnknownTopicOrPartition,
    RDKafkaErrorCode::UnknownTopic,
    RDKafkaErrorCode::UnknownPartition,
    RDKafkaErrorCode::TopicAuthorizationFailed,
];

pub(super) struct Group {
    consumer: Arc<BaseConsumer<GroupContext>>,
    topics: Vec<String>,
    /// Records received while a batch was processed, first in the next batch.
    buffered: VecDeque<ReceivedRecord>,
    is_paused: bool,
    /// Paused for longer than a batch.
    full: BTreeSet<Partition>,
    throttle: LogThrottle,
    asked: (Instant, u64),
    bootstrap: BootstrapServers,
    /// Whether the database has had a row since this consumer joined.
    has_rows: bool,
}

impl Group {
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
        let bootstrap =
            config.get("bootstrap.servers").or_else(|| config.get("metadata.broker.list"));
        let bootstrap = BootstrapServers::new(bootstrap.unwrap_or_default());
        let consumer: BaseConsumer<GroupContext> = config
            .create_with_context(GroupContext::new(counters))
            .map_err(InboxError::of_client)?;
        let topics: Vec<&str> = spec.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(InboxError::of_client)?;
        Ok(Self {
            consumer: Arc::new(consumer),
            topics: spec.topics.clone(),
            buffered: VecDeque::new(),
            is_paused: false,
            full: BTreeSet::new(),
            throttle: LogThrottle::default(),
            asked: (Instant::now(), 0),
            bootstrap,
            has_rows: false,
        })
    }

    /// Waits briefly for the first record, unless other work is due. After a pause it always waits,
    /// because permanent other work would otherwise prevent any fetch.
    pub(super) fn collect(
        &mut self,
        max: usize,
        full: &BTreeSet<Partition>,
        is_due: bool,
    ) -> Result<Vec<ReceivedRecord>, InboxError> {
        let is_waiting = self.is_paused || !is_due;
        self.pause_only(full);
        let mut batch: Vec<ReceivedRecord> = Vec::new();
        let is_taken = |received: &ReceivedRecord| !full.contains(received.position.partition());
        while batch.len() < max {
            let Some(at) = self.buffered.iter().position(is_taken) else { break };
            batch.extend(self.buffered.remove(at));
        }
        while batch.len() < max {
            let limit = if batch.is_empty() && is_waiting { POLL_TIMEOUT } else { Duration::ZERO };
            let Some(record) = self.poll(limit)? else { break };
            batch.push(record);
        }
        // A rebalance during these polls may have revoked some partitions.
        let context = self.consumer.context();
        {
            let assignments = context.lock();
            batch.retain(|received| assignments.is_current(&received.position));
        }
        if context.commit_due.swap(false, Ordering::Relaxed) {
            self.commit(CommitMode::Async, |_| true);
        }
        self.look();
        Ok(batch)
    }

    /// Polls while a batch is processed, to stay within `max.poll.interval.ms`.
    pub(super) fn poll_paused(&mut self) -> Result<(), InboxError> {
        // Newly assigned partitions are not paused, so each call pauses.
        let _ = self.consumer.assignment().and_then(|held| self.consumer.pause(&held));
        self.is_paused = true;
        for _ in 0..POLLS_PER_TICK {
            let Some(record) = self.poll(Duration::ZERO)? else { break };
            self.buffered.push_back(record);
        }
        let context = self.consumer.context();
        self.buffered.retain(|received| context.lock().is_current(&received.position));
        self.look();
        Ok(())
    }

    pub(super) fn membership(&self) -> Membership {
        Membership::of(&self.consumer)
    }

    pub(super) fn commit_changed(&self) {
        let changed = self.consumer.context().lock().take_changed();
        commit(&self.consumer, &changed, CommitMode::Async);
    }

    pub(super) fn not_stored(&self) -> Vec<Advance> {
        self.consumer.context().lock().not_stored()
    }

    pub(super) fn mark_stored(&self, advances: &[Advance]) {
        self.consumer.context().lock().set_stored(advances);
        self.commit_changed();
    }

    pub(super) fn has_unverified(&self) -> bool {
        !self.consumer.context().lock().unverified().is_empty()
    }

    /// `None` if the brokers did not answer.
    pub(super) fn plan(&self, database: &DatabaseOffsets) -> Option<Plan> {
        self.note_known(database);
        let waiting = self.consumer.context().lock().unverified();
        let plan = Plan::make(&self.consumer, &self.topics, waiting, (database, !self.has_rows));
        plan.inspect_err(|error| tracing::debug!(%error, "cannot read the ends of partitions")).ok()
    }

    /// Returns false if librdkafka does not accept some partitions yet.
    pub(super) fn begin(&mut self, starts: &[Start]) -> bool {
        self.has_rows |= !starts.is_empty();
        let Ok(read) = self.consumer.assignment() else { return false };
        let read = partitions(&read);
        let (sought, assigned): (Vec<&Start>, Vec<&Start>) =
            starts.iter().partition(|start| read.contains(&start.partition));
        let (sought, is_sought) = seek(&self.consumer, &sought);
        let is_assigned = assigned.is_empty()
            || list_of(&assigned).and_then(|it| self.consumer.incremental_assign(&it)).is_ok();
        let assigned = if is_assigned { assigned } else { Vec::new() };
        let context = self.consumer.context();
        let mut begun = Vec::new();
        for start in sought.into_iter().chain(assigned) {
            let Start { partition, epoch, position, stored, went_back } = start;
            context.lock().begin(partition, *epoch, *position, *stored);
            if *went_back {
                add(&context.counters.rewinds, 1);
            }
            begun.push(partition.clone());
        }
        // A partition that was revoked while paused is still paused when it is assigned again.
        self.resume(&begun);
        self.full.clear();
        is_sought && is_assigned
    }

    pub(super) fn is_ahead_of(&self, database: &DatabaseOffsets) -> bool {
        self.note_known(database);
        self.consumer.context().lock().is_ahead_of(&database.next)
    }

    /// Each member writes a row for each of its partitions before it reads them.
    fn note_known(&self, database: &DatabaseOffsets) {
        let known = database.next.keys().filter(|(topic, _)| self.topics.contains(topic));
        self.consumer.context().lock().set_known(known.cloned());
    }

    pub(super) fn recheck(&mut self) {
        self.consumer.context().lock().recheck();
        // Records that arrive anyway are dropped.
        let _ = self.consumer.assignment().and_then(|held| self.consumer.pause(&held));
        self.buffered.clear();
    }

    fn pause_only(&mut self, full: &BTreeSet<Partition>) {
        if !std::mem::take(&mut self.is_paused) && *full == self.full {
            return;
        }
        let mut begun = self.consumer.context().lock().begun();
        begun.retain(|partition| !full.contains(partition));
        self.resume(&begun);
        let paused: Vec<Partition> = full.iter().cloned().collect();
        // A revoked partition needs no pause.
        let _ = list(&paused, Offset::Invalid).and_then(|list| self.consumer.pause(&list));
        self.full.clone_from(full);
    }

    fn resume(&self, partitions: &[Partition]) {
        let _ = list(partitions, Offset::Invalid).and_then(|list| self.consumer.resume(&list));
    }

    fn commit(&self, mode: CommitMode, wanted: impl Fn(&Partition) -> bool) {
        let offsets = self.consumer.context().lock().to_commit(wanted);
        commit(&self.consumer, &offsets, mode);
    }

    /// Leaves the group, so that partitions are reassigned at once. librdkafka waits for hanging
    /// brokers without a limit, so this gives up after `LEAVE_LIMIT`.
    pub(super) fn leave(self) {
        let (report, left) = mpsc::channel();
        let work = move || {
            self.commit(CommitMode::Sync, |_| true);
            drop(self);
            let _ = report.send(());
        };
        let name = "postrider-inbox-leave".to_owned();
        let outcome = std::thread::Builder::new().name(name).spawn(work);
        if outcome.is_err() || left.recv_timeout(LEAVE_LIMIT).is_err() {
            tracing::warn!("the brokers do not answer; the group is left without their answer");
        }
    }

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
        // The interval starts at the answer, so that slow brokers are not asked without a break.
        self.asked = (Instant::now(), last);
        let lag = ends.map(|ends| ends.lag(&mut context.lock()));
        let code = lag.as_ref().err().and_then(KafkaError::rdkafka_error_code);
        // An error code of a broker is an answer. The codes of librdkafka are below zero.
        let have_answered = lag.is_ok() || code.is_some_and(|code| code as i32 > 0);
        let are_lost = self.bootstrap.restore(self.consumer.client(), have_answered);
        let lost_ms = context.counters.status().brokers_lost_ms;
        if are_lost && lost_ms.is_none() {
            tracing::warn!("the brokers do not answer; the bootstrap servers were added again");
        }
        context.counters.update_status(|status| {
            status.are_brokers_unavailable = lag.is_err();
            status.brokers_lost_ms = are_lost.then(|| lost_ms.unwrap_or_else(now_ms));
            status.lag_messages = lag.ok();
        });
    }

    /// Names the missing topics from the brokers' metadata, because librdkafka does not.
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
            // This poll has completed its rebalances, so the record belongs to the newest epoch.
            Some(Ok(message)) => Ok(self.consumer.context().lock().tag(to_stored_record(&message))),
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                Err(InboxError::Fatal(error.into()))
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

/// Sought partitions, and whether all were sought.
fn seek<'s>(consumer: &BaseConsumer<GroupContext>, starts: &[&'s Start]) -> (Vec<&'s Start>, bool) {
    if starts.is_empty() {
        return (Vec::new(), true);
    }
    let sought = list_of(starts).and_then(|it| consumer.seek_partitions(it, SEEK_TIMEOUT));
    let Ok(sought) = sought else { return (Vec::new(), false) };
    let elements = sought.elements();
    let is_sought = |start: &&&Start| {
        let (topic, partition) = &start.partition;
        let mut done = elements.iter().filter(|element| element.error().is_ok());
        done.any(|it| it.topic() == topic && it.partition() == *partition)
    };
    let done: Vec<&Start> = starts.iter().filter(is_sought).copied().collect();
    let is_complete = done.len() == starts.len();
    (done, is_complete)
}

fn list_of(starts: &[&Start]) -> KafkaResult<TopicPartitionList> {
    let mut offsets = TopicPartitionList::new();
    for Start { partition: (topic, partition), position, .. } in starts {
        offsets.add_partition_offset(topic, *partition, Offset::Offset(*position))?;
    }
    Ok(offsets)
}
