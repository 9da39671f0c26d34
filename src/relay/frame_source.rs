//! [`FrameSource`]: source of frames for the loop. Frames come from the replication log, from a
//! table's rows, or from polled rows.
//!
//! Output: frames in order, bytes and positions read so far, and, for tables, the position at which
//! a later session resumes. Invariant: `peek` returns the same frame until `consume`. Only `fill`
//! waits.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::RowCursor;
use postrider_postgres::wal::{Frame, LockedRows, WalError};

/// Source of frames for the loop.
pub(super) trait FrameSource {
    /// Reads available data, and waits for at most `wait` if none is available. Returns the number
    /// of bytes read.
    fn fill(&mut self, wait: Duration) -> Result<usize, WalError>;

    /// Returns the next frame, if it is complete.
    fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError>;

    /// Offset of that frame's start in the received bytes. For a frame over the size limit, the
    /// offset of its end.
    #[inline]
    fn place(&mut self) -> Result<Option<u64>, WalError> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        // Bytes in the response that opened the stream are not counted.
        Ok(Some(self.received_bytes().saturating_sub(self.buffered() as u64)))
    }

    /// Removes the frame that `peek` returned.
    fn consume(&mut self);

    /// Reports the settled position. Returns the position reported so far.
    fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError>;

    /// Maintains connections that are not read, between two turns of the loop. Never waits.
    fn tend(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    /// Ends the session early, and stores the settled position as far as it is not stored yet.
    fn conclude(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    /// Closes the source in an orderly way, within this time.
    fn finish(self, limit: Duration) -> Result<(), WalError>;

    /// Highest position of a frame that was read.
    fn received(&self) -> Lsn;

    /// Highest position of a frame that was read, if positions are those in the server's log. An
    /// unreadable message is received again from there.
    fn log_position(&self) -> Option<Lsn> {
        None
    }

    /// Number of bytes read.
    fn received_bytes(&self) -> u64;

    /// Highest position reported as settled.
    fn acknowledged(&self) -> Lsn;

    /// Number of bytes read and not consumed.
    fn buffered(&self) -> usize;

    /// Rows that have waited long for a lock.
    fn locked_rows(&self) -> Option<Arc<LockedRows>> {
        None
    }

    /// Whether every waiting row could be read. A lock, for example, prevents this.
    fn is_caught_up(&self) -> bool {
        true
    }

    /// Row before this mark, if the mark is a position in a table. The mark is the one that the
    /// session reaches now, or the end of an earlier transaction.
    fn cursor(&self, _mark: Mark) -> Option<RowCursor> {
        None
    }
}
