//! Telemetry of a running relay: where it publishes its state, and where health checks and metrics read it.
//!
//! Input: a [`Snapshot`] from the session's thread a few times a second, a [`SlotMetrics`] from SQL every
//! few seconds. Output: a [`View`] for each observer, rendered as HTTP responses. Invariant: publishing
//! costs one allocation and a lock that is held for pointer copies only; no observer can slow or stop the
//! relay.

mod dashboard;
mod health;
mod histogram;
mod http;
mod merged;
mod metrics;
mod operated;
mod process;
mod snapshot;
mod traces;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use health::{Check, Health, Role, STALL, STALL_HELP, liveness, readiness};
pub(crate) use health::{SILENCE_HELP, of_pause};
pub use histogram::{BOUNDS_US, Exemplar, Exemplars, Histogram};
pub use http::{HttpError, Listener, serve, serve_streams};
pub(crate) use operated::time_text;
pub use operated::{Operated, ReloadOutcome};
pub use snapshot::{
    CertificateEnd, Count, FailedPart, RelayState, SKIPPED, SlotMetrics, SlotWait, Snapshot,
    TopicCount, UnavailableTopic, UnavailableTopics,
};
pub(crate) use snapshot::{DROPPED, RESTART_REASONS};
pub use traces::{InvalidVariable, TraceExport, TraceSettings};

use postrider_core::session::Oldest;
use postrider_kafka::Traces;

/// A sample of the slot that is older says nothing any more. Samples are taken every five seconds beside
/// a session, and otherwise whenever one is tried, which is every half minute by default at least.
const SLOT_SAMPLE_AGE_MAX: Duration = Duration::from_mins(1);

/// Constant facts that `/metrics` reports as `postrider_build_info`.
#[derive(Debug, Clone, Default)]
pub struct BuildInfo {
    /// The package's version.
    pub version: String,
    /// The commit, or `unknown`.
    pub git: String,
    /// librdkafka's version.
    pub librdkafka: String,
    /// The slot this relay reads; label `slot_name`.
    pub slot: String,
    /// The dashboard alone shows them.
    pub ends: StreamEnds,
}

/// The two ends of a stream and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamEnds {
    /// Name of the `[[stream]]`; `None` if the configuration has none.
    pub stream: Option<String>,
    /// Name of the database.
    pub database: String,
    /// `host:port` of each server.
    pub hosts: Vec<String>,
    /// `host:port` of each broker.
    pub brokers: Vec<String>,
    /// Most bytes that may be in flight; `kafka.max_in_flight`.
    pub in_flight_bytes_max: Option<u64>,
    /// Memory limit of this process; `None` if it has no limit.
    pub memory_bytes_max: Option<u64>,
}

/// A setting in effect, as the dashboard shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Setting {
    /// Such as `source.slot`.
    pub key: String,
    /// Secrets are masked.
    pub value: String,
    /// Where it came from.
    pub origin: String,
}

/// When a stream that has failed begins anew, in a process that goes on for the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRun {
    /// Its name.
    pub stream: Arc<str>,
    /// In microseconds since the Unix epoch; `None`: when a human asks for it.
    pub at_us: Option<i64>,
    /// Its position was refused: whether the source is the right one, a human has to see.
    pub of_position: bool,
}

impl fmt::Display for NextRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_hand = format!("`postrider ctl resume --stream {}`", self.stream);
        match self.at_us {
            Some(at_us) => {
                write!(f, "begins anew at {}, or at once by {by_hand}", time_text(at_us))
            }
            None => write!(f, "stays so until {by_hand}, or until the process is started again"),
        }
    }
}

/// The meeting point of the relay and its observers. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
    /// Of several workers the one that publishes by this.
    part: Option<usize>,
}

#[derive(Debug)]
struct Inner {
    build: BuildInfo,
    kept: operated::Kept,
    started: Instant,
    latest: Mutex<Latest>,
}

#[derive(Debug, Clone)]
struct Latest {
    snapshot: Arc<Snapshot>,
    /// With the time at which it was taken.
    slot: Option<(SlotMetrics, Instant)>,
    /// As Postgres shows it, by column.
    slot_columns: Option<Arc<[(String, String)]>>,
    /// As last seen.
    certificates: Arc<[CertificateEnd]>,
    /// When the hot thread last came by.
    tick: Instant,
    /// Counts of spans.
    traces: Traces,
    /// The same of each of several workers.
    parts: Vec<(Arc<Snapshot>, Instant)>,
    /// Of a stream that has failed.
    next_run: Option<NextRun>,
    /// What sessions of a run have left, for the next run of the same stream.
    oldest: Oldest,
}

/// One consistent view for an observer.
#[derive(Debug, Clone)]
pub struct View {
    /// The latest snapshot.
    pub snapshot: Arc<Snapshot>,
    /// The latest sample of the slot, if one was taken within the last minute.
    pub slot: Option<SlotMetrics>,
    /// The slot as Postgres shows it, by column; taken with the sample.
    pub slot_columns: Option<Arc<[(String, String)]>>,
    /// When the certificates of the relay's connections expire, as far as they were seen.
    pub certificates: Arc<[CertificateEnd]>,
    /// Age of the oldest transaction that is not wholly confirmed; zero when there is none. It grows
    /// between two snapshots, too.
    pub oldest_unacknowledged_age: Duration,
    /// Since the hot thread last came by.
    pub tick_age: Duration,
    /// Since the process began to observe itself.
    pub uptime: Duration,
    /// What operators have done.
    pub operated: Operated,
    /// Whether rows are traced, and what became of their spans.
    pub traces: Traces,
    /// Of a stream that has failed, where others go on.
    pub next_run: Option<NextRun>,
}

impl Telemetry {
    /// Begins in state `starting`; creation counts as the first tick.
    pub fn new(build: BuildInfo) -> Self {
        Self::showing(build, Vec::new())
    }

    /// Likewise, with settings for the dashboard.
    pub fn showing(build: BuildInfo, settings: Vec<Setting>) -> Self {
        let started = Instant::now();
        let (snapshot, parts) = (Arc::default(), Vec::new());
        let traces = Traces::default();
        let (slot, slot_columns, tick) = (None, None, started);
        let (next_run, oldest) = (None, Oldest::default());
        let latest = Latest {
            snapshot,
            slot,
            slot_columns,
            certificates: Arc::default(),
            tick,
            traces,
            parts,
            next_run,
            oldest,
        };
        let kept = operated::Kept::showing(settings);
        let inner = Arc::new(Inner { build, kept, started, latest: Mutex::new(latest) });
        Self { inner, part: None }
    }

    /// For so many workers that publish side by side: observers see them as one.
    pub(crate) fn parts(&self, count: u32) -> Vec<Self> {
        let fresh = (Arc::default(), Instant::now());
        self.latest().parts = (0..count).map(|_| fresh.clone()).collect();
        (0..)
            .take(self.latest().parts.len())
            .map(|part| Self { part: Some(part), ..self.clone() })
            .collect()
    }

    /// Replaces the snapshot. Meant for every 100 ms to 1 s; costs one allocation and a lock that
    /// is held only for pointer copies.
    pub fn publish(&self, snapshot: Snapshot) {
        let mut snapshot = Arc::new(snapshot);
        let mut latest = self.latest();
        if let Some(part) = self.part.and_then(|part| latest.parts.get_mut(part)) {
            *part = (snapshot, Instant::now());
            snapshot = Arc::new(merged::merged(latest.parts.iter().map(|(part, _)| &**part)));
        }
        latest.snapshot = snapshot;
        latest.tick = Instant::now();
    }

    /// Says that the hot thread is alive, where there is nothing new to publish (waiting to retry,
    /// connecting). At least every few seconds.
    pub fn tick(&self) {
        let (mut latest, now) = (self.latest(), Instant::now());
        match self.part.and_then(|part| latest.parts.get_mut(part)) {
            Some((_, tick)) => *tick = now,
            None => latest.tick = now,
        }
    }

    /// When this stream, which has failed, begins anew; `None` once it has.
    pub fn set_next_run(&self, next_run: Option<NextRun>) {
        self.latest().next_run = next_run;
    }

    /// What the sessions so far have left undelivered. Positions of workers that poll are of one run alone.
    pub(crate) fn keep_oldest(&self, oldest: Oldest) {
        if self.part.is_none() {
            self.latest().oldest = oldest;
        }
    }

    /// What was [kept](Self::keep_oldest).
    pub(crate) fn oldest(&self) -> Oldest {
        if self.part.is_none() { self.latest().oldest } else { Oldest::default() }
    }

    /// Replaces the sample of the slot; `None` when it is not known any more.
    pub fn publish_slot(&self, slot: Option<SlotMetrics>) {
        self.latest().slot = slot.map(|slot| (slot, Instant::now()));
    }

    /// Rows are traced from now on; see [`TraceSettings::start`].
    pub fn counts_spans(&self, traces: Traces) {
        self.latest().traces = traces;
    }

    /// Replaces what Postgres shows of the slot.
    pub(crate) fn publish_slot_columns(&self, columns: Vec<(String, String)>) {
        self.latest().slot_columns = Some(columns.into());
    }

    /// Replaces what was known of these certificates; the others stay as they were last seen.
    pub(crate) fn publish_certificates(&self, seen: Vec<CertificateEnd>) {
        let mut latest = self.latest();
        let is_seen = |known: &CertificateEnd| {
            seen.iter().any(|one| (one.peer, one.owner) == (known.peer, known.owner))
        };
        let kept: Vec<_> =
            latest.certificates.iter().filter(|known| !is_seen(known)).cloned().collect();
        latest.certificates = seen.into_iter().chain(kept).collect();
    }

    /// What an observer sees now.
    pub fn view(&self) -> View {
        let latest = self.latest().clone();
        // The one that was away for longest.
        let tick = latest.parts.iter().map(|(_, tick)| *tick).min().unwrap_or(latest.tick);
        let slot = latest.slot.filter(|(_, taken)| taken.elapsed() <= SLOT_SAMPLE_AGE_MAX);
        View {
            oldest_unacknowledged_age: latest
                .snapshot
                .oldest_unacknowledged_us
                .map_or(Duration::ZERO, age),
            snapshot: latest.snapshot,
            slot_columns: latest.slot_columns.filter(|_| slot.is_some()),
            slot: slot.map(|(slot, _)| slot),
            certificates: latest.certificates,
            tick_age: tick.elapsed(),
            traces: latest.traces,
            next_run: latest.next_run,
            uptime: self.inner.started.elapsed(),
            operated: self.inner.kept.operated(),
        }
    }

    /// The settings in effect.
    pub(crate) fn settings(&self) -> Arc<[Setting]> {
        self.inner.kept.settings()
    }

    /// The constant facts.
    pub fn build(&self) -> &BuildInfo {
        &self.inner.build
    }

    /// Every write under this lock is a plain assignment, so a poisoned one is still whole.
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.inner.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time since this moment in microseconds since the Unix epoch; zero for one of the future, as a
/// server whose clock is ahead of ours may name.
pub fn age(unix_time_us: i64) -> Duration {
    Duration::from_micros(u64::try_from(unix_us().saturating_sub(unix_time_us)).unwrap_or(0))
}

/// The time of day in microseconds since the Unix epoch.
pub fn unix_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_grows_older_without_a_new_snapshot() {
        let telemetry = Telemetry::new(BuildInfo::default());
        assert_eq!(telemetry.view().oldest_unacknowledged_age, Duration::ZERO);
        let oldest = Some(1_000_000);
        telemetry.publish(Snapshot { oldest_unacknowledged_us: oldest, ..Snapshot::default() });
        let before = telemetry.view().oldest_unacknowledged_age;
        let grows = || telemetry.view().oldest_unacknowledged_age > before;
        assert!((0..1_000_000).any(|_| grows()));
    }

    #[test]
    fn an_old_sample_of_the_slot_is_left_out() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let sample = SlotMetrics {
            waits: None,
            acknowledged_lsn: 0,
            lag_bytes: 1,
            retained_bytes: 2,
            safe_bytes: Some(3),
            clock_skew_us: 4,
        };
        telemetry.publish_slot(Some(sample));
        assert_eq!(telemetry.view().slot, Some(sample));
        let long_ago = Instant::now().checked_sub(SLOT_SAMPLE_AGE_MAX + Duration::from_secs(1));
        telemetry.latest().slot = long_ago.map(|taken| (sample, taken));
        assert_eq!(telemetry.view().slot, None);
    }
}
