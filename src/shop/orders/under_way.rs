//! The idempotency keys that this process is writing for.
//!
//! Enters: a key. Leaves: a [`Turn`] for the first who comes with it, and nothing for others until that
//! is dropped. What always holds: of the requests with one key one waits in the database at most, so a
//! key whose owner stands still in another process takes one seat, and not all of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postrider_patterns::idempotency::Key;

/// All of them. They share one scope.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<HashSet<String>>);

/// The right to write for a key, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    all: Arc<UnderWay>,
    key: String,
}

impl UnderWay {
    /// The turn, unless somebody has it.
    pub(super) fn enter(self: &Arc<Self>, key: &Key) -> Option<Turn> {
        let key = key.as_str().to_owned();
        let is_first = self.keys().insert(key.clone());
        is_first.then(|| Turn { all: Arc::clone(self), key })
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<String>> {
        // Each change is a single step, so nothing is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.keys().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_turn_at_a_time_and_others_have_theirs() {
        let all = Arc::<UnderWay>::default();
        let [hot, other] = ["hot", "other"].map(|key| Key::parse(key.as_bytes()).unwrap());
        let turn = all.enter(&hot).unwrap();
        assert!(all.enter(&hot).is_none());
        assert!(all.enter(&other).is_some());
        drop(turn);
        assert!(all.enter(&hot).is_some());
        assert!(all.keys().is_empty());
    }
}
