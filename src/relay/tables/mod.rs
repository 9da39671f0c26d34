//! Delivers rows from tables.
//!
//! Rows take the way of a replication stream, so dead letters, refused batches, outages and memory
//! are handled equally. Invariant: a job does not move a slot. A backfill resumes from the progress
//! in Kafka, and ends with progress that the stream starts from (G6).

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

/// Used if `retry.give_up_after` is zero: a command must end by itself.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableJob {
    pub rows: TableRows,
    /// Maximum rate, in rows per second.
    pub rate: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableRows {
    Backfill {
        /// Restarts at the first row, with the existing slot, because the end of an earlier
        /// backfill is unknown.
        restart: bool,
    },
    /// Rows missing in Kafka because an earlier slot was lost, dropped or moved.
    Repair(RepairJob),
    /// Rows regardless of the slot's position.
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
        // The box keeps the future off the caller's stack.
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
    // SQL waits on the runtime, while this thread reads rows.
    let work = run_blocking(move || {
        let ended = sessions.run_to_end(|sessions| run.session(sessions, &open_sink));
        let (repaired, nothing_to_repair) = (run.compared, run.nothing_to_repair);
        ended.map(|summary| Summary { repaired, nothing_to_repair, ..summary })
    });
    topic_monitor.beside(&stop, async { work.await? }).await
}

struct TableRun {
    job: TableJob,
    stop: StopSignal,
    meter: Meter,
    runtime: Handle,
    begun: Option<BackfillProgress>,
    /// Earlier rows are counted up to here.
    counted_from: Option<BackfillProgress>,
    compared: Option<RepairCounts>,
    nothing_to_repair: Option<String>,
    settled: Place,
}
