//! Defines [`Limits`]: the settings that bound a session.
//!
//! The intervals of status updates and heartbeats, how long the server may be silent, how long the session
//! may take to confirm what was sent when it is told to stop, the position at which it ends, and whether it
//! acknowledges at all.

use std::time::Duration;

use super::End;
use crate::lsn::Lsn;

/// Smallest distance of two acknowledgements while idle: one per transaction would cost both sides
/// more than it tells.
pub(super) const IDLE_ACKNOWLEDGE: Duration = Duration::from_millis(100);

/// What bounds a session.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest distance of two acknowledgements while the settled position advances.
    pub status_interval: Duration,
    /// Longest silence towards the server; well below its `wal_sender_timeout`.
    pub heartbeat: Duration,
    /// How long the server may be silent after a heartbeat.
    pub silence: Duration,
    /// How long a drain may take.
    pub grace: Duration,
    /// End like this once this position is acknowledged.
    pub until: Option<(Lsn, End)>,
    /// Whether positions are acknowledged at all (`run --dry-run` does not).
    pub acknowledge: bool,
}

impl Limits {
    /// Smallest distance of two acknowledgements while idle.
    pub(super) fn idle_spacing(&self) -> Duration {
        IDLE_ACKNOWLEDGE.min(self.status_interval)
    }
}
