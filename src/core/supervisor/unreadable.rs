//! Counts sessions that ended at one unreadable message of the log.
//!
//! Input: position of the message that ended a session. Output: the number of consecutive sessions
//! that ended there. Invariant: an end for another reason does not reset the count; another
//! position does.

use crate::lsn::Lsn;

/// Sessions that may end at one message before the relay ends. Damage in transit, for example by a
/// replaced proxy, ends one session, and rarely two at one message. Each session may repeat the
/// rows of the open transaction.
pub(super) const SESSIONS_MAX: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct UnreadableMessage {
    at: Lsn,
    sessions: u32,
}

impl UnreadableMessage {
    /// Books another session that ended at `at`, and returns their number.
    pub(super) fn met(&mut self, at: Lsn) -> u32 {
        self.sessions = if at == self.at { self.sessions.saturating_add(1) } else { 1 };
        self.at = at;
        self.sessions
    }
}
