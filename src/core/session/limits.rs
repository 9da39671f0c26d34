//! Settings that bound a session.

use std::time::Duration;

use super::End;
use crate::lsn::Lsn;

/// Shortest interval of acknowledgements while idle. One per transaction would cost too much.
pub(super) const IDLE_ACKNOWLEDGE: Duration = Duration::from_millis(100);

/// Limits of a session.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest interval of acknowledgements while rows settle.
    pub status_interval: Duration,
    /// Longest silence towards the server; well below `wal_sender_timeout`.
    pub heartbeat: Duration,
    /// Longest silence of the server after a heartbeat.
    pub silence: Duration,
    /// Longest drain.
    pub grace: Duration,
    /// Ends the session once this position is acknowledged.
    pub until: Option<(Lsn, End)>,
    /// False for `run --dry-run`.
    pub acknowledge: bool,
}

impl Limits {
    pub(super) fn idle_spacing(&self) -> Duration {
        IDLE_ACKNOWLEDGE.min(self.status_interval)
    }
}
