//! What a frame holds, as the pipeline sees it.
//!
//! Enters: a frame. Leaves: something that may be a row, a message that is none, or a keepalive; of the
//! first, the row. What always holds: a frame is decoded once each time that it is handed in.

use super::error::PipelineError;
use super::stream_position::StreamPosition;
use crate::frame::Frame;
use crate::ledger::Ledger;
use crate::lsn::Lsn;
use crate::outbox::{Outbox, OutboxRow};
use crate::pgoutput::{Excerpt, Insert, LogicalMessage, Message, decode};

/// What may be a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) kind: Kind<'a>,
    /// What was kept of it, where it was too large to be held.
    excerpt: Option<&'a Excerpt>,
    /// The columns of which UTF-8 has no equivalent.
    untranslatable: &'a [usize],
    pub(super) sent_us: i64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'a> {
    Insert(Insert<'a>),
    Logical(LogicalMessage<'a>),
}

impl Kind<'_> {
    /// Whether it is a transaction of its own.
    pub(super) const fn is_alone(&self) -> bool {
        matches!(self, Self::Logical(message) if !message.transactional)
    }
}

/// What a frame holds.
pub(super) enum Found<'a> {
    Change(Change<'a>),
    Message(Message<'a>),
    Keepalive(Lsn),
}

impl<'a> Found<'a> {
    /// Decodes a frame.
    #[inline]
    pub(super) fn in_frame(frame: Frame<'a>, outbox: &Outbox) -> Result<Self, PipelineError> {
        let (data, sent_us, excerpt, untranslatable) = match frame {
            Frame::Wal { data, sent_us, .. } => (data, sent_us, None, &[][..]),
            Frame::Untranslatable { data, sent_us, columns, .. } => (data, sent_us, None, columns),
            Frame::Excerpt { excerpt, sent_us, .. } => {
                (excerpt.message(), sent_us, Some(excerpt), excerpt.untranslatable())
            }
            Frame::Keepalive { end, .. } => return Ok(Self::Keepalive(end)),
        };
        let kind = match decode(data)? {
            Message::Insert(insert) => Kind::Insert(insert),
            Message::Logical(message) if outbox.is_row_of(&message, excerpt) => {
                Kind::Logical(message)
            }
            message => return Ok(Self::Message(message)),
        };
        Ok(Self::Change(Change { kind, excerpt, untranslatable, sent_us }))
    }
}

impl<'a> Change<'a> {
    /// The row of a change; `None` for one of a table that is no outbox.
    pub(super) fn row(
        &self,
        outbox: &'a mut Outbox,
        at: &mut StreamPosition,
        ledger: &mut Ledger,
    ) -> Result<Option<OutboxRow<'a>>, PipelineError> {
        match &self.kind {
            Kind::Insert(insert) => {
                Ok(outbox.row_of(insert, self.excerpt, self.untranslatable, at.open()?)?)
            }
            Kind::Logical(message) => {
                let position = at.message(message, self.sent_us, ledger)?;
                Ok(Some(outbox.message_row(message, self.excerpt, position)))
            }
        }
    }
}
