//! The group's current assignment, shared by librdkafka's callbacks and a running batch. Invariant:
//! a revoked partition's offset is committed before another member has the partition, and never
//! beyond the database's offset.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer as _, ConsumerContext, RebalanceProtocol,
};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;

use super::ConsumerCounters;
use super::assignments::{Advance, Assignments, Partition, RecordPosition};
use super::lag::list;
use crate::dead_letter::now_ms;

pub(super) struct Membership {
    consumer: Arc<BaseConsumer<GroupContext>>,
}

pub(super) struct GroupContext {
    assignments: Mutex<Assignments>,
    pub(super) counters: Arc<ConsumerCounters>,
    /// Set after a rebalance, in which brokers refuse commits and librdkafka does not report it.
    pub(super) commit_due: AtomicBool,
}

impl Membership {
    pub(super) fn of(consumer: &Arc<BaseConsumer<GroupContext>>) -> Self {
        Self { consumer: Arc::clone(consumer) }
    }

    pub(super) fn is_current(&self, position: &RecordPosition) -> bool {
        self.consumer.context().lock().is_current(position)
    }

    pub(super) fn count(&self) -> usize {
        self.consumer.context().lock().count()
    }

    /// As far as the database knows.
    pub(super) fn has_all(&self) -> bool {
        self.consumer.context().lock().has_all()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.consumer.context().lock().epoch()
    }

    pub(super) fn stored(&self, partition: &Partition) -> Option<i64> {
        self.consumer.context().lock().stored(partition)
    }

    pub(super) fn advances<'p>(
        &self,
        positions: impl IntoIterator<Item = &'p RecordPosition>,
    ) -> Vec<Advance> {
        self.consumer.context().lock().advances(positions)
    }

    pub(super) fn mark_handled<'p>(
        &self,
        positions: impl IntoIterator<Item = &'p RecordPosition>,
        stored: &[Advance],
    ) {
        let mut positions = positions.into_iter().peekable();
        if positions.peek().is_none() {
            return;
        }
        let context = self.consumer.context();
        context.counters.update_status(|status| status.progress_ms = Some(now_ms()));
        let mut assignments = context.lock();
        assignments.mark_handled(positions);
        assignments.set_stored(stored);
    }

    /// Asks the brokers, which accept an offset only from the group's current generation and thus
    /// refuse a frozen process. An error may be transient: during a rebalance no offset is
    /// accepted.
    pub(super) async fn confirm(&self, position: &RecordPosition) -> KafkaResult<()> {
        let consumer = Arc::clone(&self.consumer);
        let before = consumer.context().lock().offset_before(position);
        let Some(((topic, partition), offset)) = before else {
            return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::IllegalGeneration));
        };
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&topic, partition, Offset::Offset(offset))?;
        // The consumer must be polled while this waits, because the answer may need a coordinator.
        let answer =
            tokio::task::spawn_blocking(move || consumer.commit(&offsets, CommitMode::Sync));
        answer.await.unwrap_or(Err(KafkaError::Canceled))
    }
}

impl GroupContext {
    pub(super) fn new(counters: Arc<ConsumerCounters>) -> Self {
        Self { assignments: Mutex::default(), counters, commit_due: AtomicBool::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn assign(&self, new: Vec<Partition>) {
        self.commit_due.store(true, Ordering::Relaxed);
        tracing::info!(count = new.len(), "partitions assigned");
        self.lock().assign(new);
        self.update_partition_count();
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, gone: &[Partition]) {
        // A lost assignment already has another owner.
        if !consumer.assignment_lost() {
            let handled = self.lock().to_commit(|partition| gone.contains(partition));
            // Asynchronous, because hanging brokers never answer. librdkafka sends later requests
            // to the group after it.
            commit(consumer, &handled, CommitMode::Async);
        }
        self.lock().revoke(gone);
        self.update_partition_count();
        tracing::info!(count = gone.len(), "partitions revoked");
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
    /// Only accepts the partitions. librdkafka gets them after their start is decided. Otherwise it
    /// would request its own start, and could return to it after a seek (librdkafka 2.12,
    /// `rd_kafka_toppar_handle_Offset`).
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let changed = partitions(list);
        let outcome = if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            let outcome = consumer.incremental_assign(&TopicPartitionList::new());
            self.assign(changed);
            outcome
        } else {
            self.revoke(consumer, &changed);
            unassign(consumer, &changed)
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "librdkafka refused a rebalance");
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "cannot commit offsets; some messages will be redelivered");
        }
    }
}

/// After a failure some messages are redelivered.
pub(super) fn commit(
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

/// Unassigns only partitions that librdkafka has. librdkafka expects the call even without
/// partitions.
fn unassign(consumer: &BaseConsumer<GroupContext>, gone: &[Partition]) -> KafkaResult<()> {
    if !matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative) {
        return consumer.unassign();
    }
    let read = partitions(&consumer.assignment()?);
    let gone: Vec<Partition> = gone.iter().filter(|it| read.contains(it)).cloned().collect();
    consumer.incremental_unassign(&list(&gone, Offset::Invalid)?)
}

pub(super) fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    let elements = list.elements();
    elements.iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}
