//! The consumer as its application sees it, and the thread that it is.
//!
//! Enters: a [`ConsumerSpec`], the application's [`Effects`], and a future that asks to stop.
//! Leaves: effects in Postgres, offsets in Kafka, and the totals at the end. What always holds: the
//! offsets follow the database; while a batch is at hand the group hears from this member; when the
//! consumer has ended, so have its thread, its session and its membership.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{NoTls, Socket};

use super::dlq_publisher::DlqPublisher;
use super::group::Group;
use super::membership::{Place, Received};
use super::remembered::Remembered;
use super::session::Database;
use super::stop::{self, Stop};
use super::turn::{Halt, Turn};
use super::{ConsumerSpec, Counters, Effects, InboxError, Snapshot};

/// How often the group hears from a member with a batch at hand. Most batches are shorter, and none
/// may last as long as `max.poll.interval.ms`.
const TICK: Duration = Duration::from_millis(200);
/// How long a batch may go on after the consumer was asked to stop; then it is rolled back.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// An idempotent consumer of Kafka topics.
#[derive(Debug)]
pub struct Consumer<E> {
    spec: ConsumerSpec,
    effects: E,
    counters: Arc<Counters>,
}

impl<E: Effects> Consumer<E> {
    /// Checks the specification; nothing is connected yet.
    pub fn new(spec: ConsumerSpec, effects: E) -> Result<Self, InboxError> {
        spec.check()?;
        Ok(Self { spec, effects, counters: Arc::default() })
    }

    /// Its totals and how it stands, also while it runs.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Consumes until `stop` is ready, on a thread of its own. The batch at hand is then finished,
    /// or rolled back if that takes 10 s, its offsets are committed, and the group is left. Brokers,
    /// database and cache that are away are waited for, and so is the dead-letter topic.
    ///
    /// Dropped, the consumer ends the same way in the background.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<Snapshot, InboxError> {
        self.run_with_tls(NoTls, stop).await
    }

    /// The same, with a session that `tls` secures as the database's configuration asks for.
    pub async fn run_with_tls<T>(
        self,
        tls: T,
        stop: impl Future<Output = ()>,
    ) -> Result<Snapshot, InboxError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let (asker, listener) = stop::channel();
        let (report, mut reported) = oneshot::channel();
        let counters = self.counters();
        let work = move || {
            let database = Database::new(&self.spec, tls);
            // Nobody listens when the caller has gone.
            let _ = report.send(self.consume(database, listener));
        };
        let name = "postrider-inbox".to_owned();
        std::thread::Builder::new().name(name).spawn(work).map_err(InboxError::Thread)?;
        let outcome = tokio::select! {
            outcome = &mut reported => outcome,
            () = stop => {
                // Nobody listens when the thread has ended by itself.
                let _ = asker.send(true);
                reported.await
            }
        };
        outcome.map_err(|_| InboxError::Panicked)?.map(|()| counters.snapshot())
    }

    fn consume(self, database: Database, stop: Stop) -> Result<(), InboxError> {
        let Self { spec, effects, counters } = self;
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(InboxError::Thread)?;
        let publisher = DlqPublisher::new(&spec.name, &spec.kafka, spec.backoff, stop.clone());
        let publisher = publisher.map_err(InboxError::DeadLetters)?;
        runtime.block_on(publisher.prepare());
        let cache = spec.remembered.as_ref();
        let remembered =
            cache.map(|cache| Remembered::new(cache, &spec.name, Arc::clone(&counters)));
        let remembered = remembered.transpose()?;
        let mut group = Group::join(&spec, Arc::clone(&counters))?;
        let batch_max = spec.batch_max;
        let mut turn = Turn { spec, effects, counters, database, remembered, publisher, stop };
        let mut outcome = Ok(());
        while outcome.is_ok() && !turn.stop.is_asked() {
            let batch = group.collect(batch_max)?;
            if !batch.is_empty() {
                outcome = settle(&runtime, &mut turn, &mut group, batch);
            }
        }
        group.leave();
        outcome
    }
}

/// Settles a batch, and in Kafka what of it is settled in the database.
fn settle<E: Effects>(
    runtime: &Runtime,
    turn: &mut Turn<E>,
    group: &mut Group,
    batch: Vec<Received>,
) -> Result<(), InboxError> {
    let places: Vec<Place> = batch.iter().map(Received::place).collect();
    let batch = batch.into_iter().map(|received| received.record).collect();
    let settled = Cell::new(0);
    let stop = turn.stop.clone();
    let outcome = runtime.block_on(attend(turn.take(batch, &settled), group, &stop));
    group.settle(places.split_at(settled.get()).0);
    match outcome {
        Ok(()) | Err(Halt::Asked) => Ok(()),
        Err(Halt::Broken(error)) => Err(error),
    }
}

/// Waits for the batch, and lets the group hear from this member meanwhile.
async fn attend(
    work: impl Future<Output = Result<(), Halt>>,
    group: &mut Group,
    stop: &Stop,
) -> Result<(), Halt> {
    let mut work = std::pin::pin!(work);
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let patience = async {
        stop.asked().await;
        tokio::time::sleep(STOP_LIMIT).await;
    };
    let mut patience = std::pin::pin!(patience);
    loop {
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = &mut patience => return Err(Halt::Asked),
            _ = ticks.tick() => group.tend().map_err(Halt::Broken)?,
        }
    }
}
