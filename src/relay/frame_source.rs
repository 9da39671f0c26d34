//! Source of frames for the loop: the replication log, a table's rows, or polled rows.
//!
//! Invariant: `peek` returns the same frame until `consume`. Only `fill` waits.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::RowCursor;
use postrider_postgres::wal::{Frame, LockedRows, WalError};

pub(super) trait FrameSource {
    /// Reads available data, and waits for at most `wait` if none is available. Returns the number
    /// of bytes read.
    fn fill(&mut self, wait: Duration) -> Result<usize, WalError>;

    fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError>;

    /// Offset of that frame's start in the received bytes, or of its end for a frame over the size
    /// limit.
    #[inline]
    fn place(&mut self) -> Result<Option<u64>, WalError> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        // Bytes in the response that opened the stream are not counted.
        Ok(Some(self.received_bytes().saturating_sub(self.buffered() as u64)))
    }

    fn consume(&mut self);

    /// Returns the position reported so far.
    fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError>;

    /// Maintains connections that are not read, between two turns of the loop. Never waits.
    fn tend(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    /// Ends the session early, and stores the settled position as far as necessary.
    fn conclude(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    fn finish(self, limit: Duration) -> Result<(), WalError>;

    /// Highest position of a frame that was read.
    fn received(&self) -> Lsn;

    /// [`Self::received`] as a position in the server's log, if frames come from there. An
    /// unreadable message is received again from there.
    fn log_position(&self) -> Option<Lsn> {
        None
    }

    fn received_bytes(&self) -> u64;

    fn acknowledged(&self) -> Lsn;

    /// Number of bytes read and not consumed.
    fn buffered(&self) -> usize;

    /// Rows that have waited long for a lock.
    fn locked_rows(&self) -> Option<Arc<LockedRows>> {
        None
    }

    /// `false` if, for example, a lock prevents reading.
    fn is_caught_up(&self) -> bool {
        true
    }

    /// Row before this mark, if the mark is a position in a table.
    fn cursor(&self, _mark: Mark) -> Option<RowCursor> {
        None
    }
}
