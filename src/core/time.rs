//! Defines [`Instant`], on the caller's monotonic clock, and [`Now`], which adds the wall clock.
//!
//! Callers pass the time as an argument, so a simulation is fast and repeatable.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A moment on the caller's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(Duration);

impl Instant {
    /// The clock's origin.
    pub const START: Self = Self(Duration::ZERO);

    /// `time` after the origin.
    pub const fn after_start(time: Duration) -> Self {
        Self(time)
    }

    /// Time since `earlier`, or zero.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// `time` before this moment, but not before the origin.
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

/// Monotonic time and wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// For every measurement.
    pub at: Instant,
    /// Unix microseconds. Compare it only with the server's clock, because it may jump.
    pub unix_us: i64,
}

impl Now {
    /// Time since `unix_us`, or zero.
    pub fn age(self, unix_us: i64) -> Duration {
        let age_us = self.unix_us.saturating_sub(unix_us);
        u64::try_from(age_us).map_or(Duration::ZERO, Duration::from_micros)
    }
}
