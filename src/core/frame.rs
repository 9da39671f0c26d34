//! Defines [`Frame`]: a message of a replication stream, borrowed from the read buffer.

use crate::lsn::Lsn;
use crate::pgoutput::Excerpt;

/// One replication message (protocol section "Streaming Replication Protocol").
#[derive(Debug, Clone, Copy)]
pub enum Frame<'a> {
    /// `XLogData`: one pgoutput message.
    Wal {
        /// Position of the change. Do not acknowledge it: a Relation carries `0/0`.
        start: Lsn,
        /// The server's send time, in microseconds since 2000-01-01 UTC.
        sent_us: i64,
        /// pgoutput message.
        data: &'a [u8],
    },
    /// `XLogData` above the frame limit.
    Excerpt {
        /// See [`Frame::Wal`].
        start: Lsn,
        /// See [`Frame::Wal`].
        sent_us: i64,
        /// Kept part.
        excerpt: &'a Excerpt,
    },
    /// A [`Frame::Wal`] with text that has no equivalent in UTF-8; derived by the core.
    Untranslatable {
        /// See [`Frame::Wal`].
        start: Lsn,
        /// See [`Frame::Wal`].
        sent_us: i64,
        /// The message, in UTF-8 except for `columns`.
        data: &'a [u8],
        /// Columns, from 0, in the database's encoding.
        columns: &'a [usize],
    },
    /// The server has sent everything before `end`.
    Keepalive {
        /// Sent position.
        end: Lsn,
        /// Whether the connection ends without a reply.
        reply_now: bool,
    },
}

/// Position of the last message that had one; keepalives report the end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastPlace(pub Lsn);

impl LastPlace {
    /// Records the position of a frame.
    #[inline]
    pub fn read(&mut self, frame: &Frame<'_>) {
        if !matches!(frame, Frame::Keepalive { .. }) && frame.position() != Lsn::ZERO {
            self.0 = frame.position();
        }
    }
}

impl Frame<'_> {
    /// Position in the log; zero for a Relation or a Type, which the server sends without one.
    pub const fn position(&self) -> Lsn {
        match self {
            Self::Wal { start, .. }
            | Self::Excerpt { start, .. }
            | Self::Untranslatable { start, .. } => *start,
            Self::Keepalive { end, .. } => *end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_agree_on_the_place_of_a_message_whatever_keepalives_say() {
        let wal = |start| Frame::Wal { start: Lsn::new(start), sent_us: 0, data: b"" };
        let keepalive = |end| Frame::Keepalive { end: Lsn::new(end), reply_now: false };
        for end in [300, 400] {
            let mut place = LastPlace::default();
            for frame in [keepalive(end), wal(200), keepalive(end), wal(0)] {
                place.read(&frame);
            }
            assert_eq!(place, LastPlace(Lsn::new(200)));
        }
    }
}
