//! Provides polled rows as the loop's frames. The marked position advances only after the database
//! has committed the marks.

use std::sync::Arc;
use std::time::Duration;

use crate::frame_source::FrameSource;
use postrider_core::lsn::Lsn;
use postrider_postgres::wal::{Frame, LockedRows, PollStream, WalError};

pub(super) struct PollSource<'a> {
    pub(super) rows: PollStream,
    pub(super) marked: &'a mut Lsn,
}

impl FrameSource for PollSource<'_> {
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
        self.rows.settle(settled)?;
        *self.marked = self.rows.committed();
        Ok(*self.marked)
    }

    fn conclude(&mut self) -> Result<(), WalError> {
        self.rows.conclude()?;
        *self.marked = self.rows.committed();
        Ok(())
    }

    fn finish(mut self, _limit: Duration) -> Result<(), WalError> {
        self.conclude()
    }

    fn locked_rows(&self) -> Option<Arc<LockedRows>> {
        self.rows.locked_rows()
    }

    fn is_caught_up(&self) -> bool {
        self.rows.is_caught_up()
    }

    fn received(&self) -> Lsn {
        self.rows.received()
    }

    fn received_bytes(&self) -> u64 {
        self.rows.received_bytes()
    }

    fn acknowledged(&self) -> Lsn {
        self.rows.committed()
    }

    fn buffered(&self) -> usize {
        self.rows.buffered()
    }
}
