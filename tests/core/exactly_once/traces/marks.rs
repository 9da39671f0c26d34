//! The records of progress themselves, of which the model knows the places only.
//!
//! Input: what is sent, and the steps of the model. Output: the newest committed mark, where a session
//! begins. Invariant: wherever the model has a place, this has a mark at that place.

use postrider::pipeline::Mark;

use super::wire::place_of;
use crate::exactly_once::broker::{Leader, Partition, Phase};
use crate::exactly_once::state::{PROGRESS_STORED, State};
use crate::exactly_once::steps::Step;

/// See the module.
#[derive(Debug, Default)]
pub struct Marks {
    pub committed: Mark,
    pending: Vec<Mark>,
    late: Mark,
    /// Of the open transaction of each relay.
    sent: [Option<Mark>; 2],
}

impl Marks {
    /// A relay has sent its progress.
    pub fn sent(&mut self, n: u8, mark: Mark) {
        self.sent[usize::from(n)] = Some(mark);
    }

    pub fn follow(&mut self, step: Step, before: &State) {
        match step {
            Step::Store(n, Partition::Progress) => self.pending.extend(self.sent[usize::from(n)]),
            Step::StoreLate(Partition::Progress) => self.pending.push(self.late),
            Step::Mark(Partition::Progress) => {
                let newest = self.pending.last().copied();
                self.pending.clear();
                if before.kafka.coordinator.phase == Phase::PreparedCommit {
                    self.committed = newest.unwrap_or(self.committed);
                }
            }
            Step::Die(n) => {
                let sent = self.sent[usize::from(n)].take();
                let is_stored = before.relays[usize::from(n)].stored & PROGRESS_STORED != 0;
                self.late = sent.filter(|_| !is_stored).unwrap_or(self.late);
            }
            Step::Answer(n) => self.sent[usize::from(n)] = None,
            _ => {}
        }
    }

    /// Whether the model has the places of these marks.
    pub fn agree(&self, state: &State) -> bool {
        let Leader { committed, pending, .. } = state.kafka.leader(Partition::Progress);
        let stored = pending.into_iter().filter(|place| *place != 0).map(Some);
        place_of(self.committed) == Some(committed)
            && self.pending.iter().map(|mark| place_of(*mark)).eq(stored)
    }
}
