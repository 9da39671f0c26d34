//! Exponential back-off: the core's [`Backoff`], with a random number for its jitter.

use std::hash::{BuildHasher as _, RandomState};

pub use postrider_core::backoff::Backoff;

pub fn draw() -> u64 {
    RandomState::new().hash_one(0)
}
