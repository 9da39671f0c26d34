//! Reads the clocks of the operating system for the core, which has no clock so that it can be
//! simulated. The monotonic clock measures durations.

use std::time;

use crate::telemetry::unix_us;
use postrider_core::time::{Instant, Now};

#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(time::Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(time::Instant::now())
    }

    #[inline]
    pub(super) fn instant(self) -> Instant {
        Instant::after_start(self.0.elapsed())
    }

    pub(super) fn now(self) -> Now {
        Now { at: self.instant(), unix_us: unix_us() }
    }
}
