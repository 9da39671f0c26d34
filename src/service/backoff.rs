//! Exponential back-off between retries: re-exports the core's [`Backoff`], and draws the random number for
//! its jitter, so that the core stays deterministic.

use std::hash::{BuildHasher as _, RandomState};

pub use postrider_core::backoff::Backoff;

/// Returns an unpredictable number.
pub fn draw() -> u64 {
    RandomState::new().hash_one(0)
}
