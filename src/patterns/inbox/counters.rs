//! Counters and status of a consumer, readable from any thread. Invariant: counters never decrease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::ConsumerStatus;

/// Counters since the consumer was created, and its status.
#[derive(Debug, Default)]
pub struct ConsumerCounters {
    pub(super) batches: AtomicU64,
    pub(super) statements: AtomicU64,
    pub(super) processed: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) passed_over: AtomicU64,
    pub(super) dead_letters: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) cache_hits: AtomicU64,
    pub(super) cache_misses: AtomicU64,
    pub(super) cache_failures: AtomicU64,
    pub(super) rewinds: AtomicU64,
    pub(super) sequence_waits: AtomicU64,
    pub(super) sequence_gaps: AtomicU64,
    status: Mutex<ConsumerStatus>,
}

/// Values of the counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConsumerSnapshot {
    /// Batches of records that were taken and finished.
    pub batches: u64,
    /// Statements in transactions with messages, without statements of the effects.
    pub statements: u64,
    /// Messages whose effects were committed.
    pub processed: u64,
    /// Messages that were processed before.
    pub duplicates: u64,
    /// Messages of ignored types.
    pub passed_over: u64,
    /// Confirmed dead letters.
    pub dead_letters: u64,
    /// Retries after a technical failure.
    pub retries: u64,
    /// Messages found in the cache.
    pub cache_hits: u64,
    /// Messages not found in the cache.
    pub cache_misses: u64,
    /// Requests to the cache that failed or timed out.
    pub cache_failures: u64,
    /// Rewinds of a partition to the database's offset.
    pub rewinds: u64,
    /// Messages that waited for an earlier one of their aggregate.
    pub sequence_waits: u64,
    /// Messages that waited in vain.
    pub sequence_gaps: u64,
}

impl ConsumerCounters {
    /// Current status.
    pub fn status(&self) -> ConsumerStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn update_status(&self, change: impl FnOnce(&mut ConsumerStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Current values.
    pub fn snapshot(&self) -> ConsumerSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConsumerSnapshot {
            batches: read(&self.batches),
            statements: read(&self.statements),
            processed: read(&self.processed),
            duplicates: read(&self.duplicates),
            passed_over: read(&self.passed_over),
            dead_letters: read(&self.dead_letters),
            retries: read(&self.retries),
            cache_hits: read(&self.cache_hits),
            cache_misses: read(&self.cache_misses),
            cache_failures: read(&self.cache_failures),
            rewinds: read(&self.rewinds),
            sequence_waits: read(&self.sequence_waits),
            sequence_gaps: read(&self.sequence_gaps),
        }
    }
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
}
