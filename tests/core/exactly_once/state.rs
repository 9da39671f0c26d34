//! The state of everything, and its form in three words.
//!
//! Input: nothing; this is the model's vocabulary. Output: [`State`], and [`State::pack`] with its
//! inverse. Invariant: what is packed is the whole state, so two states are equal if and only
//! if their words are.

use crate::exactly_once::broker::{End, EndTxn, Epoch, Kafka, Phase};
use crate::exactly_once::stream::Place;

/// A state in little room.
pub type Packed = [u64; 3];

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    pub slot: Slot,
    pub kafka: Kafka,
    pub relays: [Relay; 2],
    pub left: Left,
}

/// The replication slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Transactions that Postgres was told are safe, as it remembers it.
    pub confirmed: u8,
    /// The relay whose acknowledgements Postgres hears.
    pub holder: Option<u8>,
}

/// Where a relay's session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// There is none.
    #[default]
    Down,
    /// It holds the slot, or did a moment ago.
    Started,
    /// The first of fencing and reading progress is done.
    HalfReady,
    /// It takes rows into the open Kafka transaction.
    Open,
    /// Progress is sent, as the last record; reports are waited for.
    Settling,
    Committing,
    Aborting,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Down,
        Self::Started,
        Self::HalfReady,
        Self::Open,
        Self::Settling,
        Self::Committing,
        Self::Aborting,
    ];

    /// Whether the session carries rows.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Open | Self::Settling | Self::Committing | Self::Aborting)
    }
}

/// A relay process and its session. A session that is over leaves nothing behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relay {
    pub stage: Stage,
    pub epoch: Epoch,
    /// Places that it knows to be covered by committed progress.
    pub done: Place,
    /// Places taken into the open Kafka transaction, at most [`BATCH`].
    pub taken: Place,
    /// Which of these are reported stored (bit i: place `done + 1 + i`), and [`PROGRESS_STORED`].
    pub stored: u8,
    /// EndTxn was sent more than once for this transaction.
    pub ambiguous: bool,
    /// A good answer is on its way to it.
    pub answered: bool,
}

/// Places in one Kafka transaction at most; fewer than the giant and its neighbours have.
pub const BATCH: Place = 2;

/// The bit of the progress record among those of the rows.
pub const PROGRESS_STORED: u8 = 1 << BATCH;

impl Relay {
    /// Whether every record of its transaction is reported stored.
    pub fn has_all_reports(self) -> bool {
        let rows = (1 << self.taken) - 1;
        let progress = if self.stage == Stage::Open { 0 } else { PROGRESS_STORED };
        self.stored == rows | progress
    }
}

/// What may still happen: this keeps the model finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Sessions that may start.
    pub sessions: u8,
    /// Times Postgres may come back with an older position.
    pub rewinds: u8,
    /// Times the coordinator may give up an open transaction by itself.
    pub expiries: u8,
    /// Times a relay may abort because a broker refused a record for good.
    pub aborts: u8,
}

impl State {
    pub fn pack(mut self) -> Packed {
        let (mut words, mut word, mut used) = ([0; 3], 0, 0);
        self.visit(&mut |value, bits| {
            debug_assert!(*value >> bits == 0, "a field is too narrow");
            if used + bits > u64::BITS {
                (word, used) = (word + 1, 0);
            }
            words[word] |= u64::from(*value) << used;
            used += bits;
        });
        words
    }

    pub fn unpack(words: Packed) -> Self {
        let (mut state, mut word, mut used) = (Self::default(), 0, 0);
        state.visit(&mut |value, bits| {
            if used + bits > u64::BITS {
                (word, used) = (word + 1, 0);
            }
            let [low, ..] = (words[word] >> used).to_le_bytes();
            *value = low & ((1 << bits) - 1);
            used += bits;
        });
        state
    }

    /// Shows every field with its width, in one order, to read or to set.
    fn visit(&mut self, field: &mut impl FnMut(&mut u8, u32)) {
        field(&mut self.slot.confirmed, 2);
        visit_relay(&mut self.slot.holder, field);
        let Kafka { coordinator, leaders, end_txns, late } = &mut self.kafka;
        field(&mut coordinator.epoch, 4);
        visit_one_of(&mut coordinator.phase, &Phase::ALL, |phase| phase as u8, field);
        field(&mut coordinator.partitions, 3);
        for leader in leaders {
            field(&mut leader.epoch, 4);
            leader.pending.iter_mut().for_each(|place| field(place, 3));
            field(&mut leader.committed, 4);
        }
        for request in end_txns {
            visit_end_txn(request, field);
        }
        for record in late {
            let (mut epoch, mut place) = record.unwrap_or_default();
            field(&mut epoch, 4);
            field(&mut place, 3);
            *record = (place != 0).then_some((epoch, place));
        }
        for relay in &mut self.relays {
            visit_one_of(&mut relay.stage, &Stage::ALL, |stage| stage as u8, field);
            field(&mut relay.epoch, 4);
            field(&mut relay.done, 3);
            field(&mut relay.taken, 2);
            field(&mut relay.stored, 3);
            visit_flag(&mut relay.ambiguous, field);
            visit_flag(&mut relay.answered, field);
        }
        let Left { sessions, rewinds, expiries, aborts } = &mut self.left;
        for left in [sessions, rewinds, expiries, aborts] {
            field(left, 2);
        }
    }
}

fn visit_flag(flag: &mut bool, field: &mut impl FnMut(&mut u8, u32)) {
    let mut code = u8::from(*flag);
    field(&mut code, 1);
    *flag = code != 0;
}

fn visit_one_of<T: Copy>(
    value: &mut T,
    all: &[T],
    code: impl Fn(T) -> u8,
    field: &mut impl FnMut(&mut u8, u32),
) {
    let mut code = code(*value);
    field(&mut code, 3);
    *value = all[usize::from(code)];
}

fn visit_relay(relay: &mut Option<u8>, field: &mut impl FnMut(&mut u8, u32)) {
    let mut code = relay.map_or(0, |relay| relay + 1);
    field(&mut code, 2);
    *relay = code.checked_sub(1);
}

fn visit_end_txn(request: &mut Option<EndTxn>, field: &mut impl FnMut(&mut u8, u32)) {
    let mut there = request.is_some();
    let EndTxn { mut epoch, end, mut hears } = request.unwrap_or_default();
    let mut aborts = end == End::Abort;
    visit_flag(&mut there, field);
    field(&mut epoch, 4);
    visit_flag(&mut aborts, field);
    visit_relay(&mut hears, field);
    let end = if aborts { End::Abort } else { End::Commit };
    *request = there.then_some(EndTxn { epoch, end, hears });
}
