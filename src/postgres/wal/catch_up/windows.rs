//! Divides a backlog into windows of the log.
//!
//! Invariant: windows are contiguous, and the last one ends at the backlog's end. No I/O.
//!
//! The server decodes each window from the slot's `restart_lsn` on. That moves only to a logged
//! snapshot of running transactions (every 15 s, and at checkpoints) without an older open
//! transaction. A window costs its own log, plus a third for log decoded in vain before it. A
//! window pays if it is at least twice as long as that part.

use postrider_core::lsn::Lsn;

/// Measured on PostgreSQL 15, 1,000 rows per transaction: 4 MiB cost the server 2.9 us per row, 8
/// MiB 2.5 us, 16 MiB 2.2 us, 64 MiB 2.2 us.
pub(super) const WINDOW_BYTES_MIN: u64 = 16 << 20;
/// The server decodes the whole first window before it sends a row. With 16 MiB the first row
/// arrived after 55 ms.
const FIRST_BYTES_MIN: u64 = 2 << 20;
/// The server holds a window's rows in memory or temporary files.
pub(super) const WINDOW_BYTES_MAX: u64 = 256 << 20;
/// More rows do not fit the `work_mem` that [`super`] sets.
const MANY_BYTES: u64 = 24 << 20;
const FEW_BYTES: u64 = 6 << 20;
/// Limit per window.
pub const DECODED_BEFORE_BYTES_MAX: u64 = WINDOW_BYTES_MAX / 2;

#[derive(Debug)]
pub(super) struct Windows {
    next: Lsn,
    until: Lsn,
    length: u64,
    first: Option<u64>,
    /// The first window's rows do not determine the length of others.
    is_first_over: bool,
    is_far: bool,
}

impl Windows {
    /// `before`: log decoded in vain for the first window.
    pub(super) fn new(from: Lsn, until: Lsn, before: u64) -> Self {
        let first = Some((before * 2).clamp(FIRST_BYTES_MIN, WINDOW_BYTES_MAX));
        let length = WINDOW_BYTES_MIN;
        let mut windows =
            Self { next: from, until, length, first, is_first_over: false, is_far: false };
        windows.adapt(length, before);
        windows
    }

    pub(super) fn next(&mut self) -> Option<Lsn> {
        if self.is_far || self.next >= self.until {
            return None;
        }
        let length = self.first.take().unwrap_or(self.length);
        let end = Lsn::new(self.next.get().saturating_add(length)).min(self.until);
        self.next = end;
        Some(end)
    }

    /// Bytes of a window's rows, and log decoded in vain for the next one.
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

    /// Too much log would be decoded repeatedly.
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
