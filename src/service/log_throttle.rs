//! Suppresses log lines that were logged recently. Memory is bounded, and the first of several
//! equal lines is written.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Remembered texts. An outage has a handful; further texts are always written.
const TEXTS_MAX: usize = 256;

#[derive(Debug)]
pub struct LogThrottle {
    interval: Duration,
    texts: HashMap<String, LastLine>,
}

#[derive(Debug)]
struct LastLine {
    written: Instant,
    held_back: u64,
}

impl Default for LogThrottle {
    /// Suits problems that last until somebody fixes them.
    fn default() -> Self {
        Self::new(Duration::from_mins(1))
    }
}

impl LogThrottle {
    /// An interval of zero admits every line.
    pub fn new(interval: Duration) -> Self {
        Self { interval, texts: HashMap::new() }
    }

    /// `Some(n)`: write the line; `n` equal lines were suppressed since the last one.
    pub fn admit(&mut self, text: &str, now: Instant) -> Option<u64> {
        let interval = self.interval;
        let is_recent = |seen: &LastLine| now.saturating_duration_since(seen.written) < interval;
        if let Some(seen) = self.texts.get_mut(text) {
            if is_recent(seen) {
                seen.held_back += 1;
                return None;
            }
            seen.written = now;
            return Some(std::mem::take(&mut seen.held_back));
        }
        if self.texts.len() >= TEXTS_MAX {
            self.texts.retain(|_, seen| is_recent(seen));
        }
        if self.texts.len() < TEXTS_MAX {
            self.texts.insert(text.to_owned(), LastLine { written: now, held_back: 0 });
        }
        Some(0)
    }

    pub fn is_due(&mut self, text: &str) -> bool {
        self.admit(text, Instant::now()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_text_and_interval_with_a_count() {
        let mut throttle = LogThrottle::new(Duration::from_secs(10));
        let start = Instant::now();
        let mut admit = |text, ms| throttle.admit(text, start + Duration::from_millis(ms));
        assert_eq!(admit("a", 0), Some(0));
        for tick in 1..100 {
            assert_eq!(admit("a", tick * 100), None);
        }
        // Another text does not make the first text new again.
        assert_eq!([admit("b", 5_000), admit("a", 9_999)], [Some(0), None]);
        let later = [10_000, 10_001, 19_999, 20_000, 50_000].map(|ms| admit("a", ms));
        assert_eq!(later, [Some(100), None, None, Some(2), Some(0)]);
    }

    #[test]
    fn memory_is_bounded_and_what_overflows_is_written() {
        let mut throttle = LogThrottle::default();
        let now = Instant::now();
        for text in 0..10_000 {
            assert_eq!(throttle.admit(&text.to_string(), now), Some(0));
        }
        assert_eq!(throttle.texts.len(), TEXTS_MAX);
        assert_eq!([throttle.admit("0", now), throttle.admit("9999", now)], [None, Some(0)]);
        assert_eq!(throttle.admit("9999", now + Duration::from_mins(1)), Some(0));
        assert_eq!(throttle.texts.len(), 1, "what is over makes room");
    }

    #[test]
    fn an_interval_of_zero_lets_every_line_through() {
        let mut throttle = LogThrottle::new(Duration::ZERO);
        assert_eq!([(); 3].map(|()| throttle.admit("a", Instant::now())), [Some(0); 3]);
    }
}
