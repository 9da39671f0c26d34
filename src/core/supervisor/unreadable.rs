//! Counts sessions that ended at the same message of the log.
//!
//! Input: where the message is that ended a session. Output: how many sessions have ended there in a row. Invariant: an end
//! for another reason in between does not begin the count anew, and another position does.

use crate::lsn::Lsn;

/// Sessions that end at one message before the relay does. What damages a stream on its way, such as a proxy that is
/// replaced, ends one session, and rarely two at the same message. Each session may repeat the rows of the open transaction.
pub(super) const SESSIONS_MAX: u32 = 5;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct UnreadableMessage {
    at: Lsn,
    sessions: u32,
}

impl UnreadableMessage {
    /// One more session ended at the message there. How many have by now.
    pub(super) fn met(&mut self, at: Lsn) -> u32 {
        self.sessions = if at == self.at { self.sessions.saturating_add(1) } else { 1 };
        self.at = at;
        self.sessions
    }
}
