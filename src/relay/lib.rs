//! The relay: runs sessions from Postgres to Kafka, one after the other.
//!
//! Input: a [`Plan`], [`RunOptions`] and a [`StopSignal`]. Output: records in Kafka, acknowledged
//! positions in Postgres, and a [`Summary`]. Invariant: only `hot` acknowledges an LSN to Postgres,
//! and only one up to which every record is confirmed (G1).
//!
//! This example embeds a relay that delivers everything committed before its start:
//!
//! ```no_run
//! use postrider_config::{Inputs, load};
//! use postrider_relay::telemetry::{BuildInfo, Telemetry};
//! use postrider_relay::{RunOptions, Plan, StopSignal, deliver, review};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let config = load(&Inputs::default(), &review)?.config;
//! let options = RunOptions { once: true, ..RunOptions::default() };
//! let telemetry = Telemetry::new(BuildInfo::default());
//! let summary = deliver(Plan::of(config), options, StopSignal::default(), telemetry).await?;
//! println!("{} records are confirmed", summary.confirmed);
//! # Ok(())
//! # }
//! ```

pub mod admin;
mod audit;
mod awaited_standbys;
mod blocking;
mod bootstrap;
mod catch_up;
pub mod certificates;
mod clock;
pub mod compare;
mod control;
mod delivered;
mod error;
mod failover_remarks;
mod failure;
mod frame_source;
mod hot;
mod log_source;
mod login_retry;
mod meter;
mod outage;
mod plan;
mod poll;
mod presented;
mod publication_changes;
mod readability;
mod report;
mod session_mode;
mod sessions;
mod source_check;
mod specs;
mod standby_replay;
mod start;
mod start_gate;
mod stop;
mod streams;
mod supervise;
mod tables;
pub mod telemetry;
mod timelines;
mod topic_monitor;
mod watch;

use std::time::Duration;

use serde::Serialize;

use crate::telemetry::Snapshot;
use postrider_core::lsn::Lsn;
use postrider_core::session::CoalescingProfile;

pub use bootstrap::begin_stream;
pub use control::{Control, NewRun, check_columns};
pub use error::RelayError;
pub use meter::{CatchUp, DELIVERING, Meter, Reading, Total, Unit};
pub use plan::Plan;
pub use poll::poll_mark;
pub use postrider_core::gate::{Facts, GateError, Resume, Warning, judge};
pub use postrider_core::session::ControlRequest;
pub use readability::slot_readability;
pub use specs::{delivered_tap, kafka_spec, review};
pub use start::OpenSink;
pub use stop::StopSignal;
pub use streams::{StreamHandle, StreamHealth, Streams, StreamsHealth};
pub use supervise::{deliver, run};
pub use tables::{
    JobPreview, RepairCounts, RepairJob, RepairPreview, RepairSlot, RowFilter, TableJob,
    TablePreview, TableRows, TableRowsError, UnknownReason, deliver_tables, holds_for_tables,
    preview, preview_repair, refuse_without_zone,
};
pub use watch::sample_of_failed;

#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Ends after everything committed before the start of the relay is delivered.
    pub once: bool,
    /// Waits as a hot standby for a held slot, instead of giving up.
    pub wait_for_slot: bool,
    /// Acknowledges settled positions to Postgres. A dry run does not.
    pub acknowledge: bool,
    /// Time without progress until the relay gives up, instead of `retry.give_up_after`.
    pub patience: Option<Duration>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { once: false, wait_for_slot: true, acknowledge: true, patience: None }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Whether everything that `once` asks for was delivered.
    pub caught_up: bool,
    /// Records passed to the Kafka client, without dead letters. Repeats count again.
    pub records: u64,
    pub dead_letters: u64,
    /// Includes dead letters and repeats.
    pub confirmed: u64,
    /// Rows left out because `route.rejected` is `skip`.
    pub skipped: u64,
    #[serde(serialize_with = "as_text")]
    pub settled: Lsn,
    pub seconds: f64,
    /// Time since the last session began to stream.
    pub streaming_seconds: f64,
    /// Result of a repair's comparison, before it sent the missing rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repaired: Option<RepairCounts>,
    /// Reason why a repair sent no rows and left the slot alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nothing_to_repair: Option<String>,
}

impl Summary {
    fn of(totals: &Snapshot) -> Self {
        Self {
            caught_up: false,
            records: totals.topics.iter().map(|topic| topic.sent).sum(),
            dead_letters: totals.topics.iter().map(|topic| topic.dead_lettered).sum(),
            confirmed: totals.confirmed,
            skipped: totals.skipped(),
            settled: Lsn::new(totals.settled_lsn),
            seconds: 0.0,
            streaming_seconds: 0.0,
            repaired: None,
            nothing_to_repair: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn as_text<S: serde::Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// How the stream is read under load.
///
/// A TCP buffer holds more of the walsender's small messages than a unix socket's. If batches wait
/// in the Kafka client, reads need not be batched for long, and the server waits less for the
/// relay. Measured share of `pg_recvlogical`'s rate, with 100/20,000 us and with 200/2,000 us:
///
/// * 1 row per transaction: 0.86 and 1.1
/// * 1,000 rows per transaction: 0.65 and 0.9
///
/// If batches are sent at once, rows of one batch of reads share requests.
const fn coalescing(is_local: bool, batches_wait: bool) -> CoalescingProfile {
    let (delay_us, batch_ms) = match (is_local, batches_wait) {
        (true, true) => (200, 2),
        (true, false) => (100, 20),
        (false, true) => (300, 2),
        (false, false) => (300, 20),
    };
    CoalescingProfile {
        delay: Duration::from_micros(delay_us),
        batch_max: Duration::from_millis(batch_ms),
        batch_bytes: 3 * 512 * 1024,
    }
}
