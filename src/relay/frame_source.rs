//! [`FrameSource`]: what the loop reads frames from: the replication log, a table's rows, or rows that are polled.
//!
//! Output: frames in order, bytes and positions read so far, and, of tables, the place from which a later session
//! goes on. Invariant: `peek` shows the same frame until `consume`; nothing but `fill` waits.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::RowCursor;
use postrider_postgres::wal::{Frame, LockedRows, WalError};

/// See the module's documentation.
pub(super) trait FrameSource {
    /// Reads what is there; if nothing is, waits at most `wait` for it. Returns the bytes read.
    fn fill(&mut self, wait: Duration) -> Result<usize, WalError>;

    /// The next frame, if it is there.
    fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError>;

    /// Where that frame begins in what was received; of one over the limit, where it ends.
    #[inline]
    fn place(&mut self) -> Result<Option<u64>, WalError> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        // What came with the answer that began the stream is not counted.
        Ok(Some(self.received_bytes().saturating_sub(self.buffered() as u64)))
    }

    /// Takes the frame that `peek` showed.
    fn consume(&mut self);

    /// Says how much is settled. Returns what was said so far.
    fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError>;

    /// Sees to what nothing is read of, between two turns of the loop. Never waits.
    fn tend(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    /// The session ends before its time: what was said to be settled is kept, as far as that is still to be done.
    fn conclude(&mut self) -> Result<(), WalError> {
        Ok(())
    }

    /// Ends it in good order, in this time.
    fn finish(self, limit: Duration) -> Result<(), WalError>;

    /// The highest position of which a frame was read.
    fn received(&self) -> Lsn;

    /// The highest position of which a frame was read, where positions are those of the server's log: what cannot be read there
    /// is met again.
    fn log_position(&self) -> Option<Lsn> {
        None
    }

    /// Bytes read.
    fn received_bytes(&self) -> u64;

    /// The highest position that was said to be settled.
    fn acknowledged(&self) -> Lsn;

    /// Bytes read and not consumed.
    fn buffered(&self) -> usize;

    /// Rows that have waited for a lock for long.
    fn locked_rows(&self) -> Option<Arc<LockedRows>> {
        None
    }

    /// Whether no row waits that could not be read, for a lock for example.
    fn is_caught_up(&self) -> bool {
        true
    }

    /// The row behind which this mark lies, where that is a place in a table. The mark is one that the session
    /// reaches now, or the end of a transaction before it.
    fn cursor(&self, _mark: Mark) -> Option<RowCursor> {
        None
    }
}
