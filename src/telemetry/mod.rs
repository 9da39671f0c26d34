//! What can be seen of a running relay: health, readiness, metrics.
//!
//! Enters: a [`Snapshot`] from the hot thread once per tick, a [`SlotSample`] from the control
//! plane every few seconds. Leaves: answers over HTTP. What always holds: publishing never waits
//! for a reader beyond a pointer swap, and nothing here can slow or stop the relay. Called by
//! `relay` (publish) and `cli` (serve).

mod health;
mod histogram;
mod http;
mod metrics;
mod process;
mod snapshot;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use health::{Check, Health, Role, STALL, STALL_HELP, liveness, readiness};
pub use histogram::{BOUNDS_US, Histogram};
pub use http::{HttpError, Listener, serve};
pub use snapshot::{
    Count, SKIPPED, SlotSample, Snapshot, State, TopicCount, UnavailableTopic, UnavailableTopics,
};

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
}

/// The meeting point of the relay and its observers. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Telemetry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    build: BuildInfo,
    started: Instant,
    latest: Mutex<Latest>,
}

#[derive(Debug, Clone)]
struct Latest {
    snapshot: Arc<Snapshot>,
    slot: Option<SlotSample>,
    /// When the hot thread last came by.
    tick: Instant,
}

/// One consistent view for an observer.
#[derive(Debug, Clone)]
pub struct View {
    /// The latest snapshot.
    pub snapshot: Arc<Snapshot>,
    /// The latest sample of the slot, if one was taken.
    pub slot: Option<SlotSample>,
    /// Since the hot thread last came by.
    pub tick_age: Duration,
    /// Since the process began to observe itself.
    pub uptime: Duration,
}

impl Telemetry {
    /// Begins in state `starting`; creation counts as the first tick.
    pub fn new(build: BuildInfo) -> Self {
        let started = Instant::now();
        let latest = Latest { snapshot: Arc::default(), slot: None, tick: started };
        Self(Arc::new(Inner { build, started, latest: Mutex::new(latest) }))
    }

    /// Replaces the snapshot. Meant for every 100 ms to 1 s; costs one allocation and a lock that
    /// is held only for pointer copies.
    pub fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        let mut latest = self.latest();
        latest.snapshot = snapshot;
        latest.tick = Instant::now();
    }

    /// Says that the hot thread is alive, where there is nothing new to publish (waiting to retry,
    /// connecting). At least every few seconds.
    pub fn tick(&self) {
        self.latest().tick = Instant::now();
    }

    /// Replaces the sample of the slot; `None` when it is not known any more.
    pub fn publish_slot(&self, slot: Option<SlotSample>) {
        self.latest().slot = slot;
    }

    /// What an observer sees now.
    pub fn view(&self) -> View {
        let latest = self.latest().clone();
        View {
            snapshot: latest.snapshot,
            slot: latest.slot,
            tick_age: latest.tick.elapsed(),
            uptime: self.0.started.elapsed(),
        }
    }

    /// The constant facts.
    pub fn build(&self) -> &BuildInfo {
        &self.0.build
    }

    /// Every write under this lock is a plain assignment, so a poisoned one is still whole.
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
