//! Limits the frames of one turn.

use std::time::Duration;

use crate::time::Instant;

/// Bytes to process before the next read. A unix socket's default buffer holds about 80 kB of small
/// messages, so the server would otherwise stop while the session works.
const REFILL_BYTES: usize = 16 * 1024;
/// Buffered bytes above which this turn does not read again.
const BURST_BYTES: usize = 1024 * 1024;
/// Rows whose topics require a broker query take milliseconds each, and signals, heartbeats and
/// metrics must not wait.
const BURST_MAX: Duration = Duration::from_millis(50);

/// What to do before the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Process the frame.
    Go,
    /// Read without waiting, then process the frame.
    ReadOn,
    /// Leave the frame for the next turn.
    Stop,
}

/// The frames of one turn.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    began: Instant,
    /// Bytes when the clock was last read.
    buffered: Option<usize>,
    worked: usize,
}

impl Burst {
    /// Starts a turn.
    pub const fn begin(now: Instant) -> Self {
        Self { began: now, buffered: None, worked: 0 }
    }

    /// Decides about the next frame; reads the clock once per 16 KiB.
    #[inline]
    pub fn next(&mut self, buffered: usize, clock: impl FnOnce() -> Instant) -> Work {
        let worked = self.buffered.get_or_insert(buffered).saturating_sub(buffered);
        if worked < REFILL_BYTES {
            return Work::Go;
        }
        self.worked += worked;
        self.buffered = None;
        match clock() - self.began {
            time if time >= BURST_MAX => Work::Stop,
            _ if self.worked <= BURST_BYTES => Work::ReadOn,
            _ => Work::Go,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(total: usize, frame: usize, each: Duration) -> (usize, usize) {
        let (mut now, mut left, mut reads) = (Instant::START, total, 0);
        let mut burst = Burst::begin(now);
        while left > 0 {
            match burst.next(left, || now) {
                Work::Go => {}
                Work::ReadOn => reads += 1,
                Work::Stop => break,
            }
            left = left.saturating_sub(frame);
            now += each;
        }
        (reads, left)
    }

    #[test]
    fn the_socket_is_read_between_frames_until_there_is_more_to_do_than_that() {
        assert_eq!(reads(REFILL_BYTES, 1_024, Duration::ZERO), (0, 0));
        assert_eq!(reads(4 * REFILL_BYTES, 1_024, Duration::ZERO), (3, 0));
        let most = BURST_BYTES / REFILL_BYTES;
        assert_eq!(reads(9 * BURST_BYTES, 1_024, Duration::ZERO), (most, 0));
    }

    #[test]
    fn frames_that_take_long_end_the_turn() {
        // The limit also applies if the socket is no longer read.
        for (each, most) in
            [(Duration::from_millis(4), BURST_BYTES), (Duration::from_micros(45), 0)]
        {
            let (_, left) = reads(2 * BURST_BYTES, 1_024, each);
            assert!(left > most, "{left} bytes are left");
        }
    }
}
