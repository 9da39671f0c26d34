//! Batch processing: applies effects in one transaction, retries failures, publishes dead letters.
//!
//! Input: records in order of arrival. Output: handled records and the database's offsets.
//!
//! Invariants:
//!
//! * A record is handled if its effects are committed, its type is ignored, or its dead letter is
//!   confirmed.
//! * An unavailable database, or an identical failure of every message, never causes a dead letter.
//! * A failing message delays only later messages of its key, or of its aggregate if the order of
//!   numbers is enforced.
//! * A transaction writes the offset of the first record that is unhandled after the commit.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use uuid::Uuid;

use super::assignments::{Partition, ReceivedRecord, RecordPosition};
use super::attribution::ids;
use super::cache::DoneCache;
use super::counters::{ConsumerCounters, add};
use super::dlq_publisher::{DlqPublisher, Published};
use super::membership::Membership;
use super::retries::{
    BYTES_MAX, FailedMessage, KEYS_MAX, KeyQueue, NextStep, Pending, RetryQueue, record_bytes,
};
use super::sequence::{Misplaced, ReorderBuffer};
use super::session::{Database, Ending, RolledBack, TransactionFailure, Work};
use super::sqlstate::{FailureCause, describe_failure};
use super::stop::ConsumerStop;
use super::{
    ConsumerSpec, Effects, FailingMessage, Failure, InboxError, Interest, InvalidMessage, Message,
};
use crate::dead_letter::{ConsumerFailure, StoredRecord, now_ms};
use postrider_service::backoff::draw;
use postrider_service::log_throttle::LogThrottle;

const POISON_CODE: &str = "poison";
const ATTEMPTS_CODE: &str = "attempts_used_up";
const WAITED_CODE: &str = "waited_too_long";
/// Maximum number of messages that are removed one by one from a failing batch. Each removal costs
/// a transaction of all earlier messages.
const REMOVED_MAX: usize = 10;
const RETRIED_MAX: usize = 20;

/// For any number of waiting messages, while nothing succeeds.
const OUTAGE_PACE: Duration = Duration::from_millis(50);
/// Age at which a session is replaced while nothing succeeds.
const SESSION_AGE: Duration = Duration::from_secs(1);

pub(super) struct BatchProcessor<E> {
    pub(super) spec: ConsumerSpec,
    pub(super) effects: E,
    /// Runtime in which the application runs the consumer.
    pub(super) callers: Handle,
    pub(super) counters: Arc<ConsumerCounters>,
    pub(super) database: Database,
    pub(super) cache: Option<DoneCache>,
    pub(super) publisher: DlqPublisher,
    pub(super) membership: Membership,
    pub(super) stop: ConsumerStop,
    pub(super) retries: RetryQueue,
    pub(super) invalid: InvalidRecords,
    /// Paused: too many of their messages wait.
    pub(super) full: BTreeSet<Partition>,
    /// Paused: their messages wait for other partitions.
    pub(super) ahead: BTreeSet<Partition>,
    pub(super) reorder: Option<ReorderBuffer>,
    /// Transactions that had effects, or showed that effects are possible.
    pub(super) successes: u64,
    /// Whether a session was lost and no transaction has been committed since.
    pub(super) is_commit_unknown: bool,
    /// Messages with a marker but without effects; see `note_commit`.
    pub(super) unmarked: HashSet<Uuid>,
    pub(super) throttle: LogThrottle,
}

#[derive(Debug, Default)]
pub(super) struct InvalidRecords(VecDeque<InvalidRecord>);

#[derive(Debug)]
struct InvalidRecord {
    record: Box<(StoredRecord, InvalidMessage)>,
    position: RecordPosition,
    failures: u32,
    due: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// Confirmed, or the message was processed before.
    Done,
    Reassigned,
    /// The brokers' reason. The record is not handled.
    Unpublished(String),
}

#[derive(Debug)]
pub(super) enum Halt {
    Stopped,
    WentBack,
    Fatal(InboxError),
}

#[derive(Debug)]
pub(super) enum Unfinished {
    Failed(TransactionFailure),
    Misplaced(Vec<Misplaced>),
}

#[expect(clippy::large_enum_variant, reason = "nearly all are messages")]
enum BatchItem {
    Pending(Pending),
    Handled(RecordPosition),
    Invalid(Box<(StoredRecord, InvalidMessage)>, RecordPosition),
}

impl<E: Effects> BatchProcessor<E> {
    /// Whether a retry is due, or there is no room for another batch.
    pub(super) fn is_due(&self) -> bool {
        self.is_full() || self.next_due().is_some_and(|due| due <= Instant::now())
    }

    pub(super) fn is_full(&self) -> bool {
        self.invalid.is_full() || self.is_stuck()
    }

    /// Whether no partition can be read until missing messages arrive.
    pub(super) fn is_stuck(&self) -> bool {
        self.reorder.as_ref().is_some_and(ReorderBuffer::is_over)
            && self.paused().len() >= self.membership.count()
    }

    pub(super) fn paused(&self) -> BTreeSet<Partition> {
        &self.full | &self.ahead
    }

    fn next_due(&self) -> Option<Instant> {
        let of_buffer = self.reorder.as_ref().and_then(ReorderBuffer::next_due);
        self.retries.next_due().into_iter().chain(of_buffer).chain(self.invalid.next_due()).min()
    }

    /// Handled records are noted immediately, so dropping this future leaves a valid state.
    pub(super) async fn process(&mut self, batch: Vec<ReceivedRecord>) -> Result<(), Halt> {
        let membership = &self.membership;
        self.retries.retain(|position| membership.is_current(position));
        self.invalid.0.retain(|invalid| membership.is_current(&invalid.position));
        self.publisher.retain(|position| membership.is_current(position));
        if let Some(buffer) = &mut self.reorder {
            buffer.retain(|position| membership.is_current(position));
            buffer.follow_assignment(membership.epoch(), Instant::now());
        }
        if self.is_full()
            && let Some(due) = self.next_due()
            && !self.stop.pause(due.saturating_duration_since(Instant::now())).await
        {
            return Err(Halt::Stopped);
        }
        let is_batch = !batch.is_empty();
        let mut items: Vec<BatchItem> =
            batch.into_iter().map(|received| self.classify(received)).collect();
        self.skip_cached(&mut items).await;
        let (mut handled, mut pending) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                BatchItem::Handled(position) => handled.push(position),
                BatchItem::Pending(message) => pending.extend(self.follow(message)),
                BatchItem::Invalid(record, position) => {
                    let due = Instant::now();
                    self.invalid.0.push_back(InvalidRecord { record, position, failures: 0, due });
                }
            }
        }
        self.membership.mark_handled(&handled, &[]);
        self.process_together(pending).await?;
        self.publish_invalid().await?;
        self.retry_due().await?;
        self.continue_sequences().await?;
        self.update_status();
        add(&self.counters.batches, usize::from(is_batch));
        Ok(())
    }

    fn classify(&self, received: ReceivedRecord) -> BatchItem {
        let ReceivedRecord { record, position } = received;
        let message = match Message::read(record, &self.spec.format) {
            Ok(message) => message,
            Err(invalid) => return BatchItem::Invalid(invalid, position),
        };
        match self.effects.interest(&message.event_type) {
            Interest::Handle if self.reorder.is_some() && message.sequence.is_none() => {
                let header = self.spec.format.sequence_name().to_owned();
                let invalid = InvalidMessage::Missing(header);
                BatchItem::Invalid(Box::new((message.record, invalid)), position)
            }
            Interest::Handle => BatchItem::Pending(Pending::new(message, position)),
            Interest::Ignore if self.reorder.is_some() && message.sequence.is_some() => {
                let pending = Pending::new(message, position);
                BatchItem::Pending(Pending { has_effect: false, ..pending })
            }
            Interest::Unknown => {
                let invalid = Box::new((message.record, InvalidMessage::UnknownType));
                BatchItem::Invalid(invalid, position)
            }
            Interest::Ignore => {
                add(&self.counters.passed_over, 1);
                BatchItem::Handled(position)
            }
        }
    }

    async fn skip_cached(&mut self, items: &mut [BatchItem]) {
        let Some(cache) = &mut self.cache else { return };
        let pending: Vec<&Message> = items.iter().filter_map(BatchItem::message).collect();
        let known = cache.find(&pending, &self.membership).await;
        for item in items {
            if let BatchItem::Pending(Pending { message, position, .. }) = item
                && known.contains(&message.id)
            {
                add(&self.counters.duplicates, 1);
                *item = BatchItem::Handled(position.clone());
            }
        }
    }

    /// Runs one transaction for all messages. If a failure may be the database's fault, repeats it
    /// without the failed message: the others show whose fault it is. Otherwise tries the messages
    /// one by one.
    pub(super) async fn process_together(&mut self, pending: Vec<Pending>) -> Result<(), Halt> {
        let mut pending = self.arrange(pending);
        for _ in 0..REMOVED_MAX {
            if pending.len() < 2 {
                break;
            }
            let failed = match self.transact(&pending).await? {
                None => return Ok(()),
                Some(Unfinished::Failed(failed)) => failed,
                Some(Unfinished::Misplaced(misplaced)) => {
                    pending = self.set_aside(pending, &misplaced).await?;
                    continue;
                }
            };
            let why = describe_failure(&failed.failure);
            tracing::debug!(why, "a batch failed; retrying without the message, or one by one");
            let is_open = failed.cause.is_open() || failed.cause == FailureCause::Dependency;
            let is_its_own = is_open && failed.lost.is_none();
            let Some(at) = failed.at.filter(|_| is_its_own) else { break };
            let rest = pending.split_off(at);
            let mut rest = rest.into_iter();
            if let Some(culprit) = rest.next() {
                let mut head = FailedMessage::new(culprit, self.successes);
                // The time of the whole batch is not the time of one message.
                let failed = TransactionFailure { took: Duration::ZERO, ..failed };
                head.fail(&failed, self.successes, Instant::now(), &self.spec);
                self.put_back(KeyQueue { head, followers: VecDeque::new() });
            }
            pending.extend(rest.filter_map(|later| self.retries.follow(later)));
        }
        for message in pending {
            if let Some(message) = self.retries.follow(message) {
                let head = FailedMessage::new(message, self.successes);
                self.attempt(KeyQueue { head, followers: VecDeque::new() }).await?;
            }
        }
        Ok(())
    }

    /// Publishes due dead letters for at most the time of a lock wait.
    async fn publish_invalid(&mut self) -> Result<(), Halt> {
        let now = Instant::now();
        for _ in 0..self.invalid.0.len() {
            let Some(mut invalid) = self.invalid.0.pop_front() else { break };
            if invalid.due <= now && now.elapsed() < self.spec.lock_timeout {
                let ((record, why), failure) = (&*invalid.record, self.failure(0, now_ms()));
                let (record, why) = ((record, &invalid.position), (why.code(), &*why.to_string()));
                let letter = self.dead_letter(record, None, why, failure).await?;
                if !matches!(letter, Letter::Unpublished(_)) {
                    continue;
                }
                invalid.failures = invalid.failures.saturating_add(1);
                invalid.due = Instant::now() + self.spec.backoff.wait(invalid.failures, draw());
            }
            self.invalid.0.push_back(invalid);
        }
        Ok(())
    }

    /// Retries due messages for at most the time of a lock wait, so that others get their turn.
    async fn retry_due(&mut self) -> Result<(), Halt> {
        let now = Instant::now();
        if self.retries.is_unclear(self.successes) {
            // A new session may reach another server, or see a migrated schema.
            self.database.renew(SESSION_AGE);
        }
        for _ in 0..RETRIED_MAX {
            let Some(queue) = self.retries.take_due(now) else { break };
            if queue.head.has_failed() {
                add(&self.counters.retries, 1);
                self.attempt(queue).await?;
            } else {
                self.process_ready_key(queue).await?;
            }
            if now.elapsed() >= self.spec.lock_timeout {
                break;
            }
        }
        Ok(())
    }

    /// Processes at most one batch of the key, so that other keys do not wait.
    async fn process_ready_key(&mut self, queue: KeyQueue) -> Result<(), Halt> {
        let mut ready = queue.into_messages();
        let rest = ready.split_off(self.spec.batch_max.min(ready.len()));
        self.release(rest);
        self.process_together(ready.into()).await
    }

    fn release(&mut self, followers: VecDeque<Pending>) {
        if let Some(queue) = KeyQueue::ready(followers, self.successes) {
            self.retries.insert(queue);
        }
    }

    async fn attempt(&mut self, queue: KeyQueue) -> Result<(), Halt> {
        let KeyQueue { mut head, followers } = queue;
        if let NextStep::DeadLetter(code, why) = &head.next_step {
            let (code, why) = (*code, why.clone());
            return self.publish_letter(KeyQueue { head, followers }, code, why).await;
        }
        let failed = match self.transact(std::slice::from_ref(&head.pending)).await? {
            Some(Unfinished::Failed(failed)) => failed,
            done => {
                if let Some(Unfinished::Misplaced(misplaced)) = done {
                    self.set_aside(vec![head.pending], &misplaced).await?;
                }
                self.release(followers);
                return Ok(());
            }
        };
        // A success of the probe comes after this failure, so it counts for the next one.
        let successes = self.successes;
        if head.lacks_witness(failed.cause, successes) {
            self.probe(&head, &followers).await;
        }
        let is_poison = matches!(failed.failure, Failure::Poison(_));
        head.fail(&failed, successes, Instant::now(), &self.spec);
        let mut why = head.why.clone();
        let code = if is_poison {
            POISON_CODE
        } else if head.attempts >= self.spec.attempts_max {
            ATTEMPTS_CODE
        } else if head.has_waited_too_long(&self.spec) {
            why = format!("it waited for {} s while others passed: {why}", head.waited().as_secs());
            WAITED_CODE
        } else {
            self.put_back(KeyQueue { head, followers });
            return Ok(());
        };
        self.publish_letter(KeyQueue { head, followers }, code, why).await
    }

    async fn publish_letter(
        &mut self,
        mut queue: KeyQueue,
        code: &'static str,
        why: String,
    ) -> Result<(), Halt> {
        let head = &mut queue.head;
        let failure = self.failure(head.attempts, head.first_failed_ms);
        let Pending { message, position, .. } = &head.pending;
        let record = (&message.record, position);
        match self.dead_letter(record, Some(message), (code, &why), failure).await? {
            Letter::Done => self.release(queue.followers),
            Letter::Reassigned => {}
            Letter::Unpublished(reason) => {
                head.why = format!("{why}; its dead letter cannot be published: {reason}");
                head.failures = head.failures.saturating_add(1);
                head.next_step = NextStep::DeadLetter(code, why);
                self.put_back(queue);
            }
        }
        Ok(())
    }

    /// Tries a later message of the key, if no other shows that the database takes effects. The
    /// transaction is rolled back, because the later message may not overtake. Each call tries
    /// another one.
    async fn probe(&mut self, head: &FailedMessage, followers: &VecDeque<Pending>) {
        let number = usize::try_from(head.failures).unwrap_or(0);
        let Some(at) = number.checked_rem(followers.len()) else { return };
        let Some(follower) = followers.get(at) else { return };
        let work = Work { messages: std::slice::from_ref(follower), advances: &[], unmarked: &[] };
        let (effects, counters) = (&self.effects, &self.counters);
        let probe = self.database.transact(work, effects, counters, Ending::Rollback);
        if probe.await.is_ok_and(|done| done.applied > 0) {
            self.note_success();
        }
    }

    fn note_success(&mut self) {
        self.retries.wake_unclear(self.successes);
        self.successes += 1;
    }

    fn put_back(&mut self, mut queue: KeyQueue) {
        let head = &mut queue.head;
        let mut wait = self.spec.backoff.wait(head.failures, draw());
        if head.is_unclear(self.successes) {
            // The first message that succeeds wakes all of them.
            wait = wait.max(OUTAGE_PACE.saturating_mul(self.retries.keys()));
        }
        head.schedule(wait, Instant::now());
        let (why, attempts, behind) = (&head.why, head.attempts, queue.followers.len());
        let Message { id, event_type, record, .. } = &head.pending.message;
        let StoredRecord { topic, partition, offset, .. } = record;
        if matches!(head.cause(), None | Some(FailureCause::Message)) {
            tracing::debug!(topic, partition, offset, why, attempts, "a message failed; retrying");
        } else if self.throttle.is_due(&format!("{event_type}: {why}")) {
            tracing::warn!(
                %id,
                event_type,
                topic,
                partition,
                offset,
                why,
                attempts,
                behind,
                "a message failed; it is retried, and its key waits"
            );
        }
        self.retries.insert(queue);
    }

    /// Repeats the transaction while the database is unavailable. `None` means that it is
    /// committed.
    async fn transact(&mut self, pending: &[Pending]) -> Result<Option<Unfinished>, Halt> {
        let positions = || pending.iter().map(|it| &it.position);
        let mut outages = 0;
        loop {
            let begin = Instant::now();
            let advances = self.membership.advances(positions());
            let unmarked: Vec<Uuid> =
                ids(pending).filter(|id| self.unmarked.contains(id)).collect();
            let work = Work { messages: pending, advances: &advances, unmarked: &unmarked };
            let (effects, counters) = (&self.effects, &self.counters);
            let outcome = self.database.transact(work, effects, counters, Ending::Commit).await;
            if outages > 0 && !matches!(outcome, Err(RolledBack::Unavailable { .. })) {
                tracing::info!(outages, "the database is available again");
                self.counters.update_status(|status| status.is_database_unavailable = false);
            }
            match outcome {
                Ok(done) => {
                    add(&self.counters.processed, done.applied);
                    add(&self.counters.duplicates, done.duplicates);
                    add(&self.counters.passed_over, done.passed_over);
                    if done.applied > 0 {
                        self.note_success();
                    }
                    // Only the markers show what a lost session has committed.
                    if std::mem::take(&mut self.is_commit_unknown) || done.applied > 0 {
                        let _entered = self.callers.enter();
                        self.effects.committed();
                    }
                    self.unmarked.retain(|id| !unmarked.contains(id));
                    self.membership.mark_handled(positions(), &advances);
                    self.note_sequences(pending);
                    if let Some(cache) = &mut self.cache {
                        let messages: Vec<&Message> =
                            pending.iter().map(|it| &it.message).collect();
                        cache.keep(&messages).await;
                    }
                    return Ok(None);
                }
                Err(RolledBack::Failed(failed)) => {
                    let failed = TransactionFailure { took: begin.elapsed(), ..failed };
                    let failed = self.attribute(failed).await?;
                    self.note_commit(&failed, pending).await?;
                    if failed.at.is_none() {
                        // An effect may have left a setting in the session that causes the failure.
                        self.database.renew(Duration::ZERO);
                    }
                    return Ok(Some(Unfinished::Failed(failed)));
                }
                Err(RolledBack::Misplaced(misplaced)) => {
                    return Ok(Some(Unfinished::Misplaced(misplaced)));
                }
                Err(RolledBack::WentBack) => return Err(Halt::WentBack),
                Err(RolledBack::Unavailable { why, hint }) => {
                    outages += 1;
                    self.wait_for_database((&why, hint), outages).await?;
                }
            }
        }
    }

    pub(super) async fn wait_for_database(
        &mut self,
        (why, hint): (&str, Option<&str>),
        outages: u32,
    ) -> Result<(), Halt> {
        if self.throttle.is_due(why) {
            tracing::warn!(why, hint, "the consumer is waiting for its database");
        }
        self.counters.update_status(|status| status.is_database_unavailable = true);
        self.wait(outages).await
    }

    pub(super) async fn wait(&self, failures: u32) -> Result<(), Halt> {
        if !self.stop.pause(self.spec.backoff.wait(failures, draw())).await {
            return Err(Halt::Stopped);
        }
        add(&self.counters.retries, 1);
        Ok(())
    }

    /// Publishes a dead letter, if the record still belongs to this member and is unprocessed. A
    /// frozen process thus cannot give up a message of its successor.
    pub(super) async fn dead_letter(
        &mut self,
        (record, position): (&StoredRecord, &RecordPosition),
        message: Option<&Message>,
        why: (&str, &str),
        failure: ConsumerFailure,
    ) -> Result<Letter, Halt> {
        let failure = failure.after_all(record);
        let mut waits = 0;
        while self.membership.is_current(position) {
            match self.publish_unprocessed((record, position), message, why, &failure).await {
                Ok(Some(Published::Failed(reason))) => {
                    let unpublished = self.publisher.unpublished();
                    self.counters.update_status(|status| status.unpublished = unpublished);
                    return Ok(Letter::Unpublished(reason));
                }
                Ok(published) => {
                    let is_published = usize::from(published.is_some());
                    add(&self.counters.dead_letters, is_published);
                    add(&self.counters.duplicates, 1 - is_published);
                    self.membership.mark_handled(std::slice::from_ref(position), &[]);
                    self.publisher.forget(position);
                    return Ok(Letter::Done);
                }
                Err(refusal) => {
                    if self.throttle.is_due(&refusal) {
                        tracing::warn!(why = refusal, "waiting to publish a dead letter");
                    }
                    waits += 1;
                    self.wait(waits).await?;
                }
            }
        }
        let StoredRecord { topic, partition, offset, .. } = record;
        tracing::warn!(topic, partition, offset, "no dead letter: the partition was reassigned");
        Ok(Letter::Reassigned)
    }

    /// `None` if the message was processed. An error says why the dead letter must wait.
    async fn publish_unprocessed(
        &mut self,
        (record, position): (&StoredRecord, &RecordPosition),
        message: Option<&Message>,
        why: (&str, &str),
        failure: &ConsumerFailure,
    ) -> Result<Option<Published>, String> {
        self.membership.confirm(position).await.map_err(|error| error.to_string())?;
        let letter = self.publisher.publish((record, position), why, failure);
        // A marker that was committed without effects does not count.
        let message = message.filter(|message| !self.unmarked.contains(&message.id));
        let Some(message) = message else { return Ok(Some(letter.await)) };
        let outcome = self.database.while_unprocessed(message, letter).await;
        outcome.map_err(|rolled_back| rolled_back.explain().0)
    }

    pub(super) fn failure(&self, attempts: u32, first_failed_ms: i64) -> ConsumerFailure {
        let consumer = self.spec.name.clone();
        ConsumerFailure { consumer, attempts, first_failed_ms, failed_ms: now_ms() }
    }

    fn update_status(&mut self) {
        let behind_retried = self.reorder.iter().flat_map(ReorderBuffer::behind_retried);
        let assigned = self.membership.count();
        self.full = self.retries.full_partitions(behind_retried, assigned);
        self.ahead =
            self.reorder.as_ref().map(|it| it.full_partitions(assigned)).unwrap_or_default();
        let paused = self.paused().len();
        let is_unclear = self.retries.is_unclear(self.successes);
        let early = self.reorder.as_ref().map_or(0, ReorderBuffer::len);
        let invalid = self.invalid.0.len();
        let (waiting, failing) = (self.retries.len() + early + invalid, self.retries.failing());
        let unpublished = self.publisher.unpublished();
        let blocking = self.retries.blocking(&self.full, self.successes, Instant::now());
        if let Some(message) = &blocking {
            self.report_blocking(message);
        }
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.counters.update_status(|status| {
            status.is_database_unavailable = is_unclear;
            status.waiting_messages = number(waiting);
            status.failing = failing;
            status.paused_partitions = number(paused);
            status.blocking = blocking;
            status.unpublished = unpublished;
        });
    }

    fn report_blocking(&mut self, message: &FailingMessage) {
        let FailingMessage { topic, partition, offset, id, event_type, reason, behind, .. } =
            message;
        if self.throttle.is_due(&format!("{topic}/{partition}/{offset} blocks")) {
            tracing::error!(
                id,
                event_type,
                topic,
                partition,
                offset,
                why = reason,
                behind,
                paused_partitions = self.full.len(),
                "one message blocks all later messages of its key"
            );
        }
    }
}

impl InvalidRecords {
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.0.iter().map(|invalid| record_bytes(&invalid.record.0)).sum::<usize>();
        self.0.len() >= KEYS_MAX || bytes >= BYTES_MAX
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.iter().map(|invalid| invalid.due).min()
    }
}

impl BatchItem {
    fn message(&self) -> Option<&Message> {
        if let Self::Pending(pending) = self { Some(&pending.message) } else { None }
    }
}
