//! Replication log as the loop's source of frames: streamed, or read in windows for a backlog.
//!
//! Invariant: acknowledgements use the stream that holds the slot.

use std::time::Duration;

use crate::frame_source::FrameSource;
use postrider_core::lsn::Lsn;
use postrider_core::session::{End, Limits};
use postrider_postgres::wal::{CatchUp, Frame, Stream, WalError};

/// A server is silent while it decodes a window.
const SILENCE_MIN: Duration = Duration::from_mins(2);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each session")]
pub(super) enum LogSource {
    Stream(Stream),
    Windows(CatchUp),
}

impl LogSource {
    /// Start position of the windows. `None` for a stream.
    pub(super) const fn windows_from(&self) -> Option<Lsn> {
        match self {
            Self::Stream(_) => None,
            Self::Windows(windows) => Some(windows.from()),
        }
    }

    pub(super) fn limits(&self, usual: Limits) -> Limits {
        match self {
            Self::Stream(_) => usual,
            Self::Windows(windows) => {
                let last = windows.until();
                let earlier =
                    |(until, end)| if last < until { (last, End::ModeOver) } else { (until, end) };
                let silence = usual.silence.max(SILENCE_MIN);
                Limits { silence, until: usual.until.map(earlier), ..usual }
            }
        }
    }
}

macro_rules! of_either {
    ($source:expr, $reader:ident => $call:expr) => {
        match $source {
            LogSource::Stream($reader) => $call,
            LogSource::Windows($reader) => $call,
        }
    };
}

impl FrameSource for LogSource {
    #[inline]
    fn fill(&mut self, wait: Duration) -> Result<usize, WalError> {
        of_either!(self, reader => reader.fill(wait))
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        of_either!(self, reader => reader.peek())
    }

    #[inline]
    fn consume(&mut self) {
        of_either!(self, reader => reader.consume());
    }

    fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError> {
        of_either!(self, reader => reader.acknowledge(settled, ask_reply))
    }

    fn tend(&mut self) -> Result<(), WalError> {
        match self {
            Self::Stream(_) => Ok(()),
            Self::Windows(windows) => windows.tend(),
        }
    }

    fn finish(self, limit: Duration) -> Result<(), WalError> {
        of_either!(self, reader => reader.finish(limit))
    }

    fn received(&self) -> Lsn {
        of_either!(self, reader => reader.received())
    }

    fn log_position(&self) -> Option<Lsn> {
        Some(self.received())
    }

    fn received_bytes(&self) -> u64 {
        of_either!(self, reader => reader.received_bytes())
    }

    fn acknowledged(&self) -> Lsn {
        of_either!(self, reader => reader.acknowledged())
    }

    #[inline]
    fn buffered(&self) -> usize {
        of_either!(self, reader => reader.buffered())
    }
}
