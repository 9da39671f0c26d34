//! Keeps the offsets of the database and of Kafka consistent between batches. Invariant: retries
//! with back-off block neither the group's polls nor the end of the consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_service::backoff::{Backoff, draw};
use postrider_service::log_throttle::LogThrottle;

use super::InboxError;
use super::batch::{BatchProcessor, Halt};
use super::consumer::process_and_poll;
use super::counters::{ConsumerCounters, add};
use super::group::Group;
use super::session::{Database, RolledBack};
use super::stop::ConsumerStop;

/// For offsets of messages that needed no transaction.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks for a step back of the database. Idle partitions have no transactions that
/// check.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const FINISH_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Upkeep {
    counters: Arc<ConsumerCounters>,
    stop: ConsumerStop,
    backoff: Backoff,
    stored: Instant,
    checked: Instant,
    /// Number of dead letters whose offsets the database has. A repeated dead letter is harmless,
    /// but an operator must look at it, so its offset is stored at once.
    dead_letters: u64,
    failures: u32,
    is_unavailable: bool,
    retry_at: Option<Instant>,
    throttle: LogThrottle,
}

enum Failed {
    Stopped,
    WentBack,
    /// The brokers did not answer, or a partition is not ready.
    NotYet,
    Database {
        why: String,
        hint: Option<&'static str>,
        is_unavailable: bool,
    },
    Fatal(InboxError),
}

impl Upkeep {
    pub(super) fn new<E>(processor: &BatchProcessor<E>) -> Self {
        let now = Instant::now();
        Self {
            counters: Arc::clone(&processor.counters),
            stop: processor.stop.clone(),
            backoff: processor.spec.backoff,
            stored: now,
            checked: now,
            dead_letters: 0,
            failures: 0,
            is_unavailable: false,
            retry_at: None,
            throttle: LogThrottle::default(),
        }
    }

    pub(super) async fn run(
        &mut self,
        database: &mut Database,
        group: &mut Group,
    ) -> Result<(), InboxError> {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        match self.attempt(database, group).await {
            Ok(false) | Err(Failed::Stopped) => {}
            Ok(true) => self.note_success(),
            Err(Failed::WentBack) => {
                self.note_success();
                group.recheck();
            }
            Err(Failed::Fatal(error)) => return Err(error),
            Err(Failed::NotYet) => self.retry_later(),
            Err(Failed::Database { why, hint, is_unavailable }) => {
                self.is_unavailable |= is_unavailable;
                if is_unavailable {
                    self.counters.update_status(|status| status.is_database_unavailable = true);
                }
                if self.throttle.is_due(&why) {
                    tracing::warn!(
                        why,
                        hint,
                        "cannot read or write the consumer's offsets; retrying"
                    );
                }
                add(&self.counters.retries, 1);
                self.retry_later();
            }
        }
        Ok(())
    }

    fn note_success(&mut self) {
        // The result of a batch is more precise: perhaps no message can have its effects.
        if std::mem::take(&mut self.is_unavailable) {
            self.counters.update_status(|status| status.is_database_unavailable = false);
        }
        (self.failures, self.retry_at) = (0, None);
    }

    fn retry_later(&mut self) {
        self.failures += 1;
        self.retry_at = Some(Instant::now() + self.backoff.wait(self.failures, draw()));
    }

    /// Stores the last offsets, so that no message is read again without need.
    pub(super) async fn finish(&mut self, database: &mut Database, group: &Group) {
        let waiting = group.not_stored();
        if waiting.is_empty() {
            return;
        }
        let stored = tokio::time::timeout(FINISH_LIMIT, database.store(&waiting)).await;
        if matches!(stored, Ok(Ok(()))) {
            group.mark_stored(&waiting);
        }
    }

    async fn attempt(
        &mut self,
        database: &mut Database,
        group: &mut Group,
    ) -> Result<bool, Failed> {
        if group.has_unverified() {
            self.begin(database, group).await?;
            return Ok(true);
        }
        let dead_letters = self.counters.snapshot().dead_letters;
        if dead_letters > self.dead_letters || self.stored.elapsed() >= STORE_INTERVAL {
            self.stored = Instant::now();
            let waiting = group.not_stored();
            if !waiting.is_empty() {
                self.ask(group, database.store(&waiting)).await?;
                self.dead_letters = dead_letters;
                group.mark_stored(&waiting);
                return Ok(true);
            }
            self.dead_letters = dead_letters;
        }
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.checked = Instant::now();
            let offsets = self.ask(group, database.offsets()).await?;
            if group.is_ahead_of(&offsets) {
                group.recheck();
            }
            return Ok(true);
        }
        Ok(false)
    }

    async fn begin(&self, database: &mut Database, group: &mut Group) -> Result<(), Failed> {
        let offsets = self.ask(group, database.offsets()).await?;
        let plan = group.plan(&offsets).ok_or(Failed::NotYet)?;
        self.ask(group, database.carry_out(&plan)).await?;
        if group.begin(&plan.starts) { Ok(()) } else { Err(Failed::NotYet) }
    }

    async fn ask<T>(
        &self,
        group: &mut Group,
        request: impl Future<Output = Result<T, RolledBack>>,
    ) -> Result<T, Failed> {
        let request = async { Ok(request.await) };
        let answer = process_and_poll(request, group, (&self.stop, Duration::ZERO)).await;
        answer?.map_err(Failed::from)
    }
}

impl From<Halt> for Failed {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Stopped => Self::Stopped,
            Halt::WentBack => Self::WentBack,
            Halt::Fatal(error) => Self::Fatal(error),
        }
    }
}

impl From<RolledBack> for Failed {
    fn from(rolled_back: RolledBack) -> Self {
        match rolled_back {
            RolledBack::WentBack => Self::WentBack,
            other => {
                let is_unavailable = matches!(other, RolledBack::Unavailable { .. });
                let (why, hint) = other.explain();
                Self::Database { why, hint, is_unavailable }
            }
        }
    }
}
