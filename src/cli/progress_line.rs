//! Shows the progress of a long read or retry as one line on stderr, overwritten at most five times a
//! second.
//!
//! Input: the text. Output: nothing if stderr is not a terminal, or during the first 200 ms; `clear`
//! removes the line before other output.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// As often as an eye can follow.
const EVERY: Duration = Duration::from_millis(200);

/// A line on the terminal that is written over again and again.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    wanted: bool,
    next: Instant,
    stands: bool,
}

impl ProgressLine {
    /// Nothing is shown of work that takes no longer than a moment.
    pub(crate) fn new() -> Self {
        Self { wanted: io::stderr().is_terminal(), next: Instant::now() + EVERY, stands: false }
    }

    /// Shows the line, if it is time to.
    pub(crate) fn show(&mut self, line: impl FnOnce() -> String) {
        if !self.wanted || Instant::now() < self.next {
            return;
        }
        // Whether anybody sees it is not our concern.
        let _ = write!(io::stderr(), "\r\x1b[K{}", line());
        self.next = Instant::now() + EVERY;
        self.stands = true;
    }

    /// Takes the line away, for what is written next.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.stands) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
