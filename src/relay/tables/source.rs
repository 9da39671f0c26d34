//! The rows of tables as the loop's source of frames, while nobody else has the slot that the stream begins at.
//!
//! Input: a [`TableStream`], and for a backfill the stream of the slot, which is not read. Output: frames, and the
//! place behind the last row that is settled ([`Place`]), for a session that goes on after this one. Invariant: the
//! slot is held until the rows are delivered, and nothing is acknowledged to it.

use std::time::Duration;

use crate::frame_source::FrameSource;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::RowCursor;
use postrider_postgres::wal::{Frame, Stream, TableStream, WalError};

/// How far rows are settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// The transactions that end up to here are.
    pub(super) end: Lsn,
    /// Their last row; `None`: the first one is still to come, or rows have no order.
    pub(super) cursor: Option<RowCursor>,
}

/// See the module's documentation.
pub(super) struct TableSource<'a> {
    pub(super) rows: TableStream,
    pub(super) slot: Option<Stream>,
    pub(super) settled: &'a mut Place,
}

impl FrameSource for TableSource<'_> {
    fn fill(&mut self, wait: Duration) -> Result<usize, WalError> {
        self.rows.fill(wait)
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        self.rows.peek()
    }

    fn consume(&mut self) {
        self.rows.consume();
    }

    fn acknowledge(&mut self, settled: Lsn, _ask_reply: bool) -> Result<Lsn, WalError> {
        let end = settled.min(self.rows.received()).max(self.settled.end);
        if end > self.settled.end {
            let cursor = self.rows.cursor_at(end).cloned().or(self.settled.cursor.take());
            *self.settled = Place { end, cursor };
            self.rows.settled(end);
        }
        if let Some(slot) = &mut self.slot {
            slot.keep_alive()?;
        }
        Ok(end)
    }

    fn finish(self, limit: Duration) -> Result<(), WalError> {
        self.slot.map_or(Ok(()), |slot| slot.finish(limit))
    }

    fn received(&self) -> Lsn {
        self.rows.received()
    }

    fn received_bytes(&self) -> u64 {
        self.rows.received_bytes()
    }

    fn acknowledged(&self) -> Lsn {
        self.settled.end
    }

    fn buffered(&self) -> usize {
        self.rows.buffered()
    }

    fn cursor(&self, mark: Mark) -> Option<RowCursor> {
        if mark.part.is_some() {
            self.rows.cursor()
        } else {
            self.rows.cursor_at(mark.end).cloned()
        }
    }
}
