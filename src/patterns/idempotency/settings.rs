//! Settings of the guard's cache. Invariant: `Guard::connect` accepts only settings within their
//! ranges.

use std::time::Duration;

use super::error::IdempotencyError;

/// With less, any pause would miss the renewal at every third of it.
const PENDING_TTL_MIN: Duration = Duration::from_millis(30);
/// A longer time is a mistake in the unit.
const TTL_MAX: Duration = Duration::from_hours(24 * 366);

/// Settings of the guard's Redis cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardSettings {
    /// Prefix of every key; 0 to 64 bytes.
    pub prefix: String,
    /// Time for which a lease lasts without renewal; longer than usual pauses of a process.
    pub pending_ttl: Duration,
    /// Time for which a response is cached.
    pub completed_ttl: Duration,
    /// Largest response to cache, in bytes. A larger one becomes a pointer to Postgres.
    pub stored_bytes_max: usize,
    /// Maximum time for a request to wait for Redis.
    pub response_timeout: Duration,
    /// Time for which Redis is bypassed after a failure.
    pub bypass: Duration,
    /// Retry-After of requests that must wait for the owner.
    pub retry_after: Duration,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            prefix: "idem:".to_owned(),
            pending_ttl: Duration::from_secs(30),
            completed_ttl: Duration::from_hours(24),
            stored_bytes_max: 16 * 1024,
            response_timeout: Duration::from_millis(100),
            bypass: Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
        }
    }
}

impl GuardSettings {
    /// Sets the prefix of every key; 0 to 64 bytes, `idem:` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long a lease lasts without renewal; 30 ms to 366 days, 30 s by default.
    #[must_use]
    pub fn pending_ttl(mut self, ttl: Duration) -> Self {
        self.pending_ttl = ttl;
        self
    }

    /// Sets how long a response is cached; 1 ms to 366 days, 24 hours by default.
    #[must_use]
    pub fn completed_ttl(mut self, ttl: Duration) -> Self {
        self.completed_ttl = ttl;
        self
    }

    /// Sets the largest response to cache, in bytes with headers; 16 KiB by default.
    #[must_use]
    pub fn stored_bytes_max(mut self, bytes: usize) -> Self {
        self.stored_bytes_max = bytes;
        self
    }

    /// Sets the maximum time for a request to wait for Redis; at least 1 ms, 100 ms by default.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets how long Redis is bypassed after a failure; 1 s by default.
    #[must_use]
    pub fn bypass(mut self, pause: Duration) -> Self {
        self.bypass = pause;
        self
    }

    /// Sets the Retry-After of requests that must wait for the owner; 1 s by default.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = pause;
        self
    }

    pub(super) fn check(&self) -> Result<(), IdempotencyError> {
        let millisecond = Duration::from_millis(1);
        let checks = [
            (self.prefix.len() > 64, "prefix must be at most 64 bytes"),
            (self.pending_ttl < PENDING_TTL_MIN, "pending_ttl must be at least 30 ms"),
            (self.completed_ttl < millisecond, "completed_ttl must be at least 1 ms"),
            (
                self.pending_ttl.max(self.completed_ttl) > TTL_MAX,
                "a time to live must be at most 366 days",
            ),
            (self.response_timeout < millisecond, "response_timeout must be at least 1 ms"),
        ];
        match checks.iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(IdempotencyError::Settings(why)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_refused() {
        let good = GuardSettings::default();
        assert!(good.check().is_ok());
        for bad in [
            GuardSettings { prefix: "x".repeat(65), ..good.clone() },
            GuardSettings { pending_ttl: Duration::from_millis(29), ..good.clone() },
            GuardSettings { completed_ttl: Duration::ZERO, ..good.clone() },
            GuardSettings { completed_ttl: Duration::MAX, ..good.clone() },
            GuardSettings { response_timeout: Duration::ZERO, ..good.clone() },
        ] {
            assert!(matches!(bad.check(), Err(IdempotencyError::Settings(_))), "{bad:?}");
        }
    }
}
