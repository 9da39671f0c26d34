//! Delivers rows by polling their tables, for servers without a replication slot (`source.mode =
//! "poll"`).
//!
//! Each worker has a thread, a connection, a session, a sink and a supervisor, as for a replication
//! stream. Invariant:
//!
//! * A row is marked after its confirmation (G1).
//! * Only one worker at a time has rows of a given key (G2).
//! * All workers together have no more bytes in flight than one relay (G3).
//! * An error that needs an operator ends all workers in an orderly way.

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

/// Minimum per worker: one record of typical size.
const BYTES_MIN: u64 = 1 << 20;
/// Range of the positions that number the rows.
const FIRST: Lsn = Lsn::new(1);
const END: Lsn = Lsn::new(1 << 61);

/// Runs the workers until a stop, until no row waits (`once`), or until an error.
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
    // The rows of an unmarked batch stay locked, so a pause must end the session.
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
    // Positions number the rows of this run, and have no meaning elsewhere.
    let settled = Lsn::ZERO;
    let of_rows = Summary::of(&view.snapshot);
    Ok(Summary { caught_up, seconds, streaming_seconds: seconds, settled, ..of_rows })
}

type Ended = Result<Result<Summary, RelayError>, RelayError>;

/// The first error also stops the other workers.
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

/// Delivers one batch at a time, over one or more sessions.
struct Worker {
    /// Number of this worker, from 0, and number of workers.
    number: (u32, u32),
    /// Position up to which rows are marked.
    marked: Lsn,
    /// Set after the check that no pooler assigns a session's server process to another session.
    keeps_processes: Arc<OnceCell<()>>,
    /// Server processes of all workers.
    own_processes: OwnProcesses,
}

impl Worker {
    fn positions(&self, owed: Owed) -> PollPositions {
        PollPositions { first: self.marked, owed: owed.until(), end: END }
    }
}
