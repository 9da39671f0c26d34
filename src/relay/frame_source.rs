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
    /// Waits for at most `wait` if no data is available. Returns the number of bytes read.
    fn fill(&mut self, wait: Duration) -> Result<usize, WalError>;

    fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError>;

    /// Start of that frame in the received bytes; end of a frame over the size limit.
    #[inline]
    fn place(&mut self) -> Result<Option<u64>, WalError> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        // Excludes bytes in the response that opened the stream.
        Ok(Some(self.received_bytes().saturating_sub(self.buffered() as u64)))
    }

    fn consume(&mut self);

    /// Returns the position reported so far.
    fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError>;

    /// Maintains connections that are not read. Never waits.
    fn tend(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    /// Ends the session early, and stores the settled position unless it is already stored.
    fn conclude(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    fn finish(self, limit: Duration) -> Result<(), WalError>;

    /// Highest position of a frame.
    fn received(&self) -> Lsn;

    /// [`Self::received`], if positions are those in the server's log. An unreadable message is
    /// received again from there.
    fn log_position(&self) -> Option<Lsn> {
        None
    }

    fn received_bytes(&self) -> u64;

    fn acknowledged(&self) -> Lsn;

    fn buffered(&self) -> usize;

    fn locked_rows(&self) -> Option<Arc<LockedRows>> {
        None
    }

    /// `false`: a lock, for example, prevents reading.
    fn is_caught_up(&self) -> bool {
        true
    }

    /// Row before this mark, for a source that reads tables. The mark is the one that the session
    /// reaches now, or the end of an earlier transaction.
    fn cursor(&self, _mark: Mark) -> Option<RowCursor> {
        None
    }
}
