//! Whether a session reads a backlog in windows ([`CatchUp`]) instead of streaming it, and what it does when that ends.
//!
//! Input: the session's mode and limits, the slot as it is while we hold it, and how earlier sessions ended. Output: a
//! stream, or a copy of the slot to read beside it. Invariant: what windows cannot bring, for whatever
//! reason, the next session streams; nothing is lost or waited for by the choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::RelayError;
use crate::log_source::LogSource;
use crate::source_check::HeldSource;
use crate::start::meanwhile;
use postrider_config::SourceSection;
use postrider_core::lsn::Lsn;
use postrider_core::session::{End, Limits};
use postrider_core::supervisor::{ModeKind, SessionMode};
use postrider_postgres::wal::{
    Backlog, CatchUpError, Connection, DECODED_BEFORE_BYTES_MAX, SessionParams, SlotCopy, Stream,
    StreamEncoding, WalError,
};

/// Slots can be copied from PostgreSQL 12 on.
const COPIES_SLOTS_SINCE: i32 = 120_000;

/// What the sessions of a run know of it.
#[derive(Debug, Clone, Default)]
pub(super) struct CatchUpChoice {
    /// Below this position it was tried.
    streams_until: Arc<AtomicU64>,
}

/// What a session is to do, and what it found.
pub(super) struct Considered<'a> {
    source: &'a SourceSection,
    mode: Option<SessionMode>,
    limits: &'a Limits,
    held: &'a HeldSource,
}

impl<'a> Considered<'a> {
    pub(super) const fn of(
        source: &'a SourceSection,
        (mode, limits): (Option<SessionMode>, &'a Limits),
        held: &'a HeldSource,
    ) -> Self {
        Self { source, mode, limits, held }
    }
}

impl CatchUpChoice {
    /// What the session reads, whose stream holds the slot.
    pub(super) fn source(
        &self,
        mut stream: Stream,
        params: &SessionParams,
        considered: &Considered<'_>,
    ) -> LogSource {
        let Some(backlog) = self.backlog(params, considered) else {
            return LogSource::Stream(stream);
        };
        let until = backlog.until;
        let params = SessionParams { replicates: false, ..params.clone() };
        let copy = || {
            Connection::open(&considered.source.connect, &params)
                .and_then(|connection| SlotCopy::make(connection, backlog))
        };
        match meanwhile(&mut stream, considered.limits.heartbeat, copy) {
            Ok(copy) => {
                let windows = copy.over(stream);
                tracing::info!(until = %windows.until(), "reading the backlog in windows of the log");
                LogSource::Windows(windows)
            }
            Err(error) => {
                self.stream_rest(&error, until);
                LogSource::Stream(stream)
            }
        }
    }

    /// The backlog that is to be read in windows.
    fn backlog(&self, params: &SessionParams, considered: &Considered<'_>) -> Option<Backlog> {
        let Considered { source, mode, limits, held } = considered;
        let (server, slot) = (&held.inspection.server, &held.slot);
        let (until, _) = limits.until?;
        let from = slot.confirmed_flush;
        let before = from.bytes_since(slot.restart?);
        let is_fit = source.catch_up
            && mode.is_some_and(|mode| mode.kind == ModeKind::Backlog)
            && server.version_num >= COPIES_SLOTS_SINCE
            && !server.in_recovery
            && params.encoding == StreamEncoding::Utf8
            && before <= DECODED_BEFORE_BYTES_MAX
            && from.get() >= self.streams_until.load(Ordering::Relaxed);
        is_fit.then(|| Backlog {
            slot: source.slot.clone(),
            publication: source.publication.clone(),
            messages: params.messages,
            from,
            until,
            before,
            safe: slot.safe_wal_bytes,
        })
    }

    /// The session's end is one after which the next one streams, if windows could not bring everything.
    pub(super) fn ended(
        &self,
        ended: Result<End, RelayError>,
        limits: &Limits,
    ) -> Result<End, RelayError> {
        match (ended, limits.until) {
            (Err(RelayError::Wal(error @ WalError::CatchUp(_))), Some((until, _))) => {
                self.stream_rest(&error, until);
                Ok(End::ModeOver)
            }
            (ended, _) => ended,
        }
    }

    fn stream_rest(&self, error: &WalError, until: Lsn) {
        self.streams_until.store(until.get(), Ordering::Relaxed);
        match error {
            WalError::CatchUp(
                CatchUpError::Far | CatchUpError::StandbysAwaited | CatchUpError::Short,
            ) => {
                tracing::info!("{error}");
            }
            error => {
                tracing::warn!(help = error.hint(), "{error}; streaming the rest of the backlog");
            }
        }
    }
}
