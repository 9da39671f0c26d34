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
use std::time::Instant;

use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::blocking::run_blocking;
use crate::certificates::CertificateMonitor;
use crate::error::RelayError;
use crate::plan::Plan;
use crate::sessions::Sessions;
use crate::start::OpenSink;
use crate::stop::StopSignal;
use crate::telemetry::Telemetry;
use crate::topic_monitor::TopicMonitor;
use crate::{RunOptions, Summary};
use postrider_core::lsn::Lsn;
use postrider_core::route::RowOrigin;
use postrider_core::session::{ControlRequest, Owed};
use postrider_kafka::KafkaSink;
use postrider_postgres::wal::{OwnProcesses, PollPositions};

pub use session::poll_mark;
pub(crate) use session::rehearse;

/// What may be in flight of one worker, at least: a record of the usual size.
const BYTES_MIN: u64 = 1 << 20;
/// Rows are counted from here, up to there.
const FIRST: Lsn = Lsn::new(1);
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
    plan.kafka.unconfirmed.bytes = budget.bytes;
    // A batch that is not marked is locked.
    let stop = stop.ending_for_pause();
    let topic_monitor = TopicMonitor::of(&plan, telemetry.clone());
    let certificates = CertificateMonitor::of(&plan, &options, telemetry.clone());
    let mut running = JoinSet::new();
    let keeps_processes = Arc::new(OnceCell::new());
    let own_processes = OwnProcesses::default();
    for (number, telemetry) in (0..workers).zip(telemetry.parts(workers)) {
        let keeps_processes = Arc::clone(&keeps_processes);
        let own_processes = Arc::clone(&own_processes);
        let number = (number, workers);
        let mut worker = Worker { number, marked: FIRST, keeps_processes, own_processes };
        let (plan, options) = (plan.clone(), options.clone());
        let mut sessions = Sessions::new(plan, options, stop.clone(), telemetry);
        if sessions.options.once {
            sessions.supervisor.end_at(END);
        }
        let open_sink = open_sink.clone();
        running.spawn(run_blocking(move || {
            sessions.run_to_end(|sessions| worker.session(sessions, &open_sink))
        }));
    }
    let work = certificates.beside(all(running, &stop));
    let caught_up = topic_monitor.beside(&stop, work).await?;
    let view = telemetry.view();
    let seconds = started.elapsed().as_secs_f64();
    // Positions number the rows of this run: they mean nothing to anybody else.
    let settled = Lsn::ZERO;
    let of_rows = Summary::of(&view.snapshot);
    Ok(Summary { caught_up, seconds, streaming_seconds: seconds, settled, ..of_rows })
}

type Ended = Result<Result<Summary, RelayError>, RelayError>;

/// Waits for all workers. The first error tells the others to end, and is the one that is given back.
async fn all(mut running: JoinSet<Ended>, stop: &StopSignal) -> Result<bool, RelayError> {
    let (mut caught_up, mut failed) = (true, None);
    while let Some(ended) = running.join_next().await {
        match ended.unwrap_or(Err(RelayError::Thread)).and_then(|ended| ended) {
            Ok(summary) => caught_up &= summary.caught_up,
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
    /// Rows up to here are marked.
    marked: Lsn,
    /// Set once sessions were seen to keep their server process: no pooler gives it to another one.
    keeps_processes: Arc<OnceCell<()>>,
    /// Of all workers.
    own_processes: OwnProcesses,
}

impl Worker {
    /// Where positions of a session count from.
    fn positions(&self, owed: Owed) -> PollPositions {
        PollPositions { first: self.marked, owed: owed.until(), end: END }
    }
}
