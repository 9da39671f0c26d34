//! Which lines say what was said a moment ago.
//!
//! Enters: a line's gist and the time. Leaves: whether to print it, and how many like it were not.
//! What always holds: memory is bounded, and the first of a kind is always printed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Kinds of lines remembered. An outage has a handful; what overflows is printed each time.
const KINDS_MAX: usize = 256;

/// What to do with a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Print it; this many like it were not printed since the last one.
    Printed {
        /// How many.
        suppressed: u64,
    },
    /// Leave it out.
    Suppressed,
}

/// The memory of recent lines.
#[derive(Debug)]
pub(super) struct Repeats {
    window: Duration,
    seen: Mutex<HashMap<String, Seen>>,
}

#[derive(Debug)]
struct Seen {
    printed: Instant,
    suppressed: u64,
}

impl Repeats {
    /// One line per kind and `window`; zero prints every line.
    pub(super) fn new(window: Duration) -> Self {
        Self { window, seen: Mutex::default() }
    }

    /// Decides about one line.
    pub(super) fn admit(&self, gist: &str, now: Instant) -> Admission {
        if self.window.is_zero() {
            return Admission::Printed { suppressed: 0 };
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get_mut(gist) {
            if now.saturating_duration_since(known.printed) < self.window {
                known.suppressed += 1;
                return Admission::Suppressed;
            }
            let suppressed = std::mem::take(&mut known.suppressed);
            known.printed = now;
            return Admission::Printed { suppressed };
        }
        if seen.len() >= KINDS_MAX {
            seen.retain(|_, known| now.saturating_duration_since(known.printed) < self.window);
        }
        if seen.len() < KINDS_MAX {
            seen.insert(gist.to_owned(), Seen { printed: now, suppressed: 0 });
        }
        Admission::Printed { suppressed: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_window_with_a_count() {
        let repeats = Repeats::new(Duration::from_secs(10));
        let start = Instant::now();
        let mut printed = Vec::new();
        for second in 0..25 {
            let now = start + Duration::from_secs(second);
            if let Admission::Printed { suppressed } = repeats.admit("x", now) {
                printed.push((second, suppressed));
            }
        }
        assert_eq!(printed, [(0, 0), (10, 9), (20, 9)]);
        assert_eq!(repeats.admit("y", start), Admission::Printed { suppressed: 0 });
    }

    #[test]
    fn memory_is_bounded() {
        let repeats = Repeats::new(Duration::from_secs(10));
        let now = Instant::now();
        for kind in 0..10_000 {
            repeats.admit(&kind.to_string(), now);
        }
        assert!(repeats.seen.lock().unwrap().len() <= KINDS_MAX);
    }

    #[test]
    fn a_window_of_zero_prints_everything() {
        let repeats = Repeats::new(Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(repeats.admit("x", Instant::now()), Admission::Printed { suppressed: 0 });
        }
    }
}
