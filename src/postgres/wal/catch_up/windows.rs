//! How a backlog is divided into windows of the log.
//!
//! Input: from where to where, and, after each window, what it brought and how far behind it the server begins to
//! decode. Output: where the next window ends, or that a stream is better. Invariant: windows follow each other without
//! a gap, and the last one ends where the backlog does. No I/O.
//!
//! The server decodes each window from the slot's `restart_lsn` on, which moves only where it wrote a snapshot of running
//! transactions (every 15 s, and at checkpoints) and no older transaction was open. So a window costs what it brings,
//! and a third of that again for as much log before it as is decoded in vain. It is worth it while a window is at least
//! twice as long as that; and what a window brings is held by the server until it is read, so that its length is bounded.

use postrider_core::lsn::Lsn;

/// The shortest window but for the first and the last. Measured on PostgreSQL 15 with 1,000 rows per transaction: 4 MiB cost the server 2.9 us for each
/// row, 8 MiB 2.5 us, 16 MiB 2.2 us, 64 MiB 2.2 us.
pub(super) const WINDOW_BYTES_MIN: u64 = 16 << 20;
/// The first one, which rows wait for: the server sends nothing of a window that it has not decoded to its end. With one
/// row per transaction the first row came after 55 ms where it had 16 MiB.
const FIRST_BYTES_MIN: u64 = 2 << 20;
/// The longest one. All that it brings is in the server's memory or temporary files at a time.
pub(super) const WINDOW_BYTES_MAX: u64 = 256 << 20;
/// From here on a window brings too much: less fits the server's `work_mem` that [`super`] sets.
const MANY_BYTES: u64 = 24 << 20;
/// What it should bring at least.
const FEW_BYTES: u64 = 6 << 20;
/// As much log may be decoded in vain for each window.
pub const DECODED_BEFORE_BYTES_MAX: u64 = WINDOW_BYTES_MAX / 2;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Windows {
    /// Where the next window begins.
    next: Lsn,
    until: Lsn,
    length: u64,
    /// The length of the first one, until it is asked for.
    first: Option<u64>,
    /// Whether the first one is over, of which the length of others does not follow.
    is_first_over: bool,
    is_far: bool,
}

impl Windows {
    /// The backlog; `before` is how much log the server decodes in vain for the first window. Bytes.
    pub(super) fn new(from: Lsn, until: Lsn, before: u64) -> Self {
        let first = Some((before * 2).clamp(FIRST_BYTES_MIN, WINDOW_BYTES_MAX));
        let length = WINDOW_BYTES_MIN;
        let mut windows =
            Self { next: from, until, length, first, is_first_over: false, is_far: false };
        windows.adapt(length, before);
        windows
    }

    /// Where the next window ends; `None` when none is to follow.
    pub(super) fn next(&mut self) -> Option<Lsn> {
        if self.is_far || self.next >= self.until {
            return None;
        }
        let length = self.first.take().unwrap_or(self.length);
        let end = Lsn::new(self.next.get().saturating_add(length)).min(self.until);
        self.next = end;
        Some(end)
    }

    /// Takes note of a window that is over: bytes that it brought, and how much log is decoded in vain for the next one.
    pub(super) fn learn(&mut self, brought: u64, before: u64) {
        let fitting = match (self.is_first_over, brought) {
            (true, ..FEW_BYTES) => self.length * 2,
            (true, MANY_BYTES..) => self.length / 2,
            _ => self.length,
        };
        self.is_first_over = true;
        self.adapt(fitting, before);
    }

    fn adapt(&mut self, fitting: u64, before: u64) {
        self.is_far |= before > DECODED_BEFORE_BYTES_MAX;
        self.length = fitting.max(before * 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
    }

    /// Whether the rest is better streamed, as the server would decode too much of the log again and again.
    pub(super) const fn is_far(&self) -> bool {
        self.is_far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Lsn = Lsn::new(1 << 30);

    fn mib(count: u64) -> Lsn {
        Lsn::new(FROM.get() + (count << 20))
    }

    #[test]
    fn windows_follow_each_other_to_the_end_of_the_backlog() {
        let mut windows = Windows::new(FROM, mib(40), 0);
        assert_eq!([windows.next(), windows.next()], [Some(mib(2)), Some(mib(18))]);
        assert_eq!([windows.next(), windows.next()], [Some(mib(34)), Some(mib(40))]);
        assert_eq!(windows.next(), None);
        assert!(!windows.is_far());
    }

    #[test]
    fn a_window_brings_what_fits_the_servers_memory() {
        let mut windows = Windows::new(FROM, mib(1 << 20), 0);
        let mut ends = vec![FROM];
        for brought in [0, 0, 0, 0, 0, 0, 100 << 20, 100 << 20] {
            ends.extend(windows.next());
            windows.learn(brought, 0);
        }
        let lengths: Vec<u64> =
            ends.windows(2).map(|pair| pair[1].bytes_since(pair[0]) >> 20).collect();
        assert_eq!(lengths, [2, 16, 32, 64, 128, 256, 256, 128]);
    }

    #[test]
    fn what_is_decoded_in_vain_is_at_most_half_a_window() {
        let mut windows = Windows::new(FROM, mib(1 << 20), 40 << 20);
        assert_eq!(windows.next(), Some(mib(80)));
        windows.learn(MANY_BYTES - 1, 100 << 20);
        assert_eq!(windows.next(), Some(mib(280)));
        windows.learn(0, DECODED_BEFORE_BYTES_MAX + 1);
        assert!(windows.is_far() && windows.next().is_none(), "a transaction is open for long");
    }
}
