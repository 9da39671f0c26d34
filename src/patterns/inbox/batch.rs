//! Processes a batch of records: applies their effects in one transaction, and publishes dead letters.
//!
//! Input: records in order of arrival. Output: how many of them, from the first, are handled. Invariant: a
//! record is handled when its effects are committed, were committed before, its type is ignored, or its
//! dead letter is confirmed; nothing becomes a dead letter because the database is unavailable or slow, or
//! because of lock contention. Only when the transaction of the batch fails is each message tried alone, so
//! that one message neither fails nor blocks the others.

use std::cell::Cell;
use std::sync::Arc;

use uuid::Uuid;

use super::cache::DoneCache;
use super::counters::{ConsumerCounters, add};
use super::dlq_publisher::DlqPublisher;
use super::session::{Database, RolledBack};
use super::sqlstate::describe;
use super::stop::ConsumerStop;
use super::{ConsumerSpec, Effects, Failure, InboxError, Interest, InvalidMessage, Message};
use crate::dead_letter::{ConsumerFailure, StoredRecord, now_ms};
use postrider_service::backoff::draw;
use postrider_service::log_throttle::LogThrottle;

/// The error code of a message that its effects reject as poison.
const POISON_CODE: &str = "poison";
/// The error code of a message that has used up its attempts.
const ATTEMPTS_CODE: &str = "attempts_used_up";

/// What processing a batch needs.
pub(super) struct BatchProcessor<E> {
    pub(super) spec: ConsumerSpec,
    pub(super) effects: E,
    pub(super) counters: Arc<ConsumerCounters>,
    pub(super) database: Database,
    pub(super) cache: Option<DoneCache>,
    pub(super) publisher: DlqPublisher,
    pub(super) stop: ConsumerStop,
}

/// Why a batch is abandoned before its end.
#[derive(Debug)]
pub(super) enum Halt {
    /// The consumer was told to stop.
    Stopped,
    /// The consumer cannot continue.
    Fatal(InboxError),
}

/// A record, classified.
#[expect(clippy::large_enum_variant, reason = "nearly all are messages")]
enum BatchItem {
    /// Its effects are to be applied.
    Pending(Message),
    /// Ignored, or processed before.
    Handled,
    /// Becomes a dead letter.
    Invalid(Box<(StoredRecord, InvalidMessage)>),
}

impl<E: Effects> BatchProcessor<E> {
    /// Processes the batch. `handled` is updated as it proceeds, so that it is valid when this is dropped.
    pub(super) async fn process(
        &mut self,
        batch: Vec<StoredRecord>,
        handled: &Cell<usize>,
    ) -> Result<(), Halt> {
        let mut items: Vec<BatchItem> =
            batch.into_iter().map(|record| self.classify(record)).collect();
        self.skip_cached(&mut items).await;
        let pending: Vec<&Message> = items.iter().filter_map(BatchItem::pending).collect();
        let together = pending.len() > 1 && self.process_together(&pending).await?;
        for item in &items {
            match item {
                BatchItem::Handled => {}
                BatchItem::Pending(_) if together => {}
                BatchItem::Pending(message) => self.process_alone(message).await?,
                BatchItem::Invalid(invalid) => {
                    let (record, invalid) = &**invalid;
                    let failure = self.failure(0, now_ms());
                    self.dead_letter(record, (invalid.code(), &invalid.to_string()), failure)
                        .await?;
                }
            }
            handled.set(handled.get() + 1);
        }
        add(&self.counters.batches, 1);
        Ok(())
    }

    fn classify(&self, record: StoredRecord) -> BatchItem {
        let message = match Message::read(record, &self.spec.format) {
            Ok(message) => message,
            Err(invalid) => return BatchItem::Invalid(invalid),
        };
        match self.effects.interest(&message.event_type) {
            Interest::Handle => BatchItem::Pending(message),
            Interest::Unknown => {
                BatchItem::Invalid(Box::new((message.record, InvalidMessage::UnknownType)))
            }
            Interest::Ignore => {
                add(&self.counters.passed_over, 1);
                BatchItem::Handled
            }
        }
    }

    async fn skip_cached(&mut self, items: &mut [BatchItem]) {
        let Some(cache) = &mut self.cache else { return };
        let ids: Vec<Uuid> = items.iter().filter_map(BatchItem::pending).map(|it| it.id).collect();
        let known = cache.find(&ids).await;
        for item in items {
            if item.pending().is_some_and(|message| known.contains(&message.id)) {
                add(&self.counters.duplicates, 1);
                *item = BatchItem::Handled;
            }
        }
    }

    /// One transaction for all. False: they must be tried one by one.
    async fn process_together(&mut self, messages: &[&Message]) -> Result<bool, Halt> {
        let Some(failure) = self.transact(messages).await? else { return Ok(true) };
        let why = describe_failure(&failure);
        tracing::debug!(why, "a batch failed; retrying its messages one by one");
        Ok(false)
    }

    async fn process_alone(&mut self, message: &Message) -> Result<(), Halt> {
        let mut attempts = 0;
        let mut first_failed_ms = None;
        loop {
            let Some(failure) = self.transact(&[message]).await? else { return Ok(()) };
            attempts += 1;
            let first_ms = *first_failed_ms.get_or_insert_with(now_ms);
            let why = describe_failure(&failure);
            let code = match failure {
                Failure::Poison(_) => POISON_CODE,
                Failure::Technical(_) if attempts >= self.spec.attempts_max => ATTEMPTS_CODE,
                Failure::Technical(_) => {
                    tracing::debug!(why, attempts, "a message failed; retrying");
                    self.wait(attempts).await?;
                    continue;
                }
            };
            let failure = self.failure(attempts, first_ms);
            return self.dead_letter(&message.record, (code, &why), failure).await;
        }
    }

    /// A transaction, repeated while the database is unavailable, and for a single message also while there
    /// is contention. `None`: it is committed.
    async fn transact(&mut self, messages: &[&Message]) -> Result<Option<Failure>, Halt> {
        let (mut outages, mut contentions, mut throttle) = (0, 0, LogThrottle::default());
        loop {
            let outcome = self.database.transact(messages, &self.effects, &self.counters).await;
            let is_unavailable = matches!(outcome, Err(RolledBack::Unavailable(_)));
            self.counters.update_status(|status| status.is_database_unavailable = is_unavailable);
            if outages > 0 && !is_unavailable {
                tracing::info!(outages, "the database is available again");
            }
            match outcome {
                Ok(done) => {
                    add(&self.counters.processed, done.applied);
                    add(&self.counters.duplicates, done.duplicates);
                    if done.applied > 0 {
                        self.effects.committed();
                    }
                    if let Some(cache) = &mut self.cache {
                        let ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
                        cache.keep(&ids).await;
                    }
                    return Ok(None);
                }
                Err(RolledBack::Failed(failure)) => return Ok(Some(failure)),
                // Two batches that lock the same rows in different orders would deadlock again and again.
                Err(RolledBack::Contention(failure)) if messages.len() > 1 => {
                    return Ok(Some(failure));
                }
                Err(RolledBack::Contention(failure)) => {
                    let why = describe_failure(&failure);
                    if throttle.is_due(&why) {
                        tracing::warn!(
                            why,
                            "lock contention or a cancelled statement; retrying the message"
                        );
                    }
                    outages = 0;
                    contentions += 1;
                    self.wait(contentions).await?;
                }
                Err(RolledBack::Fatal(error)) => return Err(Halt::Fatal(error)),
                Err(RolledBack::Unavailable(why)) => {
                    if throttle.is_due(&why) {
                        tracing::warn!(why, "the consumer is waiting for its database");
                    }
                    outages += 1;
                    self.wait(outages).await?;
                }
            }
        }
    }

    async fn wait(&self, failures: u32) -> Result<(), Halt> {
        if !self.stop.pause(self.spec.backoff.wait(failures, draw())).await {
            return Err(Halt::Stopped);
        }
        add(&self.counters.retries, 1);
        Ok(())
    }

    async fn dead_letter(
        &mut self,
        record: &StoredRecord,
        why: (&str, &str),
        failure: ConsumerFailure,
    ) -> Result<(), Halt> {
        if !self.publisher.publish(record, why, &failure.after_all(record)).await {
            return Err(Halt::Stopped);
        }
        add(&self.counters.dead_letters, 1);
        Ok(())
    }

    fn failure(&self, attempts: u32, first_failed_ms: i64) -> ConsumerFailure {
        let consumer = self.spec.name.clone();
        ConsumerFailure { consumer, attempts, first_failed_ms, failed_ms: now_ms() }
    }
}

impl BatchItem {
    fn pending(&self) -> Option<&Message> {
        if let Self::Pending(message) = self { Some(message) } else { None }
    }
}

/// The failure, without data of rows.
fn describe_failure(failure: &Failure) -> String {
    match failure {
        Failure::Poison(reason) => reason.clone(),
        Failure::Technical(source) => describe(&**source),
    }
}
