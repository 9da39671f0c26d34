//! Telemetry of a running relay.
//!
//! Input: a [`Snapshot`] from the session's thread a few times per second, and a [`SlotMetrics`]
//! from SQL every few seconds. Output: a [`View`] per observer. Invariant: publishing costs one
//! allocation and a short lock. Observers can neither slow nor stop the relay.

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

/// Maximum age of a slot sample. Sessions sample every five seconds, and each start of a session
/// samples once, by default at least every 30 seconds.
const SLOT_SAMPLE_AGE_MAX: Duration = Duration::from_mins(1);

/// Labels of `postrider_build_info`.
#[derive(Debug, Clone, Default)]
pub struct BuildInfo {
    pub version: String,
    /// Git commit, or `unknown`.
    pub git: String,
    pub librdkafka: String,
    /// Label `slot_name`.
    pub slot: String,
    pub ends: StreamEnds,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamEnds {
    pub stream: Option<String>,
    pub database: String,
    /// `host:port` of each server.
    pub hosts: Vec<String>,
    /// `host:port` of each broker.
    pub brokers: Vec<String>,
    /// Maximum number of bytes in flight; `kafka.max_in_flight`.
    pub in_flight_bytes_max: Option<u64>,
    /// Memory limit of this process; `None`: unlimited.
    pub memory_bytes_max: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Setting {
    /// For example `source.slot`.
    pub key: String,
    /// Value, with secrets masked.
    pub value: String,
    pub origin: String,
}

/// Next restart of a failed stream; other streams keep running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRun {
    pub stream: Arc<str>,
    /// Microseconds since the Unix epoch. `None`: restarts only on request.
    pub at_us: Option<i64>,
    /// The stream's position was refused. An operator must check the source.
    pub of_position: bool,
}

impl fmt::Display for NextRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_hand = format!("`postrider ctl resume --stream {}`", self.stream);
        match self.at_us {
            Some(at_us) => {
                write!(f, "restarts at {}, or immediately with {by_hand}", time_text(at_us))
            }
            None => write!(f, "stays so until {by_hand}, or until the process is started again"),
        }
    }
}

/// Clones share the state.
#[derive(Debug, Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
    /// Index of the worker that publishes with this handle.
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
    slot: Option<(SlotMetrics, Instant)>,
    slot_columns: Option<Arc<[(String, String)]>>,
    certificates: Arc<[CertificateEnd]>,
    tick: Instant,
    traces: Traces,
    /// Snapshot and last tick per worker, if there are several.
    parts: Vec<(Arc<Snapshot>, Instant)>,
    next_run: Option<NextRun>,
    /// Passed from one run of the stream to the next.
    oldest: Oldest,
}

#[derive(Debug, Clone)]
pub struct View {
    pub snapshot: Arc<Snapshot>,
    /// Latest sample, if it is at most one minute old.
    pub slot: Option<SlotMetrics>,
    pub slot_columns: Option<Arc<[(String, String)]>>,
    pub certificates: Arc<[CertificateEnd]>,
    /// Age of the oldest transaction not wholly confirmed, or zero. Grows between snapshots too.
    pub oldest_unacknowledged_age: Duration,
    pub tick_age: Duration,
    pub uptime: Duration,
    pub operated: Operated,
    pub traces: Traces,
    pub next_run: Option<NextRun>,
}

impl Telemetry {
    /// Starts in state `starting`; the creation counts as the first tick.
    pub fn new(build: BuildInfo) -> Self {
        Self::showing(build, Vec::new())
    }

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

    /// Creates handles for parallel workers, which observers see as one relay.
    pub(crate) fn parts(&self, count: u32) -> Vec<Self> {
        let fresh = (Arc::default(), Instant::now());
        self.latest().parts = (0..count).map(|_| fresh.clone()).collect();
        (0..)
            .take(self.latest().parts.len())
            .map(|part| Self { part: Some(part), ..self.clone() })
            .collect()
    }

    /// Intended for every 100 ms to 1 s.
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

    /// Reports that the hot thread is alive, for example while it waits to retry. Must be called at
    /// least every few seconds.
    pub fn tick(&self) {
        let (mut latest, now) = (self.latest(), Instant::now());
        match self.part.and_then(|part| latest.parts.get_mut(part)) {
            Some((_, tick)) => *tick = now,
            None => latest.tick = now,
        }
    }

    /// Sets the time at which this failed stream restarts; `None` after the restart.
    pub fn set_next_run(&self, next_run: Option<NextRun>) {
        self.latest().next_run = next_run;
    }

    /// Keeps the oldest undelivered transaction. Positions of polling workers apply only to their
    /// own run, and are not kept.
    pub(crate) fn keep_oldest(&self, oldest: Oldest) {
        if self.part.is_none() {
            self.latest().oldest = oldest;
        }
    }

    pub(crate) fn oldest(&self) -> Oldest {
        if self.part.is_none() { self.latest().oldest } else { Oldest::default() }
    }

    pub fn publish_slot(&self, slot: Option<SlotMetrics>) {
        self.latest().slot = slot.map(|slot| (slot, Instant::now()));
    }

    pub fn counts_spans(&self, traces: Traces) {
        self.latest().traces = traces;
    }

    pub(crate) fn publish_slot_columns(&self, columns: Vec<(String, String)>) {
        self.latest().slot_columns = Some(columns.into());
    }

    /// Replaces these certificates, and keeps the last state of the others.
    pub(crate) fn publish_certificates(&self, seen: Vec<CertificateEnd>) {
        let mut latest = self.latest();
        let is_seen = |known: &CertificateEnd| {
            seen.iter().any(|one| (one.peer, one.owner) == (known.peer, known.owner))
        };
        let kept: Vec<_> =
            latest.certificates.iter().filter(|known| !is_seen(known)).cloned().collect();
        latest.certificates = seen.into_iter().chain(kept).collect();
    }

    pub fn view(&self) -> View {
        let latest = self.latest().clone();
        // Tick of the worker that has been silent for longest.
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

    pub(crate) fn settings(&self) -> Arc<[Setting]> {
        self.inner.kept.settings()
    }

    pub fn build(&self) -> &BuildInfo {
        &self.inner.build
    }

    /// Ignores a poisoned lock: every write under it is a plain assignment.
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.inner.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time since this moment in microseconds since 1970. Zero for a future moment, which a server with
/// a fast clock may report.
pub fn age(unix_time_us: i64) -> Duration {
    Duration::from_micros(u64::try_from(unix_us().saturating_sub(unix_time_us)).unwrap_or(0))
}

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
