//! The idempotency keys of requests in progress in this process.
//!
//! Input: a key. Output: an [`InFlightKey`] for the first request with it, and `None` for others until that
//! is dropped. Invariant: of the requests with one key at most one waits in the database, so that repeated
//! requests whose key is locked by another process occupy one session, not all of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postrider_patterns::idempotency::Key;

/// All of them. They share one scope.
#[derive(Debug, Default)]
pub(super) struct InFlightKeys(Mutex<HashSet<String>>);

/// Reserves a key until it is dropped.
#[derive(Debug)]
pub(super) struct InFlightKey {
    all: Arc<InFlightKeys>,
    key: String,
}

impl InFlightKeys {
    /// Reserves the key, unless another request has it.
    pub(super) fn enter(self: &Arc<Self>, key: &Key) -> Option<InFlightKey> {
        let key = key.as_str().to_owned();
        let is_first = self.keys().insert(key.clone());
        is_first.then(|| InFlightKey { all: Arc::clone(self), key })
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<String>> {
        // Each change is a single step, so nothing is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightKey {
    fn drop(&mut self) {
        self.all.keys().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_reserved_once_at_a_time_and_independently_of_others() {
        let all = Arc::<InFlightKeys>::default();
        let [hot, other] = ["hot", "other"].map(|key| Key::parse(key.as_bytes()).unwrap());
        let reserved = all.enter(&hot).unwrap();
        assert!(all.enter(&hot).is_none());
        assert!(all.enter(&other).is_some());
        drop(reserved);
        assert!(all.enter(&hot).is_some());
        assert!(all.keys().is_empty());
    }
}
