//! Chooses a session's mode, which changes how records are sent up to a position.
//!
//! Sessions that keep ending at one position because of the producer lead to `Cautious` (G4).

use super::failure::SinkFault;
use crate::lsn::Lsn;

/// A backlog of this size takes seconds, so a row's wait for its batch does not matter.
const BACKLOG_BYTES: u64 = 64 << 20;

/// Log that the server may decode again after the backlog, because an open transaction holds
/// `restart_lsn` back. With more, another backlog would build up each time.
const DECODED_AGAIN_BYTES_MAX: u64 = 128 << 20;

/// A slot's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPosition {
    /// `restart_lsn`, where decoding starts.
    pub restart: Lsn,
    /// `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// End of the server's log.
    pub log_end: Lsn,
}

/// Difference from a usual session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeKind {
    /// Larger batches for many old rows.
    Backlog,
    /// Less in flight, because records were late.
    Small,
    /// Single records, so that the next refusal names one.
    Cautious,
}

impl ModeKind {
    /// Name for the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::Small => "small",
            Self::Cautious => "cautious",
        }
    }
}

/// A mode and the position where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionMode {
    /// Difference.
    pub kind: ModeKind,
    /// End of the mode.
    pub until: Lsn,
}

impl SessionMode {
    pub(super) fn of_backlog(slot: SlotPosition) -> Option<Self> {
        let is_long = slot.log_end.bytes_since(slot.confirmed) > BACKLOG_BYTES;
        let is_near = slot.confirmed.bytes_since(slot.restart) <= DECODED_AGAIN_BYTES_MAX;
        (is_long && is_near).then_some(Self { kind: ModeKind::Backlog, until: slot.log_end })
    }

    pub(super) const fn is_for_an_end(self) -> bool {
        matches!(self.kind, ModeKind::Small | ModeKind::Cautious)
    }

    const fn is_cautious(self) -> bool {
        matches!(self.kind, ModeKind::Cautious)
    }
}

#[derive(Debug, Default)]
pub(super) struct RepeatedFailures {
    settled: Lsn,
    ended: u32,
}

/// Sessions that may end at one position before records are sent singly. A broker's replacement can
/// end two.
const ENDS_MAX: u32 = 3;

impl RepeatedFailures {
    pub(super) fn after(
        &mut self,
        fault: SinkFault,
        now: Option<SessionMode>,
        settled: Lsn,
        received: Lsn,
    ) -> Option<SessionMode> {
        if !fault.may_repeat() {
            return now;
        }
        self.ended = if settled == self.settled { self.ended + 1 } else { 1 };
        self.settled = settled;
        let is_cautious = now.is_some_and(SessionMode::is_cautious);
        if is_cautious || fault == SinkFault::Refused || self.ended >= ENDS_MAX {
            let until = now.filter(|_| is_cautious).map_or(received, |at| at.until.max(received));
            return Some(SessionMode { kind: ModeKind::Cautious, until });
        }
        if fault == SinkFault::Late {
            return Some(SessionMode { kind: ModeKind::Small, until: received });
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Lsn = Lsn::new(1 << 30);
    const NOW: Lsn = Lsn::new(2 << 30);
    const SLOT: SlotPosition =
        SlotPosition { restart: LONG_AGO, confirmed: LONG_AGO, log_end: NOW };

    #[test]
    fn a_long_backlog_is_sent_in_larger_batches_as_far_as_it_reaches() {
        let mode = SessionMode::of_backlog(SLOT).unwrap();
        assert_eq!(mode, SessionMode { kind: ModeKind::Backlog, until: NOW });
    }

    #[test]
    fn a_short_backlog_is_nothing_special() {
        let confirmed = Lsn::new(NOW.get() - BACKLOG_BYTES);
        let near = SlotPosition { restart: confirmed, confirmed, ..SLOT };
        assert_eq!(SessionMode::of_backlog(near), None);
        assert_eq!(SessionMode::of_backlog(SlotPosition { confirmed: NOW, ..SLOT }), None);
    }

    #[test]
    fn a_backlog_behind_an_open_transaction_ends_no_session() {
        let restart = Lsn::new(LONG_AGO.get() - DECODED_AGAIN_BYTES_MAX);
        assert!(SessionMode::of_backlog(SlotPosition { restart, ..SLOT }).is_some());
        let restart = Lsn::new(restart.get() - 1);
        assert_eq!(SessionMode::of_backlog(SlotPosition { restart, ..SLOT }), None);
    }

    #[test]
    fn g4_a_batch_refused_for_nobody_knows_whom_is_narrowed_down_to_a_record() {
        let mut narrowing = RepeatedFailures::default();
        let first = narrowing.after(SinkFault::Refused, None, LONG_AGO, NOW).unwrap();
        assert_eq!(first, SessionMode { kind: ModeKind::Cautious, until: NOW });
    }

    #[test]
    fn g4_sessions_that_end_at_one_place_do_not_go_on_like_that() {
        let (mut narrowing, mut mode) = (RepeatedFailures::default(), None);
        let mut kinds = Vec::new();
        for _ in 0..2 * ENDS_MAX {
            mode = narrowing.after(SinkFault::Fatal, mode, LONG_AGO, NOW);
            kinds.push(mode.map(|mode| mode.kind));
        }
        let cautious = Some(ModeKind::Cautious);
        assert_eq!(kinds, [None, None, cautious, cautious, cautious, cautious]);
    }

    /// Throttling brokers took too long for 24 MiB in one Kafka transaction.
    #[test]
    fn g3_what_was_late_is_sent_in_smaller_parts_before_it_is_sent_singly() {
        let mut narrowing = RepeatedFailures::default();
        let small = narrowing.after(SinkFault::Late, None, LONG_AGO, NOW).unwrap();
        assert_eq!(small, SessionMode { kind: ModeKind::Small, until: NOW });
        let further = narrowing.after(SinkFault::Late, Some(small), NOW, NOW).unwrap();
        assert!(!further.is_cautious(), "it came further");
    }

    #[test]
    fn sessions_that_get_on_and_outages_change_nothing() {
        let mut narrowing = RepeatedFailures::default();
        for settled in 1..100 {
            let at = Lsn::new(settled);
            assert_eq!(narrowing.after(SinkFault::Fatal, None, at, NOW), None);
        }
        for fault in [SinkFault::Outage, SinkFault::Forbidden].repeat(50) {
            assert_eq!(narrowing.after(fault, None, LONG_AGO, NOW), None);
        }
    }
}
