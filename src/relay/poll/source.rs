//! Polled rows as the loop's source of frames.
//!
//! Input: a [`PollStream`]. Output: frames, and how far rows are marked, for the worker's next session. Invariant: that
//! is raised once the database has committed the marks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Worker;
use crate::frame_source::FrameSource;
use postrider_core::lsn::Lsn;
use postrider_postgres::wal::{Frame, PollStream, WalError};

/// See the module's documentation.
pub(super) struct PollSource {
    pub(super) rows: PollStream,
    pub(super) marked: Arc<AtomicU64>,
}

impl Worker {
    /// Rows up to here are marked.
    pub(super) fn marked(&self) -> Lsn {
        Lsn::new(self.marked.load(Ordering::Acquire))
    }
}

impl PollSource {
    fn note(&self) {
        self.marked.store(self.rows.committed().get(), Ordering::Release);
    }
}

impl FrameSource for PollSource {
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
        self.note();
        Ok(self.rows.committed())
    }

    fn conclude(&mut self) -> Result<(), WalError> {
        self.rows.conclude()?;
        self.note();
        Ok(())
    }

    fn finish(mut self, _limit: Duration) -> Result<(), WalError> {
        self.conclude()
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
