//! Defines [`Frame`]: one message of a Postgres replication stream, borrowed from the read buffer.
//!
//! It is a keepalive, or an XLogData message that contains one pgoutput message. Two more variants are
//! XLogData of which only an excerpt was kept, since it was too large to hold, and XLogData with text that
//! has no equivalent in UTF-8. A frame can come from a socket, a recorded file or a simulation; the core
//! does not know which.

use crate::lsn::Lsn;
use crate::pgoutput::Excerpt;

/// One replication message (protocol section "Streaming Replication Protocol"), borrowed from the
/// read buffer: nothing is copied between the socket and the Kafka client.
#[derive(Debug, Clone, Copy)]
pub enum Frame<'a> {
    /// `XLogData`: one pgoutput message.
    Wal {
        /// Where the change lies. Not usable for acknowledgements: a Relation carries `0/0`.
        start: Lsn,
        /// The server's clock when it sent this, in microseconds since 2000-01-01 UTC.
        sent_us: i64,
        /// The pgoutput message.
        data: &'a [u8],
    },
    /// `XLogData` with a pgoutput message over the limit on frames: what was kept while it passed.
    Excerpt {
        /// As for [`Frame::Wal`].
        start: Lsn,
        /// As for [`Frame::Wal`].
        sent_us: i64,
        /// What was kept.
        excerpt: &'a Excerpt,
    },
    /// A row with text that has no equivalent in UTF-8. Streams have none: the core makes it of a
    /// [`Frame::Wal`] in another encoding.
    Untranslatable {
        /// As for [`Frame::Wal`].
        start: Lsn,
        /// As for [`Frame::Wal`].
        sent_us: i64,
        /// The pgoutput message, in UTF-8 but for those columns.
        data: &'a [u8],
        /// The columns, from 0, whose text is as the database has it.
        columns: &'a [usize],
    },
    /// A sign of life, and proof that everything before `end` was sent.
    Keepalive {
        /// The walsender's sent position.
        end: Lsn,
        /// The server will end the connection unless it hears from us soon.
        reply_now: bool,
    },
}

/// Where the last message was of which the server said it. Keepalives say how far the log has grown, and not where a message
/// is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastPlace(pub Lsn);

impl LastPlace {
    /// This frame was read.
    #[inline]
    pub fn read(&mut self, frame: &Frame<'_>) {
        if !matches!(frame, Frame::Keepalive { .. }) && frame.position() != Lsn::ZERO {
            self.0 = frame.position();
        }
    }
}

impl Frame<'_> {
    /// Where it lies in the log; zero for a Relation or a Type, of which the server does not say it.
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

    /// A Relation or a Type has no position, and a keepalive is of another one each time.
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
