//! One trace: the model's state, and the machines that live in it.
//!
//! Input: a seed. Output: the steps that were taken, or what is [`Wrong`]. Invariant: the state
//! changes by steps that the model offers and by nothing else; after each of them the machines and the state
//! agree.

use std::time::Duration;

use postrider::lsn::Lsn;
use postrider::session::{ControlRequest, SessionError};
use postrider::time::Now;
use postrider::transaction::{BatchLimits, PROGRESS_TICKET};

use super::library::{Gone, Order};
use super::machine::{Machine, Start, View};
use super::marks::Marks;
use super::wire::{self, Sent};
use crate::exactly_once::broker::Partition;
use crate::exactly_once::rules::Rules;
use crate::exactly_once::state::{Left, PROGRESS_STORED, Relay, Stage, State};
use crate::exactly_once::steps::{Next, Step, Steps};
use crate::exactly_once::stream;
use crate::exactly_once::violation::{Violation, judge};
use crate::session::Plan;
use support::chance::Chance;

/// 2000-01-01, when the rows committed.
const COMMITTED_US: i64 = 946_684_800_000_000;

/// Turns in which a session that is left alone must bring everything to its end; it takes tens.
const CALM_TURNS: usize = 3_000;

/// How a trace fails.
#[derive(Debug)]
pub enum Wrong {
    /// The machine did what the model has no such step for.
    NotAllowed(Step),
    /// The machine and the model's relay are not in the same state.
    Disagree(String),
    /// What must never be.
    Violated(Violation),
    /// The machine complains, or refuses to begin.
    Complains(String),
    /// Left alone, the machine did not bring the rest to its end.
    Stuck,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotAllowed(step) => write!(f, "the model does not allow {step:?} here"),
            Self::Disagree(what) => write!(f, "the machine and the model disagree: {what}"),
            Self::Violated(violation) => write!(f, "{violation:?}"),
            Self::Complains(what) => write!(f, "the machine complains: {what}"),
            Self::Stuck => f.write_str("left alone, the machine did not bring the rest to its end"),
        }
    }
}

/// See the module.
pub struct Trace<'p> {
    plan: &'p Plan,
    rules: Rules,
    chance: Chance,
    now: Now,
    state: State,
    nexts: Vec<Next>,
    machines: [Option<Machine>; 2],
    /// Where the slot stood when each relay took it.
    began_at: [u8; 2],
    marks: Marks,
    /// What Postgres was told, as it remembers it.
    confirmed: Lsn,
    batch: BatchLimits,
    pub way: Vec<Step>,
    /// Transactions that held nothing but progress.
    pub idle: usize,
    /// Turns after which an order waited for markers, or for ever.
    pub put_off: usize,
}

impl<'p> Trace<'p> {
    pub fn new(plan: &'p Plan, rules: Rules, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let age = Duration::from_millis(chance.between(0, 20));
        let records = chance.between(2, 8);
        let batch = if chance.percent(25) {
            BatchLimits::new(age, true)
        } else {
            BatchLimits { records, ..BatchLimits::new(age, false) }
        };
        Self {
            plan,
            rules,
            chance,
            now: Now { unix_us: COMMITTED_US, ..Now::default() },
            state: State { left: rules.left, ..State::default() },
            nexts: Vec::new(),
            machines: [None, None],
            began_at: [0; 2],
            marks: Marks::default(),
            confirmed: Lsn::ZERO,
            batch,
            way: Vec::new(),
            idle: 0,
            put_off: 0,
        }
    }

    /// Something happens.
    pub fn step(&mut self) -> Result<(), Wrong> {
        let n = u8::from(self.chance.percent(50));
        match self.chance.below(40) {
            0..=15 => self.turn(n)?,
            16..=36 => self.befall()?,
            37..=38 => self.wait(),
            _ => self.meddle(n),
        }
        self.agree()
    }

    /// No session is left, one more may start, and nothing goes wrong any more.
    pub fn calm(&mut self) -> Result<(), Wrong> {
        for n in 0..2 {
            if self.state.relays[usize::from(n)].stage != Stage::Down {
                self.take(Step::Die(n), |_| true)?;
            }
        }
        self.state.left = Left { sessions: 1, ..Default::default() };
        self.state.kafka.forget(true);
        let is_done = |state: &State, rules: Rules| {
            state.kafka.decided_rows() == stream::rows_within(rules.places)
                && state.slot.confirmed == stream::whole_transactions(rules.places)
        };
        for _ in 0..CALM_TURNS {
            if is_done(&self.state, self.rules) {
                return Ok(());
            }
            Steps::collect(self.rules, self.state, &mut self.nexts);
            let goes_well = |(step, _): &&Next| step.is_undisturbed() && !is_of_machine(*step);
            if let Some(&(step, next)) = self.nexts.iter().find(goes_well) {
                self.enter(step, next)?;
            }
            self.turn(0)?;
            self.wait();
            self.agree()?;
        }
        Err(Wrong::Stuck)
    }

    fn wait(&mut self) {
        let most_us = if self.chance.percent(10) { 15_000_000 } else { 20_000 };
        let time_us = self.chance.between(1, most_us);
        self.now.at += Duration::from_micros(time_us);
        self.now.unix_us += i64::try_from(time_us).expect("seconds");
    }

    /// Something that is no step of the model, and may happen at any time.
    fn meddle(&mut self, n: u8) {
        let Some(machine) = &mut self.machines[usize::from(n)] else { return };
        let is_fenced =
            self.state.relays[usize::from(n)].epoch < self.state.kafka.coordinator.epoch;
        match self.chance.below(12) {
            0..=4 => machine.library().is_full ^= true,
            5..=7 => machine.library().report_copies(),
            8 if self.chance.percent(20) => machine.library().disturbances += 1,
            9 if self.chance.percent(20) => machine.request = ControlRequest::Drain,
            10 if self.rules.places == stream::PLACES => {
                machine.frames.push_back(Sent::Question(wire::log_end(self.now)));
            }
            _ => machine.library().is_gone |= is_fenced,
        }
    }

    /// The world takes a step: brokers, network, Postgres, the library, the death and the start of sessions.
    fn befall(&mut self) -> Result<(), Wrong> {
        Steps::collect(self.rules, self.state, &mut self.nexts);
        self.nexts.retain(|(step, _)| !is_of_machine(*step));
        if self.nexts.is_empty() {
            return Ok(());
        }
        let (step, next) = self.nexts[self.chance.below(self.nexts.len())];
        let percent = match step {
            Step::Die(_) => 6,
            Step::Resend(_) | Step::Expire | Step::Rewind => 10,
            Step::TakeSlot(_) if self.state.slot.holder.is_some() => 10,
            _ => 100,
        };
        if self.chance.percent(percent) { self.enter(step, next) } else { Ok(()) }
    }

    /// One turn of a machine's loop.
    fn turn(&mut self, n: u8) -> Result<(), Wrong> {
        let Some(mut machine) = self.machines[usize::from(n)].take() else { return Ok(()) };
        if self.drive(n, &mut machine)? {
            self.machines[usize::from(n)] = Some(machine);
            return Ok(());
        }
        self.take(Step::Die(n), |_| true)
    }

    /// Whether the session goes on.
    fn drive(&mut self, n: u8, machine: &mut Machine) -> Result<bool, Wrong> {
        let now = self.now;
        let asked = machine.asked();
        if machine.session.request::<Gone>(now, asked).is_err() {
            return Ok(false);
        }
        for _ in 0..self.chance.between(1, 4) {
            match machine.forward(now) {
                Ok(false) => break,
                Ok(true) => self.follow(n, machine)?,
                Err(error) => return ended(&error),
            }
        }
        let mut confirmed = machine.session.confirm(now, &mut machine.sink);
        if confirmed.is_ok() {
            confirmed = machine.session.advance(now, &mut machine.sink);
        }
        if let Err(error) = confirmed {
            return ended(&error);
        }
        self.follow(n, machine)?;
        if let Some(status) = machine.session.status_due(now, &machine.sink) {
            self.tell(n, status.settled)?;
        }
        match machine.session.ended(now, &machine.sink) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(false),
            Err(error) => return ended(&error),
        }
        machine.listen(now).map_or_else(|error| ended(&error), |()| Ok(true))
    }

    /// Takes the step of each order, as far as the coordinator lets it be announced.
    fn follow(&mut self, n: u8, machine: &mut Machine) -> Result<(), Wrong> {
        let orders = std::mem::take(&mut machine.library().orders);
        machine.waiting.extend(orders);
        while let Some(&order) = machine.waiting.front() {
            let coordinator = self.state.kafka.coordinator;
            let epoch = self.state.relays[usize::from(n)].epoch;
            let is_announced = matches!(order, Order::Row(..) | Order::Progress(_));
            if is_announced && (coordinator.is_prepared() || coordinator.epoch != epoch) {
                self.put_off += 1;
                let commits = machine.waiting.contains(&Order::Commit);
                return if commits { Err(Wrong::NotAllowed(Step::Commit(n))) } else { Ok(()) };
            }
            self.obey(n, machine, order)?;
            machine.waiting.pop_front();
        }
        Ok(())
    }

    /// Takes the step of one order.
    fn obey(&mut self, n: u8, machine: &mut Machine, order: Order) -> Result<(), Wrong> {
        let Relay { done, taken, .. } = self.state.relays[usize::from(n)];
        let (reached, next) = (done + taken, done + taken + 1);
        match order {
            Order::Row(place, ticket) => {
                ensure(place == next, || format!("row {place} comes behind place {reached}"))?;
                self.take(Step::Send(n), |_| true)?;
                let partition = stream::partition(place).expect("a row has a partition");
                machine.tickets[partition as usize].push_back(ticket);
            }
            Order::NoRow => {
                let has_row = stream::partition(next).is_some();
                ensure(!has_row, || format!("place {next} was passed over, and has a row"))?;
                self.take(Step::Send(n), |_| true)?;
            }
            Order::Progress(mark) => {
                let is_there = wire::place_of(mark) == Some(reached);
                ensure(is_there, || format!("{mark:?} is progress at place {reached}"))?;
                self.idle += usize::from(taken == 0);
                self.take(Step::SendProgress(n), |_| true)?;
                self.marks.sent(n, mark);
                machine.closes_at = mark;
                machine.tickets[Partition::Progress as usize].push_back(PROGRESS_TICKET);
            }
            Order::Commit => self.take(Step::Commit(n), |_| true)?,
            Order::Hear => {
                self.take(Step::Answer(n), |_| true)?;
                machine.kept = machine.closes_at;
            }
        }
        Ok(())
    }

    /// Postgres hears the holder of the slot, and nobody else.
    fn tell(&mut self, n: u8, settled: Lsn) -> Result<(), Wrong> {
        if self.state.slot.holder != Some(n) {
            return Ok(());
        }
        let whole = wire::transactions_within(settled);
        if whole > self.state.slot.confirmed {
            self.take(Step::Acknowledge(n), |next| next.slot.confirmed == whole)?;
        }
        self.confirmed = self.confirmed.max(settled);
        Ok(())
    }

    /// Takes this step, if the model has it here, to a state as it is wanted.
    fn take(&mut self, step: Step, wanted: impl Fn(&State) -> bool) -> Result<(), Wrong> {
        Steps::collect(self.rules, self.state, &mut self.nexts);
        let is_it = |next: &&Next| next.0 == step && next.1.as_ref().is_ok_and(&wanted);
        let &(step, next) = self.nexts.iter().find(is_it).ok_or(Wrong::NotAllowed(step))?;
        self.enter(step, next)
    }

    fn enter(&mut self, step: Step, next: Result<State, Violation>) -> Result<(), Wrong> {
        self.way.push(step);
        let before = self.state;
        self.state = next.map_err(Wrong::Violated)?;
        judge(&self.state).map_err(Wrong::Violated)?;
        self.marks.follow(step, &before);
        ensure(self.marks.agree(&self.state), || format!("progress: {:?}", self.marks))?;
        match step {
            Step::TakeSlot(n) => self.began_at[usize::from(n)] = self.state.slot.confirmed,
            Step::ReadProgress(n) => self.begin(n)?,
            Step::Die(n) => self.machines[usize::from(n)] = None,
            Step::Rewind => self.confirmed = wire::end_lsn(self.state.slot.confirmed),
            Step::Store(n, partition) => {
                let machine = self.machines[usize::from(n)].as_mut();
                let machine = machine.expect("only what is sent is stored");
                let ticket = machine.tickets[partition as usize].pop_front();
                let ticket = ticket.ok_or(Wrong::Disagree("nothing was sent".to_owned()))?;
                if partition == Partition::Progress {
                    machine.library().report_copies();
                }
                machine.library().arrived.push(ticket);
            }
            Step::Resend(n) => {
                if let Some(machine) = &mut self.machines[usize::from(n)] {
                    machine.library().disturbances += 1;
                    machine.library().is_answered = false;
                }
            }
            Step::HandleEndTxn(_) => {
                for (n, machine) in self.machines.iter_mut().enumerate() {
                    let Some(machine) = machine else { continue };
                    machine.library().is_answered = self.state.relays[n].answered;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A session begins behind its progress. Where the slot stood is what it was when the stream began: after
    /// a restart of Postgres the connection on which it is asked again is gone.
    fn begin(&mut self, n: u8) -> Result<(), Wrong> {
        let confirmed = self.began_at[usize::from(n)];
        let start = Start {
            confirmed,
            progress: self.marks.committed,
            batch: self.batch,
            frames: wire::frames(confirmed, self.rules, self.now, &mut self.chance),
            now: self.now,
        };
        let machine = Machine::start(self.plan, start).map_err(Wrong::Complains)?;
        self.machines[usize::from(n)] = Some(machine);
        Ok(())
    }

    /// What the machines say of themselves is what the model says of its relays, but for what waits.
    fn agree(&self) -> Result<(), Wrong> {
        let told = wire::transactions_within(self.confirmed);
        ensure(told == self.state.slot.confirmed, || format!("told {told}"))?;
        for (relay, machine) in self.state.relays.iter().zip(&self.machines) {
            let Some(machine) = machine else {
                ensure(!relay.stage.is_running(), || format!("no machine is {relay:?}"))?;
                continue;
            };
            let view = machine.view();
            let wanted = expected(*relay, machine);
            ensure(view == wanted, || format!("{view:?} instead of {wanted:?}"))?;
            ensure(machine.keeps(), || format!("kept: {:?}", machine.kept))?;
            for partition in Partition::ALL {
                let (tickets, records) =
                    (machine.tickets[partition as usize].len(), unreported(*relay, partition));
                ensure(tickets == records, || format!("{tickets} tickets, {records} records"))?;
            }
        }
        Ok(())
    }
}

/// Steps that only the machine takes: `Abort` too, which it never does.
fn is_of_machine(step: Step) -> bool {
    matches!(
        step,
        Step::Send(_)
            | Step::SendProgress(_)
            | Step::Commit(_)
            | Step::Abort(_)
            | Step::Answer(_)
            | Step::Acknowledge(_)
    )
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Wrong> {
    if holds { Ok(()) } else { Err(Wrong::Disagree(what())) }
}

/// The session does not go on after an error; and no peer breaks its protocol here, so the pipeline has
/// nothing to complain about.
fn ended(error: &SessionError<Gone>) -> Result<bool, Wrong> {
    match error {
        SessionError::Pipeline(error) => Err(Wrong::Complains(error.to_string())),
        _ => Ok(false),
    }
}

/// How a machine looks whose relay in the model is this one, and for which orders wait.
fn expected(relay: Relay, machine: &Machine) -> View {
    let is_place = |order: &&Order| matches!(order, Order::Row(..) | Order::NoRow);
    let waiting = machine.waiting.iter().filter(is_place).count();
    let reached = relay.done + relay.taken + u8::try_from(waiting).expect("a few");
    let closes = machine.waiting.iter().any(|order| matches!(order, Order::Progress(_)));
    let rows = stream::rows_within(reached) & !stream::rows_within(relay.done);
    View {
        stage: if closes { Stage::Settling } else { relay.stage },
        done: Some(relay.done),
        reached: Some(reached),
        unconfirmed: rows.count_ones().into(),
    }
}

/// How many records of a partition are sent and not reported stored.
fn unreported(relay: Relay, partition: Partition) -> usize {
    if partition == Partition::Progress {
        let sent = matches!(relay.stage, Stage::Settling | Stage::Committing);
        return usize::from(sent && relay.stored & PROGRESS_STORED == 0);
    }
    let mine = |index: &u8| stream::partition(relay.done + 1 + index) == Some(partition);
    (0..relay.taken).filter(mine).filter(|index| relay.stored & 1 << index == 0).count()
}
