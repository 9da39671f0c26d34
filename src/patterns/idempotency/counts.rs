//! Counters of the guard's decisions. Each request is counted once, even if it waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the guard was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were the first of their key.
    pub new: u64,
    /// Requests that arrived while the first one was in progress.
    pub pending: u64,
    /// Requests answered from Redis.
    pub replayed: u64,
    /// Requests with another fingerprint than Redis has.
    pub mismatched: u64,
    /// Requests that Redis could not decide.
    pub unsure: u64,
    /// Calls of `complete`, `renew` and `release` by a former owner.
    pub stale: u64,
}

#[derive(Debug, Default)]
pub(super) struct AtomicCounts {
    pub(super) new: AtomicU64,
    pub(super) pending: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) mismatched: AtomicU64,
    pub(super) unsure: AtomicU64,
    pub(super) stale: AtomicU64,
}

impl AtomicCounts {
    pub(super) fn snapshot(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            new: of(&self.new),
            pending: of(&self.pending),
            replayed: of(&self.replayed),
            mismatched: of(&self.mismatched),
            unsure: of(&self.unsure),
            stale: of(&self.stale),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
