//! Delivers rows that wait in their tables, where no replication slot can be had (`source.mode = "poll"`).
//!
//! Input: a [`Plan`], how this run differs, requests to stop. Output: a [`Summary`], or the error that ended it. Each
//! worker is a thread with a connection, a session, a sink and a supervisor, as a relay of the log has one of each, so
//! that the same holds of dead letters, refused batches, outages and memory. Invariant: a row is marked once it is
//! confirmed (G1); rows of one key are with one worker at a time (G2); together the workers have no more in flight than
//! one relay has (G3); an error that only a human can help ends all of them in good order.

mod session;
mod source;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::blocking::run_blocking;
use crate::clock::Clock;
use crate::error::RelayError;
use crate::failure::failure;
use crate::plan::Plan;
use crate::report::Reporter;
use crate::start::OpenSink;
use crate::stop::StopSignal;
use crate::telemetry::{RelayState, Telemetry};
use crate::topic_monitor::TopicMonitor;
use crate::{RunOptions, Summary};
use postrider_core::lsn::Lsn;
use postrider_core::route::RowOrigin;
use postrider_core::session::{ControlRequest, End, Owed};
use postrider_core::supervisor::{
    AfterSession, Conclusion, Left, NextAction, RefusalConsequence, Supervisor, SupervisorPolicy,
};
use postrider_kafka::{KafkaSink, learn_topic_settings};
use postrider_postgres::wal::PollPositions;
use postrider_service::backoff::{Backoff, draw};

pub use session::poll_mark;

/// How soon a request to stop is noticed during a pause.
const STOP_TICK: Duration = Duration::from_millis(20);
/// How long a topic's settings are waited for, once, when it has refused something.
const SETTINGS_LIMIT: Duration = Duration::from_secs(2);
/// What may be in flight of one worker, at least: a record of the usual size.
const BYTES_MIN: u64 = 1 << 20;
/// Rows are counted from here, up to there.
const FIRST: u64 = 1;
const END: Lsn = Lsn::new(1 << 61);

/// Runs the workers until they are told to stop, no row waits (`once`), or they must not go on.
pub(super) async fn run<S: KafkaSink + Send + 'static>(
    plan: Plan,
    options: RunOptions,
    stop: StopSignal,
    telemetry: Telemetry,
    open_sink: impl OpenSink<S>,
) -> Result<Summary, RelayError> {
    assert!(options.acknowledge, "rows that are polled are marked: a dry run is refused before");
    let started = Instant::now();
    let workers = plan.config.source.poll.workers;
    let mut plan = Plan { origin: RowOrigin::Poll, ..plan };
    let budget = &mut plan.kafka.budget;
    budget.bytes = (budget.bytes / u64::from(workers)).max(BYTES_MIN.min(budget.bytes));
    let topic_monitor = TopicMonitor::of(&plan, telemetry.clone());
    let mut running = JoinSet::new();
    for (number, telemetry) in (0..workers).zip(telemetry.parts(workers)) {
        let number = (number, workers);
        let mut worker = Worker::new(number, &plan, &options, (stop.clone(), telemetry));
        let open_sink = open_sink.clone();
        running.spawn(run_blocking(move || worker.run_to_end(&open_sink)));
    }
    let ended = tokio::select! {
        ended = all(running, &stop) => ended,
        error = topic_monitor.keep() => {
            stop.request(ControlRequest::Abort);
            Err(error)
        }
    };
    let caught_up = ended?;
    let view = telemetry.view();
    let seconds = started.elapsed().as_secs_f64();
    Ok(Summary { caught_up, seconds, streaming_seconds: seconds, ..Summary::of(&view.snapshot) })
}

type Ended = Result<Result<bool, RelayError>, RelayError>;

/// Waits for all workers. The first error tells the others to end, and is the one that is given back.
async fn all(mut running: JoinSet<Ended>, stop: &StopSignal) -> Result<bool, RelayError> {
    let (mut caught_up, mut failed) = (true, None);
    while let Some(ended) = running.join_next().await {
        match ended.unwrap_or(Err(RelayError::Thread)).and_then(|ended| ended) {
            Ok(has_caught_up) => caught_up &= has_caught_up,
            Err(error) => {
                stop.request(ControlRequest::Drain);
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(caught_up), Err)
}

/// One batch at a time, over as many sessions as it takes.
struct Worker {
    /// From 0, and how many there are.
    number: (u32, u32),
    plan: Plan,
    once: bool,
    stop: StopSignal,
    telemetry: Telemetry,
    clock: Clock,
    supervisor: Supervisor,
    reporter: Reporter,
    runtime: Handle,
    /// Rows up to here are marked.
    marked: Arc<AtomicU64>,
    owed: Owed,
}

impl Worker {
    fn new(
        number: (u32, u32),
        plan: &Plan,
        options: &RunOptions,
        (stop, telemetry): (StopSignal, Telemetry),
    ) -> Self {
        let (retry, clock) = (&plan.config.retry, Clock::start());
        let patience = options.patience.unwrap_or(retry.give_up_after);
        let policy = SupervisorPolicy {
            backoff: Backoff { first: retry.initial, max: retry.max },
            give_up_after: patience,
            login_give_up_after: retry.login_give_up_after,
            grace: plan.config.shutdown.grace,
            wait_for_slot: true,
            acknowledge: true,
        };
        let mut supervisor = Supervisor::new(policy, draw(), clock.instant());
        if options.once {
            supervisor.end_at(END);
        }
        Self {
            number,
            supervisor,
            reporter: Reporter::new(telemetry.clone(), patience, plan.kafka.topics.clone()),
            runtime: Handle::current(),
            marked: Arc::new(AtomicU64::new(FIRST)),
            owed: Owed::default(),
            once: options.once,
            plan: plan.clone(),
            stop,
            telemetry,
            clock,
        }
    }

    /// Whether it has found that no row waits.
    fn run_to_end<S: KafkaSink + Send>(
        &mut self,
        open_sink: &impl OpenSink<S>,
    ) -> Result<bool, RelayError> {
        let ended = self.supervise(open_sink);
        let state = if ended.is_ok() { RelayState::Stopped } else { RelayState::Failed };
        self.reporter.state(state);
        ended
    }

    fn supervise<S: KafkaSink + Send>(
        &mut self,
        open_sink: &impl OpenSink<S>,
    ) -> Result<bool, RelayError> {
        loop {
            match self.supervisor.next(self.clock.instant(), self.stop.snapshot()) {
                NextAction::End(Conclusion::Stopped) => return Ok(false),
                NextAction::End(Conclusion::CaughtUp) => return Ok(true),
                NextAction::End(Conclusion::GraceExpired { records }) => {
                    return Err(RelayError::GraceExpired { records });
                }
                NextAction::End(Conclusion::Aborted { records }) => {
                    return Err(RelayError::Aborted { records });
                }
                NextAction::Standby(_) => unreachable!("who polls does not wait for a slot"),
                NextAction::Wait(time) => {
                    self.telemetry.tick();
                    std::thread::sleep(time.min(STOP_TICK));
                }
                NextAction::Begin(_) => {
                    let ended = self.session(open_sink);
                    self.ended(ended)?;
                }
            }
        }
    }

    /// Where positions of a session count from.
    fn positions(&self) -> PollPositions {
        PollPositions { first: self.marked(), owed: self.owed.until(), end: END }
    }

    /// Tells the supervisor how a session ended, and the operator what comes of it.
    fn ended(&mut self, ended: Result<End, RelayError>) -> Result<(), RelayError> {
        // A batch is marked and committed at once: what the database was told, it has heard.
        self.owed = self.owed.settled(self.marked());
        let totals = self.reporter.totals();
        let left = Left {
            owed: self.owed,
            settled: self.marked(),
            received: Lsn::new(totals.received_lsn),
            has_streamed: self.reporter.has_streamed(),
            useful: self.reporter.take_useful_time(),
        };
        let result = match &ended {
            Ok(end) => Ok(*end),
            Err(error) => Err(failure(error, &self.plan)),
        };
        let request = self.stop.most_urgent();
        let (verdict, learned) = self.supervisor.ended(self.clock.instant(), request, left, result);
        let Err(error) = ended else { return Ok(()) };
        let (hint, reason) = (error.hint(), error.reason());
        let help = hint.as_deref();
        self.reporter.failed(&error, help);
        if let Some(learned) = learned {
            self.look_up(&learned);
        }
        match verdict {
            AfterSession::Final | AfterSession::SlotHeld | AfterSession::Standby => {
                return Err(error);
            }
            AfterSession::GaveUp { quiet } => {
                let last = Box::new(error);
                return Err(RelayError::GaveUp { seconds: quiet.as_secs(), last });
            }
            AfterSession::Retry { failures } => {
                tracing::warn!(failures, help, "{error}; trying again");
            }
            AfterSession::SendDifferently => tracing::warn!(help, "{error}; sending differently"),
            AfterSession::GoOn | AfterSession::ServerShutdown => {}
        }
        self.reporter.restart(reason);
        Ok(())
    }

    /// Topics that refused something may say why by their settings; brokers that do not answer are left to the
    /// sessions.
    fn look_up(&self, learned: &RefusalConsequence) {
        if learned.unexplained.is_empty() {
            return;
        }
        let (kafka, topics) = (self.plan.kafka.clone(), learned.unexplained.clone());
        let asked = run_blocking(move || learn_topic_settings(&kafka, &topics));
        let asked = async { tokio::time::timeout(SETTINGS_LIMIT, asked).await };
        let _ = self.runtime.block_on(asked);
    }
}
