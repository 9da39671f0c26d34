//! Server, relay and brokers in virtual time, and what befalls them.

mod between;

use std::ops::RangeInclusive;
use std::time::Duration;

use postrider::ledger::Budget;
use postrider::time::{Instant, Now};
use postrider::transaction::BatchLimits;

use crate::session::broker::{PARTITIONS, Producer};
use crate::session::cluster::{ALL, Cluster, TransactionalProducer};
use crate::session::judge::{Judge, Violation};
use crate::session::process::Process;
use crate::session::relay::{Ended, Plan, Relay};
use crate::session::server::Server;
use crate::session::sink::Delivery;
use support::chance::Chance;

/// Steps of chaos per seed: enough for some twenty transactions and ten crashes.
const CHAOS_STEPS: usize = 350;

/// Events of chaos that end a session.
const ENDS: RangeInclusive<usize> = 13..=15;

/// Steps in which everything must have been delivered once all faults are gone. The largest
/// history seen needs a tenth of it.
const CALM_STEPS: usize = 20_000;

/// One history of so many has an operator. The others are as rich in faults as if there were none: a mistake that takes a
/// rare meeting of them is noticed within few seeds.
const OPERATED: u64 = 3;

/// One history of so many ends at a message that cannot be read.
const UNREADABLE: u64 = 10;

/// Frames on the wire, like a socket's buffer.
const WIRE_FRAMES: usize = 8;

/// A queue that no run fills.
const QUEUE_UNLIMITED: usize = usize::MAX;

/// A session must give up a server that hangs so soon after the time that its supervisor gives it.
const HANG_MAX: Duration = Duration::from_secs(30);

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) rows: usize,
    pub(crate) records: usize,
    pub(crate) duplicates: usize,
    pub(crate) sessions: usize,
    pub(crate) drained: usize,
    pub(crate) pauses: usize,
    /// Sessions that began with other routes than the one before.
    pub(crate) reloads: usize,
    /// Virtual time.
    pub(crate) seconds: u64,
}

/// Producers of sessions that ended, whose requests are still on their way.
enum Ghost {
    Idempotent(Producer),
    Transactional(TransactionalProducer),
}

pub(crate) struct World<'p> {
    plan: &'p Plan,
    chance: Chance,
    now: Now,
    server: Server,
    relay: Option<Relay>,
    process: Process,
    /// Where records are delivered exactly once.
    cluster: Option<Cluster>,
    ghosts: Vec<Ghost>,
    judge: Judge,
    budget: Budget,
    batch: BatchLimits,
    /// How many of the events happen that end a session, in percent.
    ends: u64,
    /// How many requests to end a transaction are sent again, in percent.
    disturbs: u64,
    /// The relay has read from a server that hangs since then.
    hangs_since: Option<Instant>,
    /// Whether an operator pauses the relay and changes its routes.
    is_operated: bool,
    /// The last session may have left a transaction that is stored in part.
    ended_within: bool,
    /// The relay has ended at a message that cannot be read.
    has_stopped_reading: bool,
    tally: Tally,
}

impl<'p> World<'p> {
    /// Runs one seed: chaos, then calm, then the reckoning.
    pub(crate) fn run(plan: &'p Plan, seed: u64) -> Result<Tally, Violation> {
        let mut chance = Chance::new(seed);
        let budget = Budget {
            records: chance.between(1, 20),
            bytes: chance.between(50, 3_000),
            transactions: usize::try_from(chance.between(1, 10)).unwrap(),
        };
        let age = Duration::from_millis(chance.between(0, 20));
        let batch = BatchLimits { records: chance.between(1, 8), ..BatchLimits::new(age, false) };
        let exactly_once = chance.percent(50);
        // Few of them let a session live through many Kafka transactions.
        let ends = if chance.percent(50) { 100 } else { 20 };
        let disturbs = if chance.percent(25) { 60 } else { 3 };
        let mut world = World {
            plan,
            chance,
            now: Now { unix_us: 1_000_000, ..Now::default() },
            server: Server::default(),
            relay: None,
            process: Process::new(seed, Instant::START),
            cluster: exactly_once.then(Cluster::default),
            ghosts: Vec::new(),
            judge: Judge::new(exactly_once),
            budget,
            batch,
            ends,
            disturbs,
            hangs_since: None,
            is_operated: seed.is_multiple_of(OPERATED),
            ended_within: false,
            has_stopped_reading: false,
            tally: Tally::default(),
        };
        for _ in 0..CHAOS_STEPS {
            world.step()?;
        }
        world.calm_down()?;
        world.reckon()?;
        if seed.is_multiple_of(UNREADABLE) {
            world.meet_unreadable()?;
        }
        world.tally.rows = world.server.history.rows.len();
        world.tally.records = world.judge.records;
        world.tally.duplicates = world.judge.duplicates;
        world.tally.seconds = world.now.at.since(Now::default().at).as_secs();
        Ok(world.tally)
    }

    fn step(&mut self) -> Result<(), Violation> {
        let what = self.chance.below(100);
        if ENDS.contains(&what) && !self.chance.percent(self.ends) {
            return self.work();
        }
        match what {
            0..=6 => self.server.history.commit(&mut self.chance),
            7 => self.server.history.message(&mut self.chance),
            8..=10 => self.server.history.roll_back(&mut self.chance),
            11..=12 => self.server.checkpoint(),
            13 => {
                self.judge.known(self.server.confirmed, &self.server.history);
                self.server.crash();
                self.server.away_until =
                    self.now.at + Duration::from_secs(self.chance.between(0, 20));
                self.break_off()?;
            }
            14 => {
                if self.relay.is_some() && self.chance.percent(20) {
                    let held = Duration::from_secs(self.chance.between(0, 60));
                    self.server.held_until = self.now.at + held;
                }
                self.break_off()?;
            }
            15 => self.fail_producer(),
            16..=18 => self.disturb_producer(),
            19..=21 => self.haunt(),
            22 => self.kill(),
            23 => self.process.told = self.process.told.or(Some(self.now)),
            24 if self.chance.percent(50) => self.server.end_stream(),
            24 => self.process.server_stops = self.relay.is_some(),
            25 if self.relay.is_some() && self.chance.percent(30) => {
                self.server.frozen = self.server.frozen.or(Some(self.now.at));
                let work = Duration::from_secs(self.chance.between(65, 100));
                self.server.work = self.server.work.or(self.chance.percent(20).then_some(work));
            }
            26..=31 => return self.time_passes(),
            32 if self.is_operated => self.pause_or_resume(),
            33 if self.is_operated && self.chance.percent(50) => {
                let (in_effect, _) = self.process.routes;
                self.process.routes = (in_effect, in_effect.others());
            }
            _ => return self.work(),
        }
        self.check()
    }

    /// An operator does; now and then for long.
    fn pause_or_resume(&mut self) {
        self.process.is_paused = !self.process.is_paused && self.chance.percent(50);
        self.tally.pauses += usize::from(self.process.is_paused);
    }

    /// One step of the relay or of somebody it waits for.
    fn work(&mut self) -> Result<(), Violation> {
        let time = Duration::from_micros(self.chance.between(0, 2_000));
        self.advance(time);
        if self.relay.is_none() {
            self.between_sessions()?;
            return self.check();
        }
        match self.chance.below(10) {
            0..=2 if self.server.backlog() < WIRE_FRAMES => self.server.send(&mut self.chance),
            0..=5 => return self.turn(),
            _ => {
                for _ in 0..self.chance.between(1, 4) {
                    self.brokers();
                }
            }
        }
        self.check()
    }

    /// The same with brokers that have nothing else to do.
    fn work_fast(&mut self) -> Result<(), Violation> {
        for _ in 0..5 {
            self.brokers();
        }
        self.work()
    }

    fn advance(&mut self, time: Duration) {
        self.now.at += time;
        self.now.unix_us += i64::try_from(time.as_micros()).unwrap();
        self.server.wake(self.now.at);
    }

    /// Nothing happens for a while, and then the relay wakes up.
    fn time_passes(&mut self) -> Result<(), Violation> {
        let time = Duration::from_millis(self.chance.between(1, 5_000));
        self.advance(time);
        self.turn()?;
        let silence =
            self.relay.as_ref().map_or(Duration::MAX, |relay| relay.session.limits().silence);
        let hangs_for = self.hangs_since.map_or(Duration::ZERO, |since| self.now.at - since);
        if self.relay.is_some() && hangs_for > silence + HANG_MAX {
            return Err(Violation::new("G5", "a server that hangs is not given up"));
        }
        if self.relay.is_some() && self.server.times_out(self.now.at) {
            return Err(Violation::new("G5", "the server has not heard of us for a minute"));
        }
        Ok(())
    }

    /// One turn of the relay's loop.
    fn turn(&mut self) -> Result<(), Violation> {
        let asked = self.process.asked(self.now);
        let Some(relay) = &mut self.relay else { return Ok(()) };
        self.judge.examine(&self.server.history)?;
        let ends = (&mut self.server, &self.judge);
        let turned = relay.turn(self.now, asked, ends, &mut self.chance);
        self.judge.sent(relay.sink.taken.drain(..), &self.server.history);
        match turned {
            Ok(reads) => {
                let hangs = reads && self.server.frozen.is_some();
                self.hangs_since = hangs.then(|| self.hangs_since.unwrap_or(self.now.at));
            }
            Err(Ended::Well(end)) => self.ended_well(end)?,
            Err(ended) => self.end_session(ended)?,
        }
        self.check()
    }

    fn fail_producer(&mut self) {
        self.relay.iter_mut().for_each(|relay| relay.sink.kill());
    }

    fn disturb_producer(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let partition = self.chance.below(PARTITIONS);
        match self.chance.below(4) {
            0 => relay.sink.set_capacity(self.chance.below(5)),
            1 => relay.sink.set_capacity(QUEUE_UNLIMITED),
            2 => relay.sink.held()[partition] ^= true,
            _ => {
                if let Delivery::ExactlyOnce(machine) = &mut relay.sink.delivery {
                    machine.client_mut().disturb();
                }
            }
        }
    }

    /// Something of a session that is gone still happens.
    fn haunt(&mut self) {
        for ghost in &mut self.ghosts {
            match (ghost, &mut self.cluster) {
                (Ghost::Idempotent(producer), _) => {
                    producer.haunt(&mut self.chance, &mut self.judge);
                }
                (Ghost::Transactional(producer), Some(cluster)) => {
                    producer.flush(cluster);
                    producer.append(self.chance.below(ALL), cluster);
                }
                (Ghost::Transactional(_), None) => unreachable!("only a cluster has transactions"),
            }
        }
        if let Some(cluster) = &mut self.cluster
            && self.chance.percent(3)
        {
            cluster.expire();
        }
    }

    /// The brokers do one thing for the session that runs.
    fn brokers(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let (partition, part) = (self.chance.below(ALL), self.chance.below(6));
        match (&mut relay.sink.delivery, &mut self.cluster) {
            (Delivery::AtLeastOnce(producer), _) => match part {
                0..=2 => producer.append(partition % PARTITIONS, &mut self.judge),
                _ => producer.report(partition % PARTITIONS),
            },
            (Delivery::ExactlyOnce(machine), Some(cluster)) => {
                let producer = machine.client_mut();
                match part {
                    0..=1 => producer.append(partition, cluster),
                    2..=3 => producer.report(partition),
                    4 => {
                        if self.chance.percent(self.disturbs) {
                            producer.disturb();
                        }
                        producer.flush(cluster);
                        let request = self.chance.below(cluster.end_txns().max(1));
                        cluster.handle_end(request, Some(producer), &mut self.judge);
                    }
                    _ => {
                        cluster.mark();
                        if self.chance.percent(40) {
                            cluster.catch_up();
                        }
                    }
                }
            }
            (Delivery::ExactlyOnce(_), None) => unreachable!("only a cluster has transactions"),
        }
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.judge.examine(&self.server.history)?;
        self.relay.as_ref().map_or(Ok(()), Relay::within_budget)
    }

    /// All faults end, but a server that hangs. Everything committed must be delivered.
    fn calm_down(&mut self) -> Result<(), Violation> {
        self.process.is_paused = false;
        for _ in 0..CALM_STEPS {
            if let Some(relay) = &mut self.relay {
                relay.sink.set_capacity(QUEUE_UNLIMITED);
                relay.sink.held().fill(false);
                if self.server.frozen.is_none() && self.server.all_sent() && relay.is_idle() {
                    return self.judge.all_delivered(&self.server.history);
                }
            }
            if self.chance.percent(5) {
                self.time_passes()?;
            }
            self.work_fast()?;
        }
        Err(Violation::new("stuck", format!("{:?} and still not done", self.tally)))
    }

    /// Nobody writes to our tables any more; others do. The slot must reach the end of the log, and the
    /// relay must end when it is told to.
    fn reckon(&mut self) -> Result<(), Violation> {
        self.server.history.roll_back(&mut self.chance);
        let end = self.server.history.end;
        let within = |world: &mut Self, done: fn(&Self, u64) -> bool| {
            for _ in 0..CALM_STEPS {
                if done(world, end) {
                    return Ok(true);
                }
                // Less than the grace while a drain takes its hundred steps.
                if world.chance.percent(2) {
                    world.time_passes()?;
                }
                world.work_fast()?;
            }
            Ok(false)
        };
        if !within(self, |world, end| world.server.confirmed >= end)? {
            let confirmed = self.server.confirmed;
            return Err(Violation::new(
                "G5",
                format!("idle at {confirmed}, the log ends at {end}"),
            ));
        }
        let drained = self.tally.drained;
        self.tally.drained = 0;
        self.process.told = Some(self.now);
        if !within(self, |world, _| world.tally.drained > 0)? {
            return Err(Violation::new("stuck", "told to end, and still running"));
        }
        self.tally.drained += drained;
        Ok(())
    }
    /// What is written last is followed by a message that cannot be read: it is delivered, and the relay ends.
    fn meet_unreadable(&mut self) -> Result<(), Violation> {
        self.server.history.commit(&mut self.chance);
        self.server.unreadable = Some(self.server.history.end + 1);
        for _ in 0..CALM_STEPS {
            if self.has_stopped_reading {
                return self.judge.all_delivered(&self.server.history);
            }
            if self.chance.percent(5) {
                self.time_passes()?;
            }
            self.work_fast()?;
        }
        Err(Violation::new("G5", "a message that cannot be read is tried for ever"))
    }
}
