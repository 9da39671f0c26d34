//! How many frames are worked on before something else has its turn.
//!
//! Enters: how much is buffered, and the time. Leaves: whether to go on, to read on first, or to leave the
//! rest for the next turn. Pure.

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
    /// Ask the clock, then [`Burst::refill`].
    Pause,
}

/// Frames that are worked on in one turn.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    began: Instant,
    /// Buffered when the socket was read last.
    unread: usize,
    worked: usize,
}

impl Burst {
    /// One that begins now, with so many bytes buffered.
    pub const fn begin(now: Instant, buffered: usize) -> Self {
        Self { began: now, unread: buffered, worked: 0 }
    }

    /// What to do with so many bytes left.
    #[inline]
    pub const fn next(&self, buffered: usize) -> Work {
        let since_read = self.unread.saturating_sub(buffered);
        if since_read >= REFILL_BYTES && self.worked < BURST_BYTES { Work::Pause } else { Work::Go }
    }

    /// Whether to read on, rather than to end the turn. After the read, [`Burst::refilled`].
    pub fn refill(&mut self, now: Instant, buffered: usize) -> bool {
        self.worked += self.unread.saturating_sub(buffered);
        now - self.began < BURST_MAX
    }

    /// The socket was read; so many bytes are buffered now.
    pub const fn refilled(&mut self, buffered: usize) {
        self.unread = buffered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works off `total` bytes of frames of `frame` bytes, of which no more come: counts reads.
    fn reads(total: usize, frame: usize, each: Duration) -> (usize, usize) {
        let (mut now, mut left, mut reads) = (Instant::START, total, 0);
        let mut burst = Burst::begin(now, left);
        while left > 0 {
            if burst.next(left) == Work::Pause {
                if !burst.refill(now, left) {
                    break;
                }
                reads += 1;
                burst.refilled(left);
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
        let (_, left) = reads(BURST_BYTES, 1_024, Duration::from_millis(4));
        assert!(left > 0);
    }
}
