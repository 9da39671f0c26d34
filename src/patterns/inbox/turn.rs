//! What becomes of a batch of records.
//!
//! Enters: records in order of arrival. Leaves: effects, dead letters, and how many records of the
//! batch, from its beginning, are settled. What always holds: a record is settled when its effects are
//! committed, were committed before, are not wanted, or its dead letter is confirmed; nothing becomes a
//! dead letter because the database is away or slow, or another transaction in the way. A batch is one
//! transaction; only when that fails is each message tried alone, so that one neither dooms nor blocks
//! the others, and holds few locks.

use std::cell::Cell;
use std::sync::Arc;

use uuid::Uuid;

use super::counters::{Counters, add};
use super::dlq_publisher::DlqPublisher;
use super::remembered::Remembered;
use super::session::{Database, Undone};
use super::stop::Stop;
use super::trouble::describe;
use super::{ConsumerSpec, Effects, Failure, InboxError, Interest, Message, Unfit};
use crate::dead_letter::{ConsumerFailure, StoredRecord, now_ms};
use postrider_service::backoff::draw;
use postrider_service::log_throttle::LogThrottle;

/// The code of a message whose effects call it poison.
const POISON_CODE: &str = "poison";
/// The code of a message whose attempts are used up.
const ATTEMPTS_CODE: &str = "attempts_used_up";

/// All that batches need.
pub(super) struct Turn<E> {
    pub(super) spec: ConsumerSpec,
    pub(super) effects: E,
    pub(super) counters: Arc<Counters>,
    pub(super) database: Database,
    pub(super) remembered: Option<Remembered>,
    pub(super) publisher: DlqPublisher,
    pub(super) stop: Stop,
}

/// Why a batch is left before its end.
#[derive(Debug)]
pub(super) enum Halt {
    /// The consumer is to stop.
    Asked,
    /// It cannot go on.
    Broken(InboxError),
}

/// A record, looked at.
#[expect(clippy::large_enum_variant, reason = "nearly all are messages")]
enum Item {
    /// To have its effects.
    Wanted(Message),
    /// Nothing to do, or done already.
    Settled,
    /// A dead letter to be.
    Unfit(Box<(StoredRecord, Unfit)>),
}

impl<E: Effects> Turn<E> {
    /// Settles the batch. `settled` follows, so that it is known also when this is dropped.
    pub(super) async fn take(
        &mut self,
        batch: Vec<StoredRecord>,
        settled: &Cell<usize>,
    ) -> Result<(), Halt> {
        let mut items: Vec<Item> = batch.into_iter().map(|record| self.look(record)).collect();
        self.pass_over_remembered(&mut items).await;
        let wanted: Vec<&Message> = items.iter().filter_map(Item::wanted).collect();
        let together = wanted.len() > 1 && self.settle_together(&wanted).await?;
        for item in &items {
            match item {
                Item::Settled => {}
                Item::Wanted(_) if together => {}
                Item::Wanted(message) => self.settle_alone(message).await?,
                Item::Unfit(unfit) => {
                    let (record, unfit) = &**unfit;
                    let failure = self.failure(0, now_ms());
                    self.set_aside(record, (unfit.code(), &unfit.to_string()), failure).await?;
                }
            }
            settled.set(settled.get() + 1);
        }
        add(&self.counters.batches, 1);
        Ok(())
    }

    fn look(&self, record: StoredRecord) -> Item {
        let message = match Message::read(record) {
            Ok(message) => message,
            Err(unfit) => return Item::Unfit(unfit),
        };
        match self.effects.interest(&message.event_type) {
            Interest::Take => Item::Wanted(message),
            Interest::Unknown => Item::Unfit(Box::new((message.record, Unfit::UnknownType))),
            Interest::PassOver => {
                add(&self.counters.passed_over, 1);
                Item::Settled
            }
        }
    }

    async fn pass_over_remembered(&mut self, items: &mut [Item]) {
        let Some(remembered) = &mut self.remembered else { return };
        let ids: Vec<Uuid> = items.iter().filter_map(Item::wanted).map(|it| it.id).collect();
        let known = remembered.recall(&ids).await;
        for item in items {
            if item.wanted().is_some_and(|message| known.contains(&message.id)) {
                add(&self.counters.duplicates, 1);
                *item = Item::Settled;
            }
        }
    }

    /// One transaction for all. False: they must be tried one by one.
    async fn settle_together(&mut self, messages: &[&Message]) -> Result<bool, Halt> {
        let Some(failure) = self.transact(messages).await? else { return Ok(true) };
        let why = told(&failure);
        tracing::debug!(why, "a batch failed; its messages are tried one by one");
        Ok(false)
    }

    async fn settle_alone(&mut self, message: &Message) -> Result<(), Halt> {
        let mut attempts = 0;
        let mut first_failed_ms = None;
        loop {
            let Some(failure) = self.transact(&[message]).await? else { return Ok(()) };
            attempts += 1;
            let first_ms = *first_failed_ms.get_or_insert_with(now_ms);
            let why = told(&failure);
            let code = match failure {
                Failure::Poison(_) => POISON_CODE,
                Failure::Technical(_) if attempts >= self.spec.attempts_max => ATTEMPTS_CODE,
                Failure::Technical(_) => {
                    tracing::debug!(why, attempts, "a message failed; it is tried again");
                    self.wait(attempts).await?;
                    continue;
                }
            };
            let failure = self.failure(attempts, first_ms);
            return self.set_aside(&message.record, (code, &why), failure).await;
        }
    }

    /// A transaction, as often as the database is away, or as others are in the way of a message that
    /// is alone. `None`: it is committed.
    async fn transact(&mut self, messages: &[&Message]) -> Result<Option<Failure>, Halt> {
        let (mut outages, mut encounters, mut throttle) = (0, 0, LogThrottle::default());
        loop {
            let outcome = self.database.transact(messages, &self.effects, &self.counters).await;
            let is_away = matches!(outcome, Err(Undone::Away(_)));
            self.counters.stand(|standing| standing.is_database_away = is_away);
            if outages > 0 && !is_away {
                tracing::info!(outages, "the database answers again");
            }
            match outcome {
                Ok(done) => {
                    add(&self.counters.processed, done.applied);
                    add(&self.counters.duplicates, done.duplicates);
                    if done.applied > 0 {
                        self.effects.committed();
                    }
                    if let Some(remembered) = &mut self.remembered {
                        let ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
                        remembered.keep(&ids).await;
                    }
                    return Ok(None);
                }
                Err(Undone::Failed(failure)) => return Ok(Some(failure)),
                // Two batches that take the same rows in another order would meet again and again.
                Err(Undone::InTheWay(failure)) if messages.len() > 1 => return Ok(Some(failure)),
                Err(Undone::InTheWay(failure)) => {
                    let why = told(&failure);
                    if throttle.is_due(&why) {
                        tracing::warn!(why, "something is in the way of a message; trying again");
                    }
                    outages = 0;
                    encounters += 1;
                    self.wait(encounters).await?;
                }
                Err(Undone::Broken(error)) => return Err(Halt::Broken(error)),
                Err(Undone::Away(why)) => {
                    if throttle.is_due(&why) {
                        tracing::warn!(why, "the consumer waits for its database");
                    }
                    outages += 1;
                    self.wait(outages).await?;
                }
            }
        }
    }

    async fn wait(&self, failures: u32) -> Result<(), Halt> {
        if !self.stop.pause(self.spec.backoff.wait(failures, draw())).await {
            return Err(Halt::Asked);
        }
        add(&self.counters.retries, 1);
        Ok(())
    }

    async fn set_aside(
        &mut self,
        record: &StoredRecord,
        why: (&str, &str),
        failure: ConsumerFailure,
    ) -> Result<(), Halt> {
        if !self.publisher.publish(record, why, &failure.after_all(record)).await {
            return Err(Halt::Asked);
        }
        add(&self.counters.dead_letters, 1);
        Ok(())
    }

    fn failure(&self, attempts: u32, first_failed_ms: i64) -> ConsumerFailure {
        let consumer = self.spec.name.clone();
        ConsumerFailure { consumer, attempts, first_failed_ms, failed_ms: now_ms() }
    }
}

impl Item {
    fn wanted(&self) -> Option<&Message> {
        if let Self::Wanted(message) = self { Some(message) } else { None }
    }
}

/// What may be said of a failure.
fn told(failure: &Failure) -> String {
    match failure {
        Failure::Poison(reason) => reason.clone(),
        Failure::Technical(source) => describe(&**source),
    }
}
