//! State and counters of the relay and of the slot as plain values.
//!
//! Input: the session's thread and SQL samples of the slot. Output: health checks, metrics, and the
//! summary of a run. Invariant: no handles, locks, payloads or keys. Counters only grow within a
//! process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::histogram::{Exemplars, Histogram};
use crate::meter::CatchUp;
use postrider_postgres::wal::LockedRows;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayState {
    #[default]
    Starting,
    Standby,
    Streaming,
    /// A stream is open, but for one minute no broker has answered, or no record was confirmed.
    Stalled,
    Retrying,
    Draining,
    Stopped,
    Failed,
}

impl RelayState {
    pub const ALL: [Self; 8] = [
        Self::Starting,
        Self::Standby,
        Self::Streaming,
        Self::Stalled,
        Self::Retrying,
        Self::Draining,
        Self::Stopped,
        Self::Failed,
    ];

    /// Metric label `state`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Streaming => "streaming",
            Self::Stalled => "stalled",
            Self::Retrying => "retrying",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// Distance from delivery; higher is farther.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Self::Stopped => 0,
            Self::Standby => 1,
            Self::Streaming => 2,
            Self::Stalled => 3,
            Self::Draining => 4,
            Self::Starting => 5,
            Self::Retrying => 6,
            Self::Failed => 7,
        }
    }
}

/// Records of one topic passed to the Kafka client. A record sent again counts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicCount {
    pub topic: Arc<str>,
    pub sent: u64,
    /// Dead letters in this topic. A refused record also counts as sent to the topic that refused
    /// it.
    pub dead_lettered: u64,
    /// Key, value and header bytes, also of dead letters.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableTopic {
    pub topic: String,
    /// `missing` or `forbidden`.
    pub reason: &'static str,
    pub age: Duration,
    /// Whether rows wait for the topic, together with all later rows.
    pub waiting: bool,
    pub help: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnavailableTopics {
    /// First those that rows wait for; not necessarily all.
    pub named: Vec<UnavailableTopic>,
    pub missing: usize,
    /// Topics that the relay is not authorised to write to.
    pub forbidden: usize,
}

impl UnavailableTopics {
    pub fn awaited(&self) -> Option<&UnavailableTopic> {
        self.named.first().filter(|topic| topic.waiting)
    }
}

/// Operation in [`Snapshot::ignored`] for rows left out by policy.
pub const SKIPPED: &str = "skipped";
/// Operation in [`Snapshot::ignored`] for rows that a rule drops.
pub(crate) const DROPPED: &str = "dropped";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedPart {
    /// Also a refused login, and missing objects that the relay reads.
    Postgres,
    Slot,
    Relay,
    Kafka,
}

/// Each reason starts at 0 in the metrics, so that an increase to 1 is visible.
pub(crate) const RESTART_REASONS: [&str; 10] = [
    "postgres",
    "postgres_shutdown",
    "kafka",
    "batch_refused",
    "codec_refused",
    "ambiguous_commit",
    "fenced",
    "login_refused",
    "pipeline",
    "other",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateEnd {
    /// Remote end: `postgres` or `kafka`.
    pub peer: &'static str,
    /// Side that presents it: `server` or `relay`.
    pub owner: &'static str,
    /// Last second of validity, since the Unix epoch.
    pub until_s: i64,
}

pub type Count = (&'static str, u64);

#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub state: RelayState,
    /// Rows are polled, without a slot. Positions then do not refer to the server's log.
    pub is_polled: bool,
    pub holds_slot: bool,
    pub broker_connected: bool,
    /// Time without a confirmed record of the oldest transaction.
    pub unconfirmed_for: Duration,
    pub unavailable: UnavailableTopics,
    /// End of the received log, in bytes.
    pub received_lsn: u64,
    /// End of the wholly confirmed log, in bytes.
    pub settled_lsn: u64,
    pub last_failure: Option<Arc<str>>,
    pub failed_part: Option<FailedPart>,
    /// Remedy at the end of `last_failure`, after `"; "`.
    pub failure_help: Option<Arc<str>>,
    /// Last partial confirmation of the oldest transaction, or last time at which nothing was
    /// outstanding.
    pub last_progress: Option<Instant>,
    /// By kind: `begin`, `insert`, `keepalive`, ...
    pub messages: Vec<Count>,
    pub received_bytes: u64,
    pub topics: Vec<TopicCount>,
    /// Log to read until the relay has caught up.
    pub catch_up: Option<CatchUp>,
    /// Includes dead letters.
    pub confirmed: u64,
    /// Rejected rows, by `route::RejectionCode::as_str`.
    pub rejections: Vec<Count>,
    /// Undelivered rows by operation: updated, deleted, truncated, skipped by policy, or dropped by
    /// a rule.
    pub ignored: Vec<Count>,
    pub transactions_settled: u64,
    pub in_flight_records: u64,
    pub in_flight_bytes: u64,
    /// Polled rows that have waited long for a lock.
    pub locked_rows: Option<Arc<LockedRows>>,
    /// Time without reading because the budget was used up.
    pub back_pressure: Duration,
    /// From the commit in Postgres to the broker's confirmation, per transaction.
    pub commit_to_confirm: Histogram,
    /// Transaction with a kept trace, per bucket of the latency.
    pub exemplars: Exemplars,
    /// Commit time of the oldest transaction not wholly confirmed, in microseconds since 1970.
    pub oldest_unacknowledged_us: Option<i64>,
    /// Ended sessions by reason.
    pub restarts: Vec<Count>,
}

impl Snapshot {
    pub fn skipped(&self) -> u64 {
        let skipped = self.ignored.iter().filter(|(operation, _)| *operation == SKIPPED);
        skipped.map(|(_, count)| count).sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotMetrics {
    /// `confirmed_flush_lsn`, in bytes.
    pub acknowledged_lsn: u64,
    /// Server's position minus `confirmed_flush_lsn`, in bytes.
    pub lag_bytes: u64,
    /// Server's position minus `restart_lsn`, in bytes: log that the slot retains on disk.
    pub retained_bytes: u64,
    /// Bytes until `max_slot_wal_keep_size` invalidates the slot; `None` means unlimited.
    pub safe_bytes: Option<u64>,
    /// Server's clock minus the relay's clock, in microseconds.
    pub clock_skew_us: i64,
    pub waits: Option<SlotWait>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotWait {
    /// `synchronized_standby_slots` names a standby that is not connected.
    AwaitedStandby,
    ReplayPaused,
    /// The server is a standby that does not receive WAL.
    StandbyCutOff,
}

impl SlotWait {
    pub const fn what(self) -> &'static str {
        match self {
            Self::AwaitedStandby => {
                "Postgres sends nothing: a standby of synchronized_standby_slots is away"
            }
            Self::ReplayPaused => {
                "the standby that the relay streams from replays nothing: its replay is paused"
            }
            Self::StandbyCutOff => {
                "the standby that the relay streams from receives nothing from its primary"
            }
        }
    }

    pub const fn help(self) -> &'static str {
        match self {
            Self::AwaitedStandby => "see `postrider doctor`",
            Self::ReplayPaused => {
                "at the standby: SELECT pg_wal_replay_resume(); Postgres pauses it by itself where max_connections and \
                 the like are lower than at the primary, and says so in its log"
            }
            Self::StandbyCutOff => {
                "see the standby's log: its primary is away, primary_conninfo is wrong, or it has WAL that the primary \
                 does not have, as after a failover, and needs pg_rewind"
            }
        }
    }
}
