//! What can happen next: the relay's protocol, and everything the world may do to it.
//!
//! Input: a [`State`]. Output: every step that is possible in it, with the state after it. What
//! always holds: a step is as small as what one process does or one message brings about, so that a
//! kill, a stall or another relay fits between any two.

use crate::exactly_once::broker::{End, EndTxn, Kafka, Partition};
use crate::exactly_once::rules::{Mistake, Rules};
use crate::exactly_once::state::{BATCH, PROGRESS_STORED, Relay, Stage, State};
use crate::exactly_once::stream;
use crate::exactly_once::violation::Violation;

/// What happens. The number is the relay's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A relay takes the slot. Whoever had it is a zombie now: alive, and with rows in its buffer.
    TakeSlot(u8),
    /// Its InitProducerId is handled: it has its epoch, or must ask again when markers are written.
    Fence(u8),
    /// It reads progress as a reader of committed records, passes the gate, and begins behind it.
    ReadProgress(u8),
    /// It takes the next row, announces the partition to the coordinator and sends the record.
    Send(u8),
    /// It sends progress, as the last record of the transaction.
    SendProgress(u8),
    /// A record of its open transaction arrives, first or again, and is reported stored.
    Store(u8, Partition),
    /// It asks for the commit.
    Commit(u8),
    /// A broker refused a record for good: it aborts, to send a dead letter in its place.
    Abort(u8),
    /// The answer to EndTxn is overdue or the connection is gone: the library sends it again.
    Resend(u8),
    /// EndTxn returns.
    Answer(u8),
    /// It tells Postgres what is settled.
    Acknowledge(u8),
    /// Killed, or the session ended by any error.
    Die(u8),
    /// One of the requests to end a transaction reaches the coordinator.
    HandleEndTxn(End),
    /// The coordinator's marker reaches a partition.
    Mark(Partition),
    /// A record arrives whose sender is gone.
    StoreLate(Partition),
    /// The coordinator gives up the open transaction.
    Expire,
    /// Postgres restarts and remembers an older position of the slot; its connections are gone.
    Rewind,
}

impl Step {
    /// Whether a relay alone, on a network that works, takes it.
    pub fn is_undisturbed(self) -> bool {
        !matches!(
            self,
            Self::Abort(_)
                | Self::Resend(_)
                | Self::Die(_)
                | Self::StoreLate(_)
                | Self::Expire
                | Self::Rewind
                | Self::TakeSlot(1)
        )
    }
}

/// A step and what it leads to.
pub type Next = (Step, Result<State, Violation>);

/// Collects what can happen in one state.
pub struct Steps<'a> {
    rules: Rules,
    from: State,
    nexts: &'a mut Vec<Next>,
}

impl<'a> Steps<'a> {
    /// Puts every step from this state into `nexts`.
    pub fn collect(rules: Rules, from: State, nexts: &'a mut Vec<Next>) {
        nexts.clear();
        let mut steps = Self { rules, from, nexts };
        steps.brokers();
        steps.servers();
        for n in 0..2 {
            steps.relay(n);
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.rules.mistake == Some(mistake)
    }

    fn push(&mut self, step: Step, mut state: State) {
        state.kafka.forget(self.verifies());
        self.nexts.push((step, Ok(state)));
    }

    /// The same, for a step that is possible only if `change` says so.
    fn try_step(&mut self, step: Step, change: impl FnOnce(&mut State) -> bool) {
        let mut state = self.from;
        if change(&mut state) {
            self.push(step, state);
        }
    }

    fn verifies(&self) -> bool {
        !self.makes(Mistake::BrokerDoesNotVerify)
    }

    fn brokers(&mut self) {
        let Kafka { coordinator, end_txns, late, .. } = self.from.kafka;
        for partition in Partition::ALL {
            if coordinator.is_prepared() && coordinator.partitions & partition.bit() != 0 {
                let mut state = self.from;
                match state.kafka.mark(partition) {
                    Ok(()) => self.push(Step::Mark(partition), state),
                    Err(violation) => self.nexts.push((Step::Mark(partition), Err(violation))),
                }
            }
        }
        // While markers are written, the coordinator asks for patience.
        if !coordinator.is_prepared() {
            for at in [0, 1] {
                let Some(request) = end_txns[at] else { continue };
                if at == 0 || end_txns[0] != end_txns[1] {
                    self.handle_end(at, request);
                }
            }
        }
        let verifies = self.verifies();
        for partition in Partition::ALL {
            let Some((epoch, place)) = late[partition as usize] else { continue };
            self.try_step(Step::StoreLate(partition), |state| {
                state.kafka.late[partition as usize] = None;
                state.kafka.store(epoch, partition, place, verifies)
            });
        }
    }

    fn handle_end(&mut self, index: usize, EndTxn { epoch, end, hears }: EndTxn) {
        self.try_step(Step::HandleEndTxn(end), |state| {
            state.kafka.take_end(index);
            let is_done = state.kafka.coordinator.end(epoch, end);
            // An error ends the session, as it may end at any time: see `Die`.
            if let Some(relay) = hears.filter(|_| is_done) {
                state.relays[usize::from(relay)].answered = true;
            }
            true
        });
    }

    fn servers(&mut self) {
        if self.from.left.expiries > 0 {
            self.try_step(Step::Expire, |state| {
                state.left.expiries -= 1;
                state.kafka.coordinator.expire()
            });
        }
        if self.from.left.rewinds > 0 {
            for older in 0..self.from.slot.confirmed {
                self.try_step(Step::Rewind, |state| {
                    state.left.rewinds -= 1;
                    (state.slot.confirmed, state.slot.holder) = (older, None);
                    true
                });
            }
        }
    }

    fn relay(&mut self, n: u8) {
        let relay = self.from.relays[usize::from(n)];
        match relay.stage {
            Stage::Down => return self.start(n),
            Stage::Started if self.makes(Mistake::ReadsProgressBeforeFencing) => {
                self.read_progress(n, Stage::HalfReady);
            }
            Stage::Started => self.fence(n, Stage::HalfReady),
            Stage::HalfReady if self.makes(Mistake::ReadsProgressBeforeFencing) => {
                self.fence(n, Stage::Open);
            }
            Stage::HalfReady => self.read_progress(n, Stage::Open),
            Stage::Open => {
                self.send(n);
                self.send_progress(n);
            }
            Stage::Settling | Stage::Committing | Stage::Aborting => {}
        }
        match relay.stage {
            Stage::Open | Stage::Settling => {
                self.store(n);
                self.commit(n);
                self.abort(n);
            }
            Stage::Committing | Stage::Aborting => {
                if self.makes(Mistake::CommitsBeforeReports) {
                    self.store(n);
                }
                self.resend(n);
                self.answer(n);
            }
            _ => {}
        }
        self.acknowledge(n);
        self.try_step(Step::Die(n), |state| {
            end_session(state, n);
            true
        });
    }

    /// The slot is the lock, but only Postgres knows when a connection is dead: the last holder may
    /// think it still has it, for as long as it likes.
    fn start(&mut self, n: u8) {
        // Of two relays that are down it does not matter which one starts.
        let is_next = n == 0 || self.from.relays[0].stage != Stage::Down;
        if self.from.left.sessions > 0 && is_next {
            self.try_step(Step::TakeSlot(n), |state| {
                state.left.sessions -= 1;
                state.slot.holder = Some(n);
                state.relays[usize::from(n)].stage = Stage::Started;
                true
            });
        }
    }

    fn fence(&mut self, n: u8, then: Stage) {
        let skips = self.makes(Mistake::DoesNotFence);
        self.try_step(Step::Fence(n), |state| {
            let coordinator = &mut state.kafka.coordinator;
            if coordinator.is_prepared() && !skips {
                return false;
            }
            if skips {
                coordinator.epoch = coordinator.epoch.max(1);
            } else if coordinator.fence().is_none() {
                return true;
            }
            let relay = &mut state.relays[usize::from(n)];
            (relay.epoch, relay.stage) = (coordinator.epoch, then);
            true
        });
    }

    /// Postgres sends from the slot's position; what lies at or below progress is skipped.
    fn read_progress(&mut self, n: u8, then: Stage) {
        let ignores = self.makes(Mistake::IgnoresProgress);
        self.try_step(Step::ReadProgress(n), |state| {
            let progress = state.kafka.leader(Partition::Progress).committed;
            let progress = if ignores { 0 } else { progress };
            let relay = &mut state.relays[usize::from(n)];
            (relay.done, relay.stage) = (progress.max(stream::end(state.slot.confirmed)), then);
            true
        });
    }

    fn send(&mut self, n: u8) {
        let Relay { epoch, done, taken, .. } = self.from.relays[usize::from(n)];
        if taken == BATCH || done + taken == self.rules.places {
            return;
        }
        self.try_step(Step::Send(n), |state| {
            let relay = &mut state.relays[usize::from(n)];
            relay.taken += 1;
            if let Some(partition) = stream::partition(done + relay.taken) {
                return state.kafka.coordinator.enlist(epoch, partition);
            }
            // Nothing to send is as good as stored.
            relay.stored |= 1 << taken;
            true
        });
    }

    /// A transaction may end behind any row: a split giant's does. It may hold nothing else: progress is
    /// written for its own sake while the slot advances over what has no row.
    fn send_progress(&mut self, n: u8) {
        let Relay { epoch, done, taken, .. } = self.from.relays[usize::from(n)];
        if taken == 0 && (done == 0 || !self.rules.idle_progress) {
            return;
        }
        let outside = self.makes(Mistake::ProgressOutsideTheTransaction);
        self.try_step(Step::SendProgress(n), |state| {
            let relay = &mut state.relays[usize::from(n)];
            relay.stage = Stage::Settling;
            if outside {
                relay.stored |= PROGRESS_STORED;
                state.kafka.leaders[Partition::Progress as usize].committed = done + taken;
                return true;
            }
            state.kafka.coordinator.enlist(epoch, Partition::Progress)
        });
    }

    /// In order for each partition, each once in its epoch: sequence numbers see to that, however
    /// often Produce is sent. A report that comes late is a step that comes late.
    fn store(&mut self, n: u8) {
        let relay = self.from.relays[usize::from(n)];
        let verifies = self.verifies();
        for partition in Partition::ALL {
            let Some((record, bit)) = under_way(relay, partition) else { continue };
            self.try_step(Step::Store(n, partition), |state| {
                state.relays[usize::from(n)].stored |= bit;
                state.kafka.store(relay.epoch, partition, record, verifies)
            });
        }
    }

    fn commit(&mut self, n: u8) {
        let relay = self.from.relays[usize::from(n)];
        let may = relay.has_all_reports() || self.makes(Mistake::CommitsBeforeReports);
        if relay.stage == Stage::Settling && may {
            self.send_end(Step::Commit(n), n, (Stage::Committing, End::Commit));
        }
    }

    fn abort(&mut self, n: u8) {
        let relay = self.from.relays[usize::from(n)];
        let may = relay.has_all_reports() || self.makes(Mistake::AbortsBeforeReports);
        if self.from.left.aborts > 0 && relay.taken > 0 && may {
            self.send_end(Step::Abort(n), n, (Stage::Aborting, End::Abort));
        }
    }

    fn send_end(&mut self, step: Step, n: u8, (stage, end): (Stage, End)) {
        self.try_step(step, |state| {
            if end == End::Abort {
                state.left.aborts -= 1;
                give_up(state, n);
            }
            let relay = &mut state.relays[usize::from(n)];
            relay.stage = stage;
            state.kafka.send_end(EndTxn { epoch: relay.epoch, end, hears: Some(n) })
        });
    }

    fn resend(&mut self, n: u8) {
        self.try_step(Step::Resend(n), |state| {
            let relay = &mut state.relays[usize::from(n)];
            (relay.ambiguous, relay.answered) = (true, false);
            let end = if relay.stage == Stage::Aborting { End::Abort } else { End::Commit };
            let again = EndTxn { epoch: relay.epoch, end, hears: Some(n) };
            state.kafka.hang_up(n);
            state.kafka.send_end(again)
        });
    }

    /// The ambiguity rule: whatever the answer, a session that may have sent EndTxn twice ends.
    fn answer(&mut self, n: u8) {
        let relay = self.from.relays[usize::from(n)];
        let trusts = !relay.ambiguous || self.makes(Mistake::TrustsAmbiguousEnd);
        if !relay.answered || !trusts {
            return;
        }
        self.try_step(Step::Answer(n), |state| {
            let committed = relay.stage == Stage::Committing;
            let done = relay.done + if committed { relay.taken } else { 0 };
            state.relays[usize::from(n)] =
                Relay { stage: Stage::Open, epoch: relay.epoch, done, ..Relay::default() };
            true
        });
    }

    /// Follows progress: what is done is whole transactions under a commit that was answered. Fewer may be
    /// told: of a giant in pieces the last row can be done before its commit is read.
    fn acknowledge(&mut self, n: u8) {
        let relay = self.from.relays[usize::from(n)];
        if self.from.slot.holder != Some(n) || !relay.stage.is_running() {
            return;
        }
        let hasty = self.makes(Mistake::AcknowledgesBeforeCommit) && relay.has_all_reports();
        let done = relay.done + if hasty { relay.taken } else { 0 };
        for whole in self.from.slot.confirmed + 1..=stream::whole_transactions(done) {
            self.try_step(Step::Acknowledge(n), |state| {
                state.slot.confirmed = whole;
                true
            });
        }
    }
}

/// The next record of an open transaction that is sent to this partition and not reported stored,
/// with the bit of its report.
fn under_way(relay: Relay, partition: Partition) -> Option<(stream::Place, u8)> {
    if partition == Partition::Progress {
        let sent = matches!(relay.stage, Stage::Settling | Stage::Committing);
        let missing = relay.stored & PROGRESS_STORED == 0;
        return (sent && missing).then_some((relay.done + relay.taken, PROGRESS_STORED));
    }
    let mine = |index: &u8| stream::partition(relay.done + 1 + index) == Some(partition);
    let missing = |index: &u8| relay.stored & 1 << index == 0;
    let next = (0..relay.taken).find(|index| mine(index) && missing(index))?;
    Some((relay.done + 1 + next, 1 << next))
}

/// What a session sent and will not wait for is still under way.
fn give_up(state: &mut State, n: u8) {
    let relay = state.relays[usize::from(n)];
    if !relay.stage.is_running() || relay.stage == Stage::Aborting {
        return;
    }
    for partition in Partition::ALL {
        if let Some((record, _)) = under_way(relay, partition) {
            state.kafka.late[partition as usize] = Some((relay.epoch, record));
        }
    }
}

/// The process dies, or drops the session: both leave the same, nothing.
pub fn end_session(state: &mut State, n: u8) {
    give_up(state, n);
    state.kafka.hang_up(n);
    state.slot.holder = state.slot.holder.filter(|&holder| holder != n);
    state.relays[usize::from(n)] = Relay::default();
}
