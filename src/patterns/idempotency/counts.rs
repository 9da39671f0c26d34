//! How often each thing happened.
//!
//! Enters: what [`Guard`](super::Guard) found. Leaves: [`Counts`], a plain snapshot for metrics. What
//! always holds: numbers only grow; each call of `begin` is counted once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Since the guard was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were the first of their key.
    pub new: u64,
    /// Requests that came while the first was at work.
    pub pending: u64,
    /// Requests answered from Redis.
    pub replayed: u64,
    /// Requests that Redis knew to be another than the key's first.
    pub mismatched: u64,
    /// Requests on which Redis could not decide: it did not answer, was passed over or is not
    /// configured, or holds a pointer or garbage.
    pub unsure: u64,
    /// Calls of `complete`, `renew` and `release` by who was no longer the owner.
    pub stale: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) new: AtomicU64,
    pub(super) pending: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) mismatched: AtomicU64,
    pub(super) unsure: AtomicU64,
    pub(super) stale: AtomicU64,
}

impl Tally {
    pub(super) fn snapshot(&self) -> Counts {
        // Each stands alone: nothing is ordered by them.
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
