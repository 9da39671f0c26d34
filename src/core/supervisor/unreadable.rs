//! Counts sessions that ended at one unreadable message.
//!
//! An end for another reason does not reset the count; another position does.

use crate::lsn::Lsn;

/// Sessions that may end at one message. Damage in transit rarely ends two at one message, and each
/// session may repeat rows of the open transaction.
pub(super) const SESSIONS_MAX: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct UnreadableMessage {
    at: Lsn,
    sessions: u32,
}

impl UnreadableMessage {
    pub(super) fn met(&mut self, at: Lsn) -> u32 {
        self.sessions = if at == self.at { self.sessions.saturating_add(1) } else { 1 };
        self.at = at;
        self.sessions
    }
}
