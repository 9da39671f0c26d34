//! What librdkafka's callbacks and a running batch share: the group's current assignment.
//!
//! Input: rebalances; what a batch has handled, and what the database has of it. Output: whether a record is
//! still this member's, as this process or as the brokers know it; the offsets that a transaction is to write.
//! Invariant: a revoked partition's offset is committed before another member has it, and never further than
//! the database's.

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

/// The assignment, as a batch sees it.
pub(super) struct Membership {
    consumer: Arc<BaseConsumer<GroupContext>>,
}

/// The assignment, shared with librdkafka's callbacks.
pub(super) struct GroupContext {
    assignments: Mutex<Assignments>,
    pub(super) counters: Arc<ConsumerCounters>,
    /// A rebalance has ended. During it the brokers refuse offset commits, and librdkafka does not report a
    /// failed asynchronous commit.
    pub(super) commit_due: AtomicBool,
}

impl Membership {
    /// That of this member of the group.
    pub(super) fn of(consumer: &Arc<BaseConsumer<GroupContext>>) -> Self {
        Self { consumer: Arc::clone(consumer) }
    }

    /// Whether its partition has been assigned ever since it was received, as far as this process knows.
    pub(super) fn is_current(&self, position: &RecordPosition) -> bool {
        self.consumer.context().lock().is_current(position)
    }

    /// How many partitions are assigned.
    pub(super) fn count(&self) -> usize {
        self.consumer.context().lock().count()
    }

    /// Whether no partition is another member's, as far as the database knows.
    pub(super) fn has_all(&self) -> bool {
        self.consumer.context().lock().has_all()
    }

    /// The epoch of the last assignment.
    pub(super) fn epoch(&self) -> u64 {
        self.consumer.context().lock().epoch()
    }

    /// What the database has for the partition, as far as this process knows.
    pub(super) fn stored(&self, partition: &Partition) -> Option<i64> {
        self.consumer.context().lock().stored(partition)
    }

    /// What the transaction that handles these is to write.
    pub(super) fn advances<'p>(
        &self,
        positions: impl IntoIterator<Item = &'p RecordPosition>,
    ) -> Vec<Advance> {
        self.consumer.context().lock().advances(positions)
    }

    /// Notes that these are handled, and what the database has now.
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

    /// Whether the brokers know it too: they take an offset from a member of the group's current generation
    /// alone, so that a process which was frozen is refused. An error may pass: during a rebalance they take
    /// no offset from anybody.
    pub(super) async fn confirm(&self, position: &RecordPosition) -> KafkaResult<()> {
        let consumer = Arc::clone(&self.consumer);
        let before = consumer.context().lock().offset_before(position);
        let Some(((topic, partition), offset)) = before else {
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
        // The next owner should start where this one ended. If the assignment is lost, there is a next
        // owner already.
        if !consumer.assignment_lost() {
            let handled = self.lock().to_commit(|partition| gone.contains(partition));
            // The answer is not waited for here, since brokers that hang give none; librdkafka sends nothing
            // later to the group before it.
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
    /// What is assigned is accepted here and read later, when it is decided where from. If librdkafka were
    /// given it now, it would ask for a start of its own, and could return to that after a seek: a seek makes
    /// the answer outdated, and the question is then repeated (librdkafka 2.12,
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

/// A failure leaves the older offset: some messages are then redelivered.
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

/// Those of them that are read; others were not given to librdkafka. It wants to be told, even of none.
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
