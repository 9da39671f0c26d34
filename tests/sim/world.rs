//! Server, relay and brokers, and what befalls them.

use postrider::ledger::Budget;

use crate::broker::{PARTITIONS, Producer};
use crate::chance::Chance;
use crate::core::Mutation;
use crate::judge::{Judge, Violation};
use crate::relay::{End, Plan, Relay};
use crate::server::Server;

/// Steps of chaos per seed: enough for some twenty transactions and ten crashes.
const CHAOS_STEPS: usize = 200;

/// Steps in which everything must have been delivered once all faults are gone. The largest
/// history seen needs a tenth of it.
const CALM_STEPS: usize = 20_000;

/// Frames on the wire, like a socket's buffer.
const WIRE_FRAMES: usize = 8;

/// A queue that no run fills.
const QUEUE_UNLIMITED: usize = usize::MAX;

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) rows: usize,
    pub(crate) records: usize,
    pub(crate) duplicates: usize,
    pub(crate) sessions: usize,
}

pub(crate) struct World<'p, M> {
    plan: &'p Plan,
    chance: Chance,
    server: Server,
    relay: Option<Relay<M>>,
    /// Producers of sessions that ended, whose records are still on their way.
    ghosts: Vec<Producer>,
    judge: Judge,
    budget: Budget,
    tally: Tally,
}

impl<'p, M: Mutation> World<'p, M> {
    /// Runs one seed: chaos, then calm, then the reckoning.
    pub(crate) fn run(plan: &'p Plan, seed: u64) -> Result<Tally, Violation> {
        let mut chance = Chance::new(seed);
        let budget = Budget {
            records: chance.between(1, 20),
            bytes: chance.between(50, 3_000),
            transactions: usize::try_from(chance.between(1, 10)).unwrap(),
        };
        let mut world = World::<M> {
            plan,
            chance,
            server: Server::default(),
            relay: None,
            ghosts: Vec::new(),
            judge: Judge::default(),
            budget,
            tally: Tally::default(),
        };
        for _ in 0..CHAOS_STEPS {
            world.step()?;
        }
        world.calm_down()?;
        world.tally.rows = world.server.history.rows.len();
        world.tally.records = world.judge.records;
        world.tally.duplicates = world.judge.duplicates;
        Ok(world.tally)
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.chance.below(100) {
            0..=6 => self.server.history.commit(&mut self.chance),
            7 => self.server.history.message(&mut self.chance),
            8..=10 => self.server.history.roll_back(&mut self.chance),
            11..=12 => self.server.checkpoint(),
            13 => {
                self.server.crash();
                self.end_session();
            }
            14 => {
                self.server.disconnect();
                self.end_session();
            }
            15 => self.fail_producer(),
            16..=19 => self.disturb_producer(),
            20..=22 => {
                let chance = &mut self.chance;
                let judge = &mut self.judge;
                self.ghosts.iter_mut().for_each(|ghost| ghost.haunt(chance, judge));
            }
            _ => return self.work(),
        }
        self.check()
    }

    /// One step of the relay or of somebody it waits for.
    fn work(&mut self) -> Result<(), Violation> {
        let Some(relay) = &mut self.relay else {
            self.start_session();
            return self.check();
        };
        let partition = self.chance.below(PARTITIONS);
        let end = match self.chance.below(10) {
            0..=2 if self.server.backlog() < WIRE_FRAMES => {
                self.server.send(&mut self.chance);
                Ok(())
            }
            0..=5 => relay.read(&mut self.server),
            6 => {
                relay.producer.append(partition, &mut self.judge);
                Ok(())
            }
            7 => {
                relay.producer.report(partition);
                Ok(())
            }
            8 => relay.poll(),
            _ => {
                self.judge.examine(&self.server.history)?;
                relay.acknowledge(&mut self.server, &self.judge)
            }
        };
        match end {
            Ok(()) => {}
            Err(End::Session) => self.end_session(),
            Err(End::Violation(violation)) => return Err(violation),
        }
        self.check()
    }

    fn start_session(&mut self) {
        let queue = if self.chance.percent(50) { QUEUE_UNLIMITED } else { 4 };
        self.server.connect();
        self.relay = Some(Relay::start(self.plan, self.budget, queue));
        self.tally.sessions += 1;
    }

    /// kill -9 of the relay: what the brokers have not appended is lost, or still under way.
    fn end_session(&mut self) {
        self.server.disconnect();
        if let Some(relay) = self.relay.take()
            && self.chance.percent(50)
        {
            self.ghosts.push(relay.producer);
        }
    }

    fn fail_producer(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.producer.is_dead = true;
        }
    }

    fn disturb_producer(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let partition = self.chance.below(PARTITIONS);
        match self.chance.below(3) {
            0 => relay.producer.capacity = self.chance.below(5),
            1 => relay.producer.capacity = QUEUE_UNLIMITED,
            _ => relay.producer.held[partition] ^= true,
        }
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.judge.examine(&self.server.history)?;
        self.relay.as_ref().map_or(Ok(()), Relay::within_budget)
    }

    /// All faults end. Everything committed must be delivered, and the slot must reach the end of
    /// the log.
    fn calm_down(&mut self) -> Result<(), Violation> {
        for _ in 0..CALM_STEPS {
            if let Some(relay) = &mut self.relay {
                relay.producer.capacity = QUEUE_UNLIMITED;
                relay.producer.held = [false; PARTITIONS];
                if self.server.all_sent() && relay.is_idle() {
                    return self.reckon();
                }
            }
            self.work()?;
        }
        Err(Violation::new("stuck", format!("{:?} and still not done", self.tally)))
    }

    fn reckon(&mut self) -> Result<(), Violation> {
        self.judge.all_delivered(&self.server.history)?;
        let relay = self.relay.as_mut().ok_or(Violation::new("stuck", "no session"))?;
        // Nobody writes to our tables any more; others do.
        self.server.history.roll_back(&mut self.chance);
        self.server.send(&mut self.chance);
        let ended = |_| Violation::new("error", "an idle session ended");
        relay.read(&mut self.server).map_err(ended)?;
        relay.acknowledge(&mut self.server, &self.judge).map_err(ended)?;
        let (confirmed, end) = (self.server.confirmed, self.server.history.end);
        if confirmed == end {
            return Ok(());
        }
        Err(Violation::new("G5", format!("idle at {confirmed}, the log ends at {end}")))
    }
}
