//! The relay's state and counters as plain values ([`Snapshot`]), and the slot's as Postgres reports them
//! ([`SlotMetrics`]), so that observers need no access to the running session.
//!
//! Input: the session's thread fills a snapshot a few times a second, SQL samples the slot. Output: health
//! checks, metrics and the summary of a run read them. Invariant: they contain no handle or lock; counters
//! only grow within a process; no payload or key is part of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::histogram::{Exemplars, Histogram};
use crate::meter::CatchUp;
use postrider_postgres::wal::LockedRows;

/// What the relay is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayState {
    /// Before the first connection.
    #[default]
    Starting,
    /// Another relay holds the slot; this one waits for it.
    Standby,
    /// Reading and delivering.
    Streaming,
    /// A stream is open; no broker has answered, or records have waited for a confirmation, for a minute.
    Stalled,
    /// A session failed; waiting to try again.
    Retrying,
    /// Reading has stopped, confirmations are awaited.
    Draining,
    /// Stopped cleanly.
    Stopped,
    /// Stopped by a definite error.
    Failed,
}

impl RelayState {
    /// Every state, for documentation and metrics.
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

    /// The stable word: metric label `state`.
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

    /// How far from delivering.
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

/// The records of one topic that were handed to the Kafka client since the process started. One that
/// a later session sends again counts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicCount {
    /// The topic, shared so that a tick copies a pointer.
    pub topic: Arc<str>,
    /// Records, dead letters apart.
    pub sent: u64,
    /// Dead letters that went to this topic: for rejected rows, and for records that the brokers
    /// refused, which stay counted as sent to the topic that refused them.
    pub dead_lettered: u64,
    /// Key, value and header bytes of both.
    pub bytes: u64,
}

/// A topic that records cannot be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableTopic {
    /// Its name.
    pub topic: String,
    /// `missing` or `forbidden`.
    pub reason: &'static str,
    /// For how long.
    pub age: Duration,
    /// Whether rows wait for it, and all behind them.
    pub waiting: bool,
    /// The command that fixes it.
    pub help: String,
}

/// Topics that records cannot be sent to, as far as rows have chosen them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnavailableTopics {
    /// Some of them, those that rows wait for first.
    pub named: Vec<UnavailableTopic>,
    /// How many do not exist.
    pub missing: usize,
    /// How many are forbidden to us.
    pub forbidden: usize,
}

impl UnavailableTopics {
    /// The topic that rows wait for, if they do.
    pub fn awaited(&self) -> Option<&UnavailableTopic> {
        self.named.first().filter(|topic| topic.waiting)
    }
}

/// The operation under which [`Snapshot::ignored`] counts rows left out by policy.
pub const SKIPPED: &str = "skipped";
/// The operation under which [`Snapshot::ignored`] counts rows that a rule drops.
pub(crate) const DROPPED: &str = "dropped";

/// The part of the way from Postgres to Kafka that a failure is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedPart {
    /// The server cannot be reached, refuses the login, or lacks what the relay reads.
    Postgres,
    /// The replication slot cannot be used.
    Slot,
    /// The relay itself.
    Relay,
    /// The brokers, or a topic.
    Kafka,
}

/// Every reason that [`Snapshot::restarts`] counts sessions under, so that each is shown from 0 on and an increase
/// from 0 to 1 is seen.
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

/// A certificate of one of the relay's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateEnd {
    /// `postgres` or `kafka`: the other end of the connection.
    pub peer: &'static str,
    /// `server` or `relay`: the one that presents it.
    pub owner: &'static str,
    /// The last second in which it is valid, since the Unix epoch.
    pub until_s: i64,
}

/// One label value and its count.
pub type Count = (&'static str, u64);

/// The relay at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What it is doing.
    pub state: RelayState,
    /// Whether rows are polled, without a slot; positions are not those of the server's log.
    pub is_polled: bool,
    /// Whether a replication stream is open, which is to hold the slot.
    pub holds_slot: bool,
    /// Whether a broker answers.
    pub broker_connected: bool,
    /// How long records have waited while no record of the oldest transaction was confirmed.
    pub unconfirmed_for: Duration,
    /// Topics that records cannot be sent to.
    pub unavailable: UnavailableTopics,
    /// End of what the walsender has sent us, as bytes; see `lsn::Lsn::get`.
    pub received_lsn: u64,
    /// End of what is wholly confirmed.
    pub settled_lsn: u64,
    /// What the last session ended with, and the remedy; `None` before any has.
    pub last_failure: Option<Arc<str>>,
    /// What `last_failure` is about.
    pub failed_part: Option<FailedPart>,
    /// Remedy that `last_failure` ends with, after `"; "`.
    pub failure_help: Option<Arc<str>>,
    /// When the oldest transaction was last confirmed in part, or nothing was outstanding; `None` before either.
    pub last_progress: Option<Instant>,
    /// Replication messages by kind: `begin`, `insert`, `keepalive`, ...
    pub messages: Vec<Count>,
    /// Bytes of replication messages.
    pub received_bytes: u64,
    /// Records by topic, in order of first use.
    pub topics: Vec<TopicCount>,
    /// The log that is read before the relay has caught up.
    pub catch_up: Option<CatchUp>,
    /// Records that the brokers confirmed, dead letters included.
    pub confirmed: u64,
    /// Rows rejected, by `route::RejectionCode::as_str`.
    pub rejections: Vec<Count>,
    /// Outbox rows that were updated, deleted or truncated, skipped by policy, or dropped by a rule, by
    /// operation; never
    /// delivered.
    pub ignored: Vec<Count>,
    /// Transactions of which every record is confirmed.
    pub transactions_settled: u64,
    /// Records sent and not confirmed.
    pub in_flight_records: u64,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// Rows that are polled, and have waited for a lock for long.
    pub locked_rows: Option<Arc<LockedRows>>,
    /// How long reading was paused because the budget was used up.
    pub back_pressure: Duration,
    /// From the commit in Postgres to the broker's confirmation, per transaction.
    pub commit_to_confirm: Histogram,
    /// Of each of its buckets a transaction whose trace is kept.
    pub exemplars: Exemplars,
    /// When the oldest transaction that is not wholly confirmed was committed, in microseconds since the
    /// Unix epoch; `None` when there is none.
    pub oldest_unacknowledged_us: Option<i64>,
    /// Sessions that ended, by reason: `postgres`, `kafka`, `batch_refused`, ...
    pub restarts: Vec<Count>,
}

impl Snapshot {
    /// Rows left out by policy.
    pub fn skipped(&self) -> u64 {
        let skipped = self.ignored.iter().filter(|(operation, _)| *operation == SKIPPED);
        skipped.map(|(_, count)| count).sum()
    }
}

/// The slot as Postgres sees it, sampled by the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotMetrics {
    /// `confirmed_flush_lsn`, as bytes; see `lsn::Lsn::get`.
    pub acknowledged_lsn: u64,
    /// Server's position minus `confirmed_flush_lsn`, in bytes.
    pub lag_bytes: u64,
    /// Server's position minus `restart_lsn`: log the slot keeps on disk, in bytes.
    pub retained_bytes: u64,
    /// Bytes until `max_slot_wal_keep_size` invalidates the slot; `None` is unlimited.
    pub safe_bytes: Option<u64>,
    /// The server's clock minus ours, in microseconds.
    pub clock_skew_us: i64,
    /// Why Postgres sends nothing, if it is known that it does not.
    pub waits: Option<SlotWait>,
}

/// Why Postgres has rows, or may have them, and sends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotWait {
    /// `synchronized_standby_slots` names a standby that is away.
    AwaitedStandby,
    /// The server is a standby whose replay is paused.
    ReplayPaused,
    /// The server is a standby that receives nothing.
    StandbyCutOff,
}

impl SlotWait {
    /// What there is to tell.
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

    /// What the operator can do about it.
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
