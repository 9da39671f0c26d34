//! Reports once that the streamed standby has stopped replaying. Rows then wait, and the stream
//! appears to be idle. A standby that has replayed WAL since the previous check is not reported.

use crate::telemetry::SlotWait;
use postrider_core::lsn::Lsn;
use postrider_postgres::control::{self, Client, Replay};

/// Consecutive checks before a report. A standby reconnects to its primary after five seconds.
const LOOKS: u32 = 3;

/// Kept across connections.
#[derive(Debug, Default)]
pub(super) struct StandbyReplay {
    replayed: Option<Lsn>,
    halted: u32,
    told: Option<SlotWait>,
}

impl StandbyReplay {
    pub(super) async fn look(&mut self, client: &Client) -> Option<SlotWait> {
        // A failed check does not change the state.
        let Ok(replay) = control::replay(client).await else { return self.told };
        let wait = self.judge(replay);
        if wait == self.told {
            return wait;
        }
        if let Some(wait) = wait {
            tracing::warn!(help = wait.help(), "{}", wait.what());
        } else {
            tracing::info!("the standby that the relay streams from replays again");
        }
        self.told = wait;
        wait
    }

    fn judge(&mut self, replay: Replay) -> Option<SlotWait> {
        let is_halted = replay.is_paused || replay.is_cut_off;
        let goes_on = std::mem::replace(&mut self.replayed, replay.replayed) != replay.replayed;
        self.halted = if is_halted && !goes_on { self.halted.saturating_add(1) } else { 0 };
        let wait = if replay.is_paused { SlotWait::ReplayPaused } else { SlotWait::StandbyCutOff };
        (self.halted >= LOOKS).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(replayed: u64, is_paused: bool, is_cut_off: bool) -> Replay {
        Replay { replayed: Some(Lsn::new(replayed)), is_paused, is_cut_off }
    }

    #[test]
    fn a_standby_that_stands_still_is_told_until_it_goes_on() {
        let mut looks = StandbyReplay::default();
        let mut judge =
            |replayed, is_paused, is_cut_off| looks.judge(replay(replayed, is_paused, is_cut_off));
        let table = [
            (1, false, true, None),
            (1, false, true, None),
            (1, false, true, None),
            (1, false, true, Some(SlotWait::StandbyCutOff)),
            (1, true, true, Some(SlotWait::ReplayPaused)),
            (2, false, true, None),
            (2, false, false, None),
            (2, true, false, None),
            (2, true, false, None),
            (2, false, false, None),
            (2, true, false, None),
        ];
        for (number, (replayed, is_paused, is_cut_off, told)) in table.into_iter().enumerate() {
            assert_eq!(judge(replayed, is_paused, is_cut_off), told, "look {number}");
        }
    }

    #[test]
    fn a_primary_never_waits_for_itself() {
        let primary = Replay { replayed: None, is_paused: false, is_cut_off: false };
        let mut looks = StandbyReplay::default();
        assert!((0..2 * LOOKS).all(|_| looks.judge(primary).is_none()));
    }
}
