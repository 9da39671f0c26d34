//! `Consumer`: runs an idempotent consumer on its own thread.
//!
//! Invariant: Kafka's offsets are committed after the database transaction. The consumer polls
//! while a batch is processed, so it stays in its group.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{NoTls, Socket};

use super::assignments::ReceivedRecord;
use super::batch::{BatchProcessor, Halt, InvalidRecords};
use super::cache::DoneCache;
use super::dlq_publisher::DlqPublisher;
use super::group::Group;
use super::retries::RetryQueue;
use super::sequence::ReorderBuffer;
use super::session::Database;
use super::stop::{self, ConsumerStop};
use super::upkeep::Upkeep;
use super::{ConsumerCounters, ConsumerSnapshot, ConsumerSpec, Effects, InboxError};
use postrider_service::log_throttle::LogThrottle;

/// Poll interval while a batch is processed; below `max.poll.interval.ms`.
const TICK: Duration = Duration::from_millis(200);
/// A batch that takes longer is rolled back.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// An idempotent consumer of Kafka topics.
#[derive(Debug)]
#[must_use = "nothing is consumed before `run`"]
pub struct Consumer<E> {
    spec: ConsumerSpec,
    effects: E,
    counters: Arc<ConsumerCounters>,
}

impl<E: Effects> Consumer<E> {
    /// Checks the specification. Does not connect.
    pub fn new(spec: ConsumerSpec, effects: E) -> Result<Self, InboxError> {
        spec.check()?;
        Ok(Self { spec, effects, counters: Arc::default() })
    }

    /// Counters and the status, also while the consumer runs.
    pub fn counters(&self) -> Arc<ConsumerCounters> {
        Arc::clone(&self.counters)
    }

    /// Consumes until `stop` completes. It then finishes the current batch within 10 s or rolls it
    /// back, and leaves the group within 5 s. Until then it waits for unavailable brokers,
    /// databases and the dead-letter topic.
    ///
    /// Call it in a Tokio runtime, in whose context `Effects::committed` is called. If the future
    /// is dropped, the consumer stops in the background.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<ConsumerSnapshot, InboxError> {
        self.run_with_tls(NoTls, stop).await
    }

    /// Runs like [`run`](Self::run), with TLS as the database's configuration requires.
    pub async fn run_with_tls<T>(
        self,
        tls: T,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerSnapshot, InboxError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let (stop_sender, stop_signal) = stop::channel();
        let (report, mut reported) = oneshot::channel();
        let counters = self.counters();
        let callers = Handle::try_current().map_err(|_| InboxError::NoRuntime)?;
        let work = move || {
            let database = Database::new(&self.spec, tls);
            let _ = report.send(self.consume(database, callers, stop_signal));
        };
        let name = "postrider-inbox".to_owned();
        std::thread::Builder::new().name(name).spawn(work).map_err(InboxError::Thread)?;
        let outcome = tokio::select! {
            outcome = &mut reported => outcome,
            () = stop => {
                let _ = stop_sender.send(true);
                reported.await
            }
        };
        outcome.map_err(|_| InboxError::Panicked)?.map(|()| counters.snapshot())
    }

    fn consume(
        self,
        database: Database,
        callers: Handle,
        stop: ConsumerStop,
    ) -> Result<(), InboxError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(InboxError::Thread)?;
        let outcome = self.consume_in(&runtime, database, callers, stop);
        // A request to brokers that hang may still be running.
        runtime.shutdown_background();
        outcome
    }

    fn consume_in(
        self,
        runtime: &Runtime,
        database: Database,
        callers: Handle,
        stop: ConsumerStop,
    ) -> Result<(), InboxError> {
        let Self { spec, effects, counters } = self;
        let publisher = DlqPublisher::new(&spec.name, &spec.kafka, spec.backoff, stop.clone());
        let publisher = publisher.map_err(InboxError::DeadLetters)?;
        runtime.block_on(publisher.prepare());
        let cache = spec.cache.as_ref();
        let cache = cache.map(|cache| DoneCache::new(cache, &spec.name, Arc::clone(&counters)));
        let cache = cache.transpose()?;
        let mut group = Group::join(&spec, Arc::clone(&counters))?;
        let batch_max = spec.batch_max;
        let mut processor = BatchProcessor {
            membership: group.membership(),
            retries: RetryQueue::default(),
            invalid: InvalidRecords::default(),
            full: BTreeSet::new(),
            ahead: BTreeSet::new(),
            reorder: spec.sequence.map(|it| ReorderBuffer::new(it, Instant::now())),
            successes: 0,
            is_commit_unknown: false,
            unmarked: HashSet::new(),
            throttle: LogThrottle::default(),
            spec,
            effects,
            callers,
            counters,
            database,
            cache,
            publisher,
            stop,
        };
        let mut upkeep = Upkeep::new(&processor);
        let mut outcome = Ok(());
        while outcome.is_ok() && !processor.stop.is_requested() {
            outcome = runtime.block_on(upkeep.run(&mut processor.database, &mut group));
            if outcome.is_err() {
                break;
            }
            let batch = if processor.is_full() {
                group.poll_paused()?;
                Vec::new()
            } else {
                let is_due = processor.is_due();
                group.collect(batch_max, &processor.paused(), is_due)?
            };
            if !batch.is_empty() || processor.is_due() {
                outcome = run_batch(runtime, &mut processor, &mut group, batch);
            }
        }
        runtime.block_on(upkeep.finish(&mut processor.database, &group));
        // The consumer leaves the group after every other reference to it is dropped.
        drop(processor);
        group.leave();
        outcome
    }
}

fn run_batch<E: Effects>(
    runtime: &Runtime,
    processor: &mut BatchProcessor<E>,
    group: &mut Group,
    batch: Vec<ReceivedRecord>,
) -> Result<(), InboxError> {
    let stop = processor.stop.clone();
    let outcome =
        runtime.block_on(process_and_poll(processor.process(batch), group, (&stop, STOP_LIMIT)));
    group.commit_changed();
    match outcome {
        Ok(()) | Err(Halt::Stopped) => Ok(()),
        Err(Halt::WentBack) => {
            group.recheck();
            Ok(())
        }
        Err(Halt::Fatal(error)) => Err(error),
    }
}

/// Abandons the work `limit` after a stop request.
pub(super) async fn process_and_poll<T>(
    work: impl Future<Output = Result<T, Halt>>,
    group: &mut Group,
    (stop, limit): (&ConsumerStop, Duration),
) -> Result<T, Halt> {
    let mut work = std::pin::pin!(work);
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop_timeout = async {
        stop.asked().await;
        tokio::time::sleep(limit).await;
    };
    let mut stop_timeout = std::pin::pin!(stop_timeout);
    loop {
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = &mut stop_timeout => return Err(Halt::Stopped),
            _ = ticks.tick() => group.poll_paused().map_err(Halt::Fatal)?,
        }
    }
}
