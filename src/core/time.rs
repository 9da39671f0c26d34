//! Defines [`Instant`], a moment on the caller's monotonic clock, and [`Now`], that moment with the wall
//! clock's time.
//!
//! The core reads no clock: its callers pass the time as an argument, so that a simulation runs hours in
//! microseconds, and a run can be repeated exactly.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A moment on the caller's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(Duration);

impl Instant {
    /// The moment at which the clock began.
    pub const START: Self = Self(Duration::ZERO);

    /// The moment so long after the clock began.
    pub const fn after_start(time: Duration) -> Self {
        Self(time)
    }

    /// The time since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment so long before, but not before the clock began.
    #[must_use]
    pub const fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// What the caller's clocks show: one that only goes forward, and the wall's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// For everything that is measured.
    pub at: Instant,
    /// Microseconds since the Unix epoch: to be held against the server's clock, and for nothing else, as it
    /// may jump.
    pub unix_us: i64,
}

impl Now {
    /// How long ago that was, in microseconds since the Unix epoch; zero for the future.
    pub fn age(self, unix_us: i64) -> Duration {
        let age_us = self.unix_us.saturating_sub(unix_us);
        u64::try_from(age_us).map_or(Duration::ZERO, Duration::from_micros)
    }
}
