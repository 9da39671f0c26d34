//! Defines [`Limits`]: the settings that bound a session.
//!
//! They cover the intervals of status updates and heartbeats, the server's longest silence, the
//! grace period of a stop, the position at which the session ends, and whether it acknowledges at
//! all.

use std::time::Duration;

use super::End;
use crate::lsn::Lsn;

/// Shortest interval between two acknowledgements while idle. One per transaction would cost both
/// sides more than it is worth.
pub(super) const IDLE_ACKNOWLEDGE: Duration = Duration::from_millis(100);

/// What bounds a session.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest interval between two acknowledgements while the settled position advances.
    pub status_interval: Duration,
    /// Longest silence towards the server; well below its `wal_sender_timeout`.
    pub heartbeat: Duration,
    /// Longest silence of the server after a heartbeat.
    pub silence: Duration,
    /// Longest duration of a drain.
    pub grace: Duration,
    /// Ends the session in this way once this position is acknowledged.
    pub until: Option<(Lsn, End)>,
    /// False for `run --dry-run`, which acknowledges nothing.
    pub acknowledge: bool,
}

impl Limits {
    pub(super) fn idle_spacing(&self) -> Duration {
        IDLE_ACKNOWLEDGE.min(self.status_interval)
    }
}
