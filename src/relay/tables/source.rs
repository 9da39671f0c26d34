//! Provides rows of tables as the loop's frames.
//!
//! Invariant: the slot is held until the rows are delivered, and no position is acknowledged to it.

use std::time::Duration;

use crate::frame_source::FrameSource;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::RowCursor;
use postrider_postgres::wal::{Frame, Stream, TableStream, WalError};

/// Position up to which rows are settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// End of the last settled transaction.
    pub(super) end: Lsn,
    /// Last settled row. `None`: no row is settled, or the rows do not have an order.
    pub(super) cursor: Option<RowCursor>,
}

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
