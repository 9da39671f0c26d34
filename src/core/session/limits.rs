//! The limits of a session: timeouts, and the position at which it ends.

use std::time::Duration;

use super::End;
use crate::lsn::Lsn;

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
