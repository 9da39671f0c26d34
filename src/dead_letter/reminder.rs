//! When trouble that lasts is told again.
//!
//! Enters: what there is to tell, at each attempt. Leaves: whether it is time to. What always holds:
//! the same is told at once and then once a minute for as long as it is asked. Called by
//! `dlq_publisher`, `group` and `turn`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The same trouble is not told more often.
const TELL_EVERY: Duration = Duration::from_mins(1);

/// What was told within the last minute.
#[derive(Debug, Default)]
pub(crate) struct Reminder(BTreeMap<String, Instant>);

impl Reminder {
    /// Whether this is to be told now.
    pub(crate) fn is_due(&mut self, text: &str) -> bool {
        self.is_due_at(text, Instant::now())
    }

    fn is_due_at(&mut self, text: &str, now: Instant) -> bool {
        self.0.retain(|_, told| now.saturating_duration_since(*told) < TELL_EVERY);
        if self.0.contains_key(text) {
            return false;
        }
        self.0.insert(text.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_once_a_minute_for_as_long_as_it_lasts() {
        let begin = Instant::now();
        let mut reminder = Reminder::default();
        let mut due = |text: &str, s| reminder.is_due_at(text, begin + Duration::from_secs(s));
        assert_eq!(
            [0, 1, 59, 60, 61, 120].map(|s| due("a", s)),
            [true, false, false, true, false, true]
        );
        // Something else is news, and does not make the first news again.
        assert!(due("b", 121) && !due("a", 122));
    }
}
