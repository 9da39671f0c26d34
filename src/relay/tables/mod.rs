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

use std::time::Duration;

use tokio::runtime::Handle;

use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::meter::Meter;
use crate::plan::Plan;
use crate::sessions::Sessions;
use crate::start::OpenSink;
use crate::stop::StopSignal;
use crate::telemetry::Telemetry;
use crate::topic_monitor::TopicMonitor;
use crate::{RunOptions, Summary};
use postrider_config::Delivery;
use postrider_core::progress::BackfillProgress;
use postrider_core::route::RowOrigin;
use postrider_kafka::{AtLeastOnceWithProgress, ExactlyOnce, KafkaSink, Producer};
use source::Place;

pub use error::TableRowsError;
pub use filter::RowFilter;
pub use known::holds_for_tables;
use order::order_of;
pub use preview::{JobPreview, TablePreview, preview};
pub use repair::{
    RepairCounts, RepairJob, RepairPreview, RepairSlot, UnknownReason, preview_repair,
};
pub use zone::refuse_without_zone;

/// A command ends by itself: without an answer for so long, too, where a relay never gives up.
const PATIENCE: Duration = Duration::from_mins(1);

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
    meter: Meter,
) -> Result<Summary, RelayError> {
    let plan = Plan { origin: job.rows.origin(), ..plan };
    let every = plan.config.source.status_interval;
    let watched = (telemetry, meter);
    let keeps_progress = matches!(job.rows, TableRows::Backfill { .. } | TableRows::Repair(_));
    if keeps_progress && plan.config.kafka.delivery == Delivery::ExactlyOnce {
        // Not on the stack of the caller, which would have room for each kind of sink.
        Box::pin(run(plan, job, stop, watched, ExactlyOnce::open)).await
    } else if keeps_progress && plan.keeps_progress() {
        let open =
            move |spec: &_, lineage: &_, _| AtLeastOnceWithProgress::open(spec, lineage, every);
        Box::pin(run(plan, job, stop, watched, open)).await
    } else {
        let open = |spec: &_, _: &_, _| Producer::open(spec);
        Box::pin(run(plan, job, stop, watched, open)).await
    }
}

async fn run<S: KafkaSink + Send + 'static>(
    plan: Plan,
    job: TableJob,
    stop: StopSignal,
    (telemetry, meter): (Telemetry, Meter),
    open_sink: impl OpenSink<S>,
) -> Result<Summary, RelayError> {
    let patience = match plan.config.retry.give_up_after {
        time if time.is_zero() => PATIENCE,
        time => time,
    };
    let options =
        RunOptions { wait_for_slot: false, patience: Some(patience), ..RunOptions::default() };
    let mut run = TableRun {
        job,
        stop: stop.clone(),
        meter,
        runtime: Handle::current(),
        begun: None,
        counted_from: None,
        compared: None,
        nothing_to_repair: None,
        settled: Place::default(),
    };
    let topic_monitor = TopicMonitor::of(&plan, telemetry.clone());
    let mut sessions = Sessions::new(plan, options, stop.clone(), telemetry);
    // SQL waits on the runtime; this thread reads rows.
    let work = run_blocking(move || {
        let ended = sessions.run_to_end(|sessions| run.session(sessions, &open_sink));
        let (repaired, nothing_to_repair) = (run.compared, run.nothing_to_repair);
        ended.map(|summary| Summary { repaired, nothing_to_repair, ..summary })
    });
    topic_monitor.beside(&stop, async { work.await? }).await
}

/// Rows on their way, over as many sessions as it takes.
struct TableRun {
    job: TableJob,
    stop: StopSignal,
    meter: Meter,
    runtime: Handle,
    /// The backfill that this process has begun.
    begun: Option<BackfillProgress>,
    /// The place that the first session began at: the rows of before are counted as of then.
    counted_from: Option<BackfillProgress>,
    /// What a repair has found first.
    compared: Option<RepairCounts>,
    /// Why a repair has nothing to do.
    nothing_to_repair: Option<String>,
    /// How far its sessions came.
    settled: Place,
}
