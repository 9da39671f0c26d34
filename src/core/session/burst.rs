//! Limits how many frames are processed before confirmations and status updates get their turn.
//!
//! Input: how many bytes are buffered, and the time. Output: [`Work`]: process the next frame, read the
//! socket first (so that the server can go on sending), or leave the rest for the next turn. No I/O; the
//! caller reads the clock.

use std::time::Duration;

use crate::time::Instant;

/// After this much the socket is read again, or the server would stand still while we work: a unix
/// socket's default buffer holds some 80 kB of small messages.
const REFILL_BYTES: usize = 16 * 1024;
/// After this much the rest is worked off without reading on, for there is more to do than that.
const BURST_BYTES: usize = 1024 * 1024;
/// After so long the rest waits for the next turn: rows whose topics the brokers are asked for take
/// milliseconds each, and signals, heartbeats and metrics must not wait for all of them.
const BURST_MAX: Duration = Duration::from_millis(50);

/// What to do before the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Take it.
    Go,
    /// Read what has come, without waiting, and take it.
    ReadOn,
    /// Leave it for the next turn.
    Stop,
}

/// Frames that are worked on in one turn.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    began: Instant,
    /// Buffered when the clock was asked last; `None`: what is buffered at the next frame.
    buffered: Option<usize>,
    worked: usize,
}

impl Burst {
    /// One that begins now.
    pub const fn begin(now: Instant) -> Self {
        Self { began: now, buffered: None, worked: 0 }
    }

    /// What to do with so many bytes buffered. The clock is asked once in 16 KiB.
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

    /// Works off `total` bytes of frames of `frame` bytes, of which no more come: counts reads.
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
        // Also where the socket is no longer read.
        for (each, most) in
            [(Duration::from_millis(4), BURST_BYTES), (Duration::from_micros(45), 0)]
        {
            let (_, left) = reads(2 * BURST_BYTES, 1_024, each);
            assert!(left > most, "{left} bytes are left");
        }
    }
}
