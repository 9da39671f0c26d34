//! Decides whether a session reads a backlog in windows ([`CatchUp`]) or streams it.
//!
//! Invariant: if windows fail for any reason, the next session streams their rows. Neither choice
//! loses rows or waits for them.

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

/// First fixed minor version per major version before PostgreSQL 18. Since then, a slot moved by
/// SQL retains the catalog rows that open transactions need ("Fix xmin advancement during
/// fast_forward decoding").
const ADVANCES_SINCE: [i32; 5] = [130_021, 140_018, 150_013, 160_009, 170_005];
/// First version that always has the fix.
const ADVANCES_ALWAYS: i32 = 180_000;

/// Knowledge that the sessions of a run share.
#[derive(Debug, Clone, Default)]
pub(super) struct CatchUpChoice {
    /// Windows have failed below this position, so sessions stream.
    streams_until: Arc<AtomicU64>,
    /// Start of a windowed session that ended with an error.
    failed_from: Arc<AtomicU64>,
    /// Planned end of a windowed session that lost its connection to PostgreSQL.
    lost_until: Arc<AtomicU64>,
}

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
    /// After windows that lost PostgreSQL, the session streams only up to the end that was planned
    /// for them.
    pub(super) fn bounded(&self, limits: Limits, mode: Option<SessionMode>, from: Lsn) -> Limits {
        let lost = Lsn::new(self.lost_until.load(Ordering::Relaxed));
        let is_backlog = mode.is_some_and(|mode| mode.kind == ModeKind::Backlog);
        match limits.until {
            Some((until, _)) if is_backlog && from < lost && lost < until => {
                tracing::info!(until = %lost, "streaming what windows were to bring when PostgreSQL was lost");
                Limits { until: Some((lost, End::ModeOver)), ..limits }
            }
            _ => limits,
        }
    }

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
            let open = || Connection::open(&considered.source.connect, &params);
            let connection = open()?;
            let is_local = connection.is_local();
            let copy = SlotCopy::make(connection, backlog)?;
            // Over TCP, the server detects a relay that does not read.
            if is_local { copy.guarded_by(open()?) } else { Ok(copy) }
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

    fn backlog(&self, params: &SessionParams, considered: &Considered<'_>) -> Option<Backlog> {
        let Considered { source, mode, limits, held } = considered;
        let (server, slot) = (&held.inspection.server, &held.slot);
        let (until, _) = limits.until?;
        let from = slot.confirmed_flush;
        let before = from.bytes_since(slot.restart?);
        let stream_pid = slot.active_pid?;
        let is_fit = source.catch_up
            && mode.is_some_and(|mode| mode.kind == ModeKind::Backlog)
            && advances(server.version_num)
            && !server.in_recovery
            && params.encoding == StreamEncoding::Utf8
            && before <= DECODED_BEFORE_BYTES_MAX
            && from.get() >= self.streams_until.load(Ordering::Relaxed)
            // Otherwise the session would request the failed window again.
            && from.get() >= self.lost_until.load(Ordering::Relaxed)
            // Otherwise the same error would end every session.
            && from.get() != self.failed_from.load(Ordering::Relaxed);
        is_fit.then(|| Backlog {
            slot: source.slot.clone(),
            publication: source.publication.clone(),
            messages: params.messages,
            from,
            until,
            before,
            safe: slot.safe_wal_bytes,
            stream_pid,
            server_started_us: slot.server_started_us,
        })
    }

    /// Lets the next session stream if windows failed. `windows`: their start.
    pub(super) fn ended(
        &self,
        ended: Result<End, RelayError>,
        limits: &Limits,
        windows: Option<Lsn>,
    ) -> Result<End, RelayError> {
        match (ended, limits.until) {
            // The server may be stopping, which the stream reports. Windows are tried again after
            // the end of these windows.
            (
                Err(RelayError::Wal(error @ WalError::CatchUp(CatchUpError::Ended(_)))),
                Some((until, _)),
            ) => {
                tracing::info!("{error}");
                self.lost_until.store(until.get(), Ordering::Relaxed);
                Ok(End::ModeOver)
            }
            (Err(RelayError::Wal(error @ WalError::CatchUp(_))), Some((until, _))) => {
                self.stream_rest(&error, until);
                Ok(End::ModeOver)
            }
            // After a crash of one process, the server ends its other processes as in a shutdown.
            (ended @ (Err(RelayError::Wal(_)) | Ok(End::ServerShutdown)), Some((until, _)))
                if windows.is_some() =>
            {
                self.lost_until.store(until.get(), Ordering::Relaxed);
                ended
            }
            (ended, _) => {
                if let (Err(_), Some(from)) = (&ended, windows) {
                    self.failed_from.store(from.get(), Ordering::Relaxed);
                }
                ended
            }
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

/// Whether SQL may move a slot on a server of this version.
fn advances(version_num: i32) -> bool {
    let major = |version: i32| version / 10_000;
    let since = ADVANCES_SINCE.iter().find(|since| major(**since) == major(version_num));
    version_num >= since.copied().unwrap_or(ADVANCES_ALWAYS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FROM: Lsn = Lsn::new(100);

    fn limits(until: u64) -> Limits {
        let second = Duration::from_secs(1);
        Limits {
            status_interval: second,
            heartbeat: second,
            silence: second,
            grace: second,
            until: Some((Lsn::new(until), End::ModeOver)),
            acknowledge: true,
        }
    }

    const BACKLOG: Option<SessionMode> =
        Some(SessionMode { kind: ModeKind::Backlog, until: Lsn::new(900) });

    /// Upholds G8: one row of a window may crash the server, together with all its clients.
    #[test]
    fn g8_what_windows_were_to_bring_is_streamed_once_the_server_was_lost() {
        let choice = CatchUpChoice::default();
        let lost = Err(RelayError::Wal(WalError::Closed));
        assert!(choice.ended(lost, &limits(400), Some(FROM)).is_err());
        let told = Ok(End::ServerShutdown);
        assert!(choice.ended(told, &limits(500), Some(FROM)).is_ok());
        let until = |from, mode| {
            let bounded = choice.bounded(limits(900), mode, Lsn::new(from));
            bounded.until.map(|(until, _)| until.get())
        };
        assert_eq!(until(300, BACKLOG), Some(500), "no further");
        assert_eq!(until(500, BACKLOG), Some(900), "windows again");
        assert_eq!(until(300, None), Some(900), "no backlog");
        assert_eq!(choice.streams_until.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_stream_that_was_lost_changes_nothing() {
        let choice = CatchUpChoice::default();
        let lost = Err(RelayError::Wal(WalError::Closed));
        assert!(choice.ended(lost, &limits(500), None).is_err());
        let bounded = choice.bounded(limits(900), BACKLOG, FROM);
        assert_eq!(bounded.until, limits(900).until);
    }

    #[test]
    fn what_windows_cannot_bring_is_streamed_to_the_end() {
        let choice = CatchUpChoice::default();
        let far = Err(RelayError::Wal(CatchUpError::Far.into()));
        assert!(matches!(choice.ended(far, &limits(500), Some(FROM)), Ok(End::ModeOver)));
        assert_eq!(choice.streams_until.load(Ordering::Relaxed), 500);
        assert_eq!(choice.bounded(limits(900), BACKLOG, FROM).until, limits(900).until);
    }

    /// A stopping server closes the connection for windows before the stream.
    #[test]
    fn windows_resume_behind_the_part_that_a_server_ended() {
        let choice = CatchUpChoice::default();
        let ended = CatchUpError::Ended(Box::default());
        let ended = Err(RelayError::Wal(ended.into()));
        assert!(matches!(choice.ended(ended, &limits(500), Some(FROM)), Ok(End::ModeOver)));
        assert_eq!(
            choice.bounded(limits(900), BACKLOG, FROM).until.map(|(until, _)| until.get()),
            Some(500)
        );
        assert_eq!(choice.streams_until.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn g4_a_slot_is_moved_by_servers_that_keep_what_is_to_be_decoded() {
        for (version, is_sound) in [
            (120_022, false),
            (130_020, false),
            (130_021, true),
            (150_012, false),
            (150_018, true),
            (170_004, false),
            (170_005, true),
            (180_000, true),
            (190_001, true),
        ] {
            assert_eq!(advances(version), is_sound, "{version}");
        }
    }
}
