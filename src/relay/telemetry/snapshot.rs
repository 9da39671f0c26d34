//! State and counters of the relay ([`Snapshot`]) and of the slot ([`SlotMetrics`]) as plain
//! values. Observers therefore do not need access to the running session.
//!
//! Input: the session's thread fills a snapshot a few times per second, and SQL samples the slot.
//! Output: health checks, metrics, and the summary of a run. Invariant: the values do not contain
//! handles, locks, payloads or keys. Counters only grow within a process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::histogram::{Exemplars, Histogram};
use crate::meter::CatchUp;
use postrider_postgres::wal::LockedRows;

/// Activity of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayState {
    /// The first connection is not open yet.
    #[default]
    Starting,
    /// The relay waits for a slot that another relay holds.
    Standby,
    /// The relay reads and delivers.
    Streaming,
    /// A stream is open, but for one minute no broker has answered, or no record was confirmed.
    Stalled,
    /// A session failed, and the relay waits to retry.
    Retrying,
    /// The relay no longer reads, and waits for confirmations.
    Draining,
    /// The relay stopped cleanly.
    Stopped,
    /// The relay stopped with a definite error.
    Failed,
}

impl RelayState {
    /// All states, for documentation and metrics.
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

    /// Stable name of the state: metric label `state`.
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

/// Records of one topic that were passed to the Kafka client since the process started. A record
/// that a later session sends again counts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicCount {
    /// Name of the topic, shared so that a tick copies only a pointer.
    pub topic: Arc<str>,
    /// Number of records without dead letters.
    pub sent: u64,
    /// Number of dead letters in this topic, for rejected rows and for refused records. A refused
    /// record also stays counted as sent to the topic that refused it.
    pub dead_lettered: u64,
    /// Key, value and header bytes of records and dead letters.
    pub bytes: u64,
}

/// Topic that records cannot be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableTopic {
    /// Name of the topic.
    pub topic: String,
    /// `missing` or `forbidden`.
    pub reason: &'static str,
    /// Time since the topic became unavailable.
    pub age: Duration,
    /// Whether rows wait for the topic, together with all later rows.
    pub waiting: bool,
    /// Command that fixes the problem.
    pub help: String,
}

/// Topics that rows have chosen and that records cannot be sent to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnavailableTopics {
    /// Some of these topics; first those that rows wait for.
    pub named: Vec<UnavailableTopic>,
    /// Number of topics that do not exist.
    pub missing: usize,
    /// Number of topics that the relay is not authorised to write to.
    pub forbidden: usize,
}

impl UnavailableTopics {
    /// Topic that rows wait for, if any.
    pub fn awaited(&self) -> Option<&UnavailableTopic> {
        self.named.first().filter(|topic| topic.waiting)
    }
}

/// Operation under which [`Snapshot::ignored`] counts rows left out by policy.
pub const SKIPPED: &str = "skipped";
/// Operation under which [`Snapshot::ignored`] counts rows that a rule drops.
pub(crate) const DROPPED: &str = "dropped";

/// Component between Postgres and Kafka that a failure concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedPart {
    /// The server cannot be reached, refuses the login, or lacks an object that the relay reads.
    Postgres,
    /// The replication slot cannot be used.
    Slot,
    /// The relay itself failed.
    Relay,
    /// The brokers or a topic cannot be used.
    Kafka,
}

/// All reasons under which [`Snapshot::restarts`] counts sessions. Each reason starts at 0, so that
/// an increase from 0 to 1 is visible.
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

/// Certificate on one of the relay's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateEnd {
    /// `postgres` or `kafka`: the remote end of the connection.
    pub peer: &'static str,
    /// `server` or `relay`: the side that presents the certificate.
    pub owner: &'static str,
    /// Last second of validity, since the Unix epoch.
    pub until_s: i64,
}

/// Label value with its count.
pub type Count = (&'static str, u64);

/// State of the relay at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Activity of the relay.
    pub state: RelayState,
    /// Whether rows are polled, without a slot. Positions then do not refer to the server's log.
    pub is_polled: bool,
    /// Whether a replication stream is open, which should hold the slot.
    pub holds_slot: bool,
    /// Whether a broker answers.
    pub broker_connected: bool,
    /// Time for which no record of the oldest transaction was confirmed.
    pub unconfirmed_for: Duration,
    /// Topics that records cannot be sent to.
    pub unavailable: UnavailableTopics,
    /// End of the log received from the walsender, in bytes; see `lsn::Lsn::get`.
    pub received_lsn: u64,
    /// End of the log that is wholly confirmed, in bytes.
    pub settled_lsn: u64,
    /// Error of the last session, with its remedy; `None` before the first error.
    pub last_failure: Option<Arc<str>>,
    /// Component that `last_failure` concerns.
    pub failed_part: Option<FailedPart>,
    /// Remedy at the end of `last_failure`, after `"; "`.
    pub failure_help: Option<Arc<str>>,
    /// Last time at which the oldest transaction was confirmed in part, or nothing was outstanding.
    /// `None` before either.
    pub last_progress: Option<Instant>,
    /// Replication messages by kind: `begin`, `insert`, `keepalive`, ...
    pub messages: Vec<Count>,
    /// Bytes of replication messages.
    pub received_bytes: u64,
    /// Records by topic, in order of first use.
    pub topics: Vec<TopicCount>,
    /// Log that is read before the relay has caught up.
    pub catch_up: Option<CatchUp>,
    /// Records that the brokers confirmed, including dead letters.
    pub confirmed: u64,
    /// Rejected rows, by `route::RejectionCode::as_str`.
    pub rejections: Vec<Count>,
    /// Outbox rows that are never delivered, by operation: updated, deleted, truncated, skipped by
    /// policy, or dropped by a rule.
    pub ignored: Vec<Count>,
    /// Number of transactions whose records are all confirmed.
    pub transactions_settled: u64,
    /// Number of records sent and not yet confirmed.
    pub in_flight_records: u64,
    /// Bytes of these records.
    pub in_flight_bytes: u64,
    /// Polled rows that have waited long for a lock.
    pub locked_rows: Option<Arc<LockedRows>>,
    /// Time for which reading was paused because the budget was used up.
    pub back_pressure: Duration,
    /// Latency from the commit in Postgres to the broker's confirmation, per transaction.
    pub commit_to_confirm: Histogram,
    /// Transaction with a kept trace, per bucket of the latency.
    pub exemplars: Exemplars,
    /// Commit time of the oldest transaction that is not wholly confirmed, in microseconds since
    /// the Unix epoch; `None` if all are confirmed.
    pub oldest_unacknowledged_us: Option<i64>,
    /// Ended sessions by reason: `postgres`, `kafka`, `batch_refused`, ...
    pub restarts: Vec<Count>,
}

impl Snapshot {
    /// Number of rows left out by policy.
    pub fn skipped(&self) -> u64 {
        let skipped = self.ignored.iter().filter(|(operation, _)| *operation == SKIPPED);
        skipped.map(|(_, count)| count).sum()
    }
}

/// State of the slot in Postgres, sampled by the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotMetrics {
    /// `confirmed_flush_lsn`, in bytes; see `lsn::Lsn::get`.
    pub acknowledged_lsn: u64,
    /// Server's position minus `confirmed_flush_lsn`, in bytes.
    pub lag_bytes: u64,
    /// Server's position minus `restart_lsn`, in bytes: log that the slot retains on disk.
    pub retained_bytes: u64,
    /// Bytes until `max_slot_wal_keep_size` invalidates the slot; `None` means unlimited.
    pub safe_bytes: Option<u64>,
    /// Server's clock minus the relay's clock, in microseconds.
    pub clock_skew_us: i64,
    /// Reason why Postgres does not send rows, if known.
    pub waits: Option<SlotWait>,
}

/// Reason why Postgres does not send rows that exist or may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotWait {
    /// `synchronized_standby_slots` names a standby that is not connected.
    AwaitedStandby,
    /// The server is a standby with paused replay.
    ReplayPaused,
    /// The server is a standby that does not receive any WAL.
    StandbyCutOff,
}

impl SlotWait {
    /// Description for the operator.
    pub const fn what(self) -> &'static str {
        match self {
            Self::AwaitedStandby => {
                "Postgres sends nothing: a standby that synchronized_standby_slots names is away"
            }
            Self::ReplayPaused => {
                "the standby that is streamed from replays nothing: its replay is paused"
            }
            Self::StandbyCutOff => {
                "the standby that is streamed from receives nothing from its primary"
            }
        }
    }

    /// Remedy for the operator.
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
