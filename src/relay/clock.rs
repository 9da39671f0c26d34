//! Reads the operating system's clocks for the core, which has none so that it can be simulated.
//!
//! Output: [`Now`], the time since the start and the time of day. Invariant: durations are measured by the
//! monotonic clock, which does not jump.

use std::time;

use crate::telemetry::unix_us;
use postrider_core::time::{Instant, Now};

/// A clock that begins when it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(time::Instant);

impl Clock {
    /// Begins.
    pub(super) fn start() -> Self {
        Self(time::Instant::now())
    }

    /// The time on the monotonic clock alone.
    #[inline]
    pub(super) fn instant(self) -> Instant {
        Instant::after_start(self.0.elapsed())
    }

    /// The time.
    pub(super) fn now(self) -> Now {
        Now { at: self.instant(), unix_us: unix_us() }
    }
}
