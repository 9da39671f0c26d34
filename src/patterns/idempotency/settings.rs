//! A method for each setting of the guard's cache.
//!
//! Input: [`GuardSettings`] and the new value of a setting. Output: the settings with it. Invariant: nothing is
//! checked here; `Guard::connect` refuses what is out of range.

use std::time::Duration;

use super::redis_store::GuardSettings;

impl GuardSettings {
    /// Sets what stands before every key; 0 to 64 bytes, `idem:` by default.
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

    /// Sets the size of the largest response to cache, in bytes, headers included; 16 KiB by default.
    #[must_use]
    pub fn stored_bytes_max(mut self, bytes: usize) -> Self {
        self.stored_bytes_max = bytes;
        self
    }

    /// Sets how long a request waits for Redis, at most; at least 1 ms, 100 ms by default.
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

    /// Sets the Retry-After of requests that have to wait for the owner; 1 s by default.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = pause;
        self
    }
}
