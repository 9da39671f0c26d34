//! Exponential back-off with a random number of this process: the core's [`Backoff`] and a source for its
//! jitter.

use std::hash::{BuildHasher as _, RandomState};

pub use postrider_core::backoff::Backoff;

/// A number that nobody can predict.
pub fn draw() -> u64 {
    RandomState::new().hash_one(0)
}
