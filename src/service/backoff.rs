//! How long to wait before the next attempt, by a draw of this process.
//!
//! Enters: how many attempts failed. Leaves: [`Backoff`]'s time, drawn anew at each call.

use std::hash::{BuildHasher as _, RandomState};

pub use postrider_core::backoff::Backoff;

/// A number that nobody can predict.
pub fn draw() -> u64 {
    RandomState::new().hash_one(0)
}
