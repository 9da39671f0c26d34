//! Repeated lines collapse to one per ten seconds, with a count.
//!
//! Enters: a line's kind and the time. Leaves: whether to write it, and how many of its kind were
//! held back. A dead broker makes librdkafka complain about ten times a second. Called by `context`.

use std::time::{Duration, Instant};

/// How long lines of one kind stay quiet after one was written (behaviour: one line per 10 s).
const QUIET: Duration = Duration::from_secs(10);

/// Kinds remembered; beyond that the oldest is forgotten. Kinds are error names, of which a broken
/// network shows three or four.
const KINDS_MAX: usize = 16;

/// Remembers what was written when.
#[derive(Debug, Default)]
pub(super) struct Damper {
    kinds: Vec<Kind>,
}

#[derive(Debug)]
struct Kind {
    name: String,
    written: Instant,
    held_back: u64,
}

impl Damper {
    /// `Some(n)`: write the line, `n` of its kind were held back since the last one.
    pub(super) fn admit(&mut self, name: &str, now: Instant) -> Option<u64> {
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.name == name) {
            if now.saturating_duration_since(kind.written) < QUIET {
                kind.held_back += 1;
                return None;
            }
            kind.written = now;
            return Some(std::mem::take(&mut kind.held_back));
        }
        if self.kinds.len() >= KINDS_MAX {
            self.kinds.remove(0);
        }
        self.kinds.push(Kind { name: name.to_owned(), written: now, held_back: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_ten_seconds_and_kind() {
        let start = Instant::now();
        let mut damper = Damper::default();
        assert_eq!(damper.admit("transport", start), Some(0));
        for tick in 1..100 {
            assert_eq!(damper.admit("transport", start + Duration::from_millis(tick * 99)), None);
        }
        assert_eq!(damper.admit("resolve", start + Duration::from_secs(5)), Some(0));
        assert_eq!(damper.admit("transport", start + Duration::from_secs(10)), Some(99));
        assert_eq!(damper.admit("transport", start + Duration::from_secs(20)), Some(0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut damper = Damper::default();
        for number in 0..1000 {
            damper.admit(&number.to_string(), Instant::now());
        }
        assert_eq!(damper.kinds.len(), KINDS_MAX);
    }
}
