//! Reads the clocks of the operating system for the core, which has no clock so that it can be
//! simulated.
//!
//! Output: [`Now`], the time since the start and the time of day. Invariant: durations are measured
//! with the monotonic clock, which does not jump.

use std::time;

use crate::telemetry::unix_us;
use postrider_core::time::{Instant, Now};

/// Clock that starts at its creation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(time::Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(time::Instant::now())
    }

    /// Time since the start, from the monotonic clock.
    #[inline]
    pub(super) fn instant(self) -> Instant {
        Instant::after_start(self.0.elapsed())
    }

    /// Time since the start, and time of day.
    pub(super) fn now(self) -> Now {
        Now { at: self.instant(), unix_us: unix_us() }
    }
}
