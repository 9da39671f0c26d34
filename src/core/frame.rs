//! Defines [`Frame`]: one message of a Postgres replication stream, borrowed from the read buffer.
//!
//! A frame is a keepalive, or an XLogData message that contains one pgoutput message. Two variants
//! stand for unusual XLogData: an excerpt of a message that was too large to hold, and text without
//! an equivalent in UTF-8. Frames come from a socket, a recorded file or a simulation; the core
//! cannot tell which.

use crate::lsn::Lsn;
use crate::pgoutput::Excerpt;

/// One replication message (protocol section "Streaming Replication Protocol"). Nothing is copied
/// between the socket and the Kafka client.
#[derive(Debug, Clone, Copy)]
pub enum Frame<'a> {
    /// `XLogData`: one pgoutput message.
    Wal {
        /// Position of the change. Do not acknowledge it: a Relation carries `0/0`.
        start: Lsn,
        /// The server's send time, in microseconds since 2000-01-01 UTC.
        sent_us: i64,
        /// The pgoutput message.
        data: &'a [u8],
    },
    /// `XLogData` whose pgoutput message exceeds the frame limit.
    Excerpt {
        /// As for [`Frame::Wal`].
        start: Lsn,
        /// As for [`Frame::Wal`].
        sent_us: i64,
        /// The part that was kept while the message passed.
        excerpt: &'a Excerpt,
    },
    /// A row with text that has no equivalent in UTF-8. The core derives this frame from a
    /// [`Frame::Wal`] in another encoding; streams never contain one.
    Untranslatable {
        /// As for [`Frame::Wal`].
        start: Lsn,
        /// As for [`Frame::Wal`].
        sent_us: i64,
        /// The pgoutput message, in UTF-8 except for `columns`.
        data: &'a [u8],
        /// Columns, from 0, whose text is still in the database's encoding.
        columns: &'a [usize],
    },
    /// A sign of life. The server has sent everything before `end`.
    Keepalive {
        /// The walsender's sent position.
        end: Lsn,
        /// The server will close the connection unless it receives a reply soon.
        reply_now: bool,
    },
}

/// Position of the last message that had one. Keepalives do not change it: they report the end of
/// the log, not the position of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastPlace(pub Lsn);

impl LastPlace {
    /// Records the position of a frame that was read.
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

    /// Relations and Types have no position, and each session receives other keepalives.
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
