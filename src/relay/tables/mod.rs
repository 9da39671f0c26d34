//! Delivers rows of tables: those that were there before a slot ([`TableRows::Backfill`]), those of them that are
//! missing in Kafka ([`TableRows::Repair`]), or some of them once more ([`TableRows::Replay`]).
//!
//! Input: a [`Plan`], a [`TableJob`], requests to stop. Output: a [`Summary`], or the error that ended it. Rows go
//! through the session, the sink and the supervisor that a replication stream goes through, so that the same holds
//! of dead letters, refused batches, outages and memory. Invariant: the position of a slot is not moved; a backfill
//! goes on where the progress in Kafka says, and ends with progress from which the stream begins (G6).

mod backfill;
mod error;
mod filter;
mod known;
mod new_slot;
mod order;
mod preview;
mod repair;
mod session;
mod source;
mod watched;
mod zone;

use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::Summary;
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
use postrider_config::Delivery;
use postrider_core::lsn::Lsn;
use postrider_core::progress::BackfillProgress;
use postrider_core::route::RowOrigin;
use postrider_core::session::{ControlRequest, End, Owed};
use postrider_core::supervisor::{
    AfterSession, Conclusion, Left, NextAction, Supervisor, SupervisorPolicy,
};
use postrider_kafka::{AtLeastOnceWithProgress, ExactlyOnce, KafkaSink, Producer};
use postrider_service::backoff::{Backoff, draw};
use source::Settled;

pub use error::TableRowsError;
pub use filter::RowFilter;
use order::order_of;
pub use preview::{JobPreview, TablePreview, preview};
pub use repair::{
    RepairCounts, RepairJob, RepairPreview, RepairSlot, UnknownReason, preview_repair,
};
pub use zone::refuse_without_zone;

/// How soon a request to stop is noticed during a pause.
const STOP_TICK: Duration = Duration::from_millis(20);

/// Which rows are delivered, and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableJob {
    /// Which.
    pub rows: TableRows,
    /// Rows a second at most.
    pub rate: Option<u32>,
}

/// Which rows are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableRows {
    /// Those that committed before the slot, which is made for it.
    Backfill {
        /// From the first row, with a slot that is there: where at-least-once delivery keeps no progress, nobody
        /// knows how far an earlier one came.
        restart: bool,
    },
    /// Of those the ones that are missing in Kafka, for an earlier slot was lost, dropped or moved.
    Repair(RepairJob),
    /// Some of them, whatever the slot is at.
    Replay(RowFilter),
}

impl TableRows {
    pub(super) const fn origin(&self) -> RowOrigin {
        match self {
            Self::Backfill { .. } => RowOrigin::Backfill,
            Self::Repair(_) => RowOrigin::Repair,
            Self::Replay(_) => RowOrigin::Replay,
        }
    }
}

/// Delivers the rows, with the producer that they ask for.
pub async fn deliver_tables(
    plan: Plan,
    job: TableJob,
    stop: StopSignal,
    telemetry: Telemetry,
) -> Result<Summary, RelayError> {
    let plan = Plan { origin: job.rows.origin(), ..plan };
    let every = plan.config.source.status_interval;
    let keeps_progress = matches!(job.rows, TableRows::Backfill { .. } | TableRows::Repair(_));
    if keeps_progress && plan.config.kafka.delivery == Delivery::ExactlyOnce {
        run(plan, job, stop, telemetry, ExactlyOnce::open).await
    } else if keeps_progress && plan.keeps_progress() {
        let open =
            move |spec: &_, lineage: &_, _| AtLeastOnceWithProgress::open(spec, lineage, every);
        run(plan, job, stop, telemetry, open).await
    } else {
        run(plan, job, stop, telemetry, |spec: &_, _: &_, _| Producer::open(spec)).await
    }
}

async fn run<S: KafkaSink + Send + 'static>(
    plan: Plan,
    job: TableJob,
    stop: StopSignal,
    telemetry: Telemetry,
    open_sink: impl OpenSink<S>,
) -> Result<Summary, RelayError> {
    let (retry, clock) = (&plan.config.retry, Clock::start());
    // A command ends by itself: without an answer for so long, too.
    let patience = match retry.give_up_after {
        time if time.is_zero() => Duration::from_mins(1),
        time => time,
    };
    let policy = SupervisorPolicy {
        backoff: Backoff { first: retry.initial, max: retry.max },
        give_up_after: patience,
        login_give_up_after: retry.login_give_up_after,
        grace: plan.config.shutdown.grace,
        wait_for_slot: false,
        acknowledge: true,
    };
    let mut run = TableRun {
        supervisor: Supervisor::new(policy, draw(), clock.instant()),
        reporter: Reporter::new(telemetry.clone(), patience, plan.kafka.topics.clone()),
        runtime: Handle::current(),
        begun: None,
        compared: None,
        nothing_to_repair: None,
        settled: Settled::default(),
        owed: Owed::default(),
        clock,
        plan,
        job,
        stop,
    };
    let stop = run.stop.clone();
    let topic_monitor = TopicMonitor::of(&run.plan, telemetry);
    // SQL waits on the runtime; this thread reads rows.
    tokio::select! {
        result = run_blocking(move || run.run_to_end(&open_sink)) => result?,
        error = topic_monitor.keep() => {
            stop.request(ControlRequest::Abort);
            Err(error)
        }
    }
}

/// Rows on their way, over as many sessions as it takes.
struct TableRun {
    plan: Plan,
    job: TableJob,
    stop: StopSignal,
    clock: Clock,
    supervisor: Supervisor,
    reporter: Reporter,
    runtime: Handle,
    /// The backfill that this process has begun.
    begun: Option<BackfillProgress>,
    /// What a repair has found first.
    compared: Option<RepairCounts>,
    /// Why a repair has nothing to do.
    nothing_to_repair: Option<String>,
    /// How far its sessions came.
    settled: Settled,
    owed: Owed,
}

impl TableRun {
    fn run_to_end<S: KafkaSink + Send>(
        &mut self,
        open_sink: &impl OpenSink<S>,
    ) -> Result<Summary, RelayError> {
        let started = Instant::now();
        loop {
            match self.supervisor.next(self.clock.instant(), self.stop.snapshot()) {
                NextAction::End(conclusion) => return self.concluded(conclusion, started),
                NextAction::Standby(_) => {
                    unreachable!("a command does not wait for a slot");
                }
                NextAction::Wait(time) => std::thread::sleep(time.min(STOP_TICK)),
                NextAction::Begin(_) => {
                    let ended = self.session(open_sink);
                    self.ended(ended)?;
                }
            }
        }
    }

    /// Tells the supervisor how a session ended, and the operator what comes of it.
    fn ended(&mut self, ended: Result<End, RelayError>) -> Result<(), RelayError> {
        let totals = self.reporter.totals();
        let left = Left {
            owed: self.owed,
            settled: Lsn::new(totals.settled_lsn),
            received: Lsn::new(totals.received_lsn),
            has_streamed: self.reporter.has_streamed(),
            useful: self.reporter.take_useful_time(),
        };
        let result = match &ended {
            Ok(end) => Ok(*end),
            Err(error) => Err(failure(error, &self.plan)),
        };
        let request = self.stop.most_urgent();
        let (verdict, _) = self.supervisor.ended(self.clock.instant(), request, left, result);
        let Err(error) = ended else { return Ok(()) };
        let (hint, reason) = (error.hint(), error.reason());
        let help = hint.as_deref();
        match verdict {
            AfterSession::Final => return Err(error),
            AfterSession::GaveUp { quiet } => {
                let last = Box::new(error);
                return Err(RelayError::GaveUp { seconds: quiet.as_secs(), last });
            }
            AfterSession::SlotHeld | AfterSession::Standby => {
                return Err(RelayError::SlotHeld { slot: self.plan.config.source.slot.clone() });
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

    fn concluded(
        &mut self,
        conclusion: Conclusion,
        started: Instant,
    ) -> Result<Summary, RelayError> {
        let caught_up = match conclusion {
            Conclusion::Stopped => false,
            Conclusion::CaughtUp => true,
            Conclusion::GraceExpired { records } => {
                return Err(RelayError::GraceExpired { records });
            }
            Conclusion::Aborted { records } => return Err(RelayError::Aborted { records }),
        };
        self.reporter.state(RelayState::Stopped);
        Ok(Summary {
            caught_up,
            seconds: started.elapsed().as_secs_f64(),
            streaming_seconds: self.reporter.streamed_for().as_secs_f64(),
            repaired: self.compared.take(),
            nothing_to_repair: self.nothing_to_repair.take(),
            ..Summary::of(self.reporter.totals())
        })
    }
}
