//! Fault injection: kills of services, relays and servers, freezes and flushes, and restarts.
//!
//! Input: a running [`Stage`], and the clients. Output: a stage with all processes running, and
//! [`FaultCounts`]. Invariant: times and victims come from the seed; a process that ends by itself is
//! a fault, unless it is started while a server that it needs is down.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::shop_chaos::clients::Clients;
use crate::shop_chaos::poison::Poison;
use crate::shop_chaos::process::State;
use crate::shop_chaos::settings::Plan;
use crate::shop_chaos::stage::Stage;
use crate::shop_chaos::victims::{self, Kind};
use support::chance::Chance;
use support::relay::Running;
use support::wait::let_pass;

/// How often it checks for due restarts.
const TICK: Duration = Duration::from_millis(20);

/// Pause between two lines on how it goes.
const TELL: Duration = Duration::from_secs(15);

/// Instead of a kill: a flush of Redis, or a frozen service. Percent.
const FLUSH_PERCENT: u64 = 8;
const FREEZE_PERCENT: u64 = 6;

/// How often the Sentinels are asked whether there is another master.
const FAILOVER_LOOK: Duration = Duration::from_millis(200);

/// Percentage of immediate restarts; the others take up to so many ms.
const AT_ONCE_PERCENT: u64 = 55;
const PAUSE_MS_MAX: u64 = 4_000;

/// Longer than a consumer may be silent in its group (10 s).
const FREEZE: Duration = Duration::from_secs(14);
/// Longer than the lease of a key (30 s).
const FREEZE_OWNER: Duration = Duration::from_secs(34);

/// What was done.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultCounts {
    /// kill -9.
    pub(crate) kills: BTreeMap<Kind, u32>,
    pub(crate) flushes: u32,
    pub(crate) freezes: u32,
    /// Who ended by itself, and what it said.
    pub(crate) ended: Vec<String>,
}

impl FaultCounts {
    /// All kills.
    pub(crate) fn kills(&self) -> u32 {
        self.kills.values().sum()
    }

    /// Those of a kind.
    pub(crate) fn kills_of(&self, kind: Kind) -> u32 {
        self.kills.get(&kind).copied().unwrap_or(0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service(usize),
    Relay(usize),
    Postgres,
    Kafka,
    Redis,
}

/// Injects faults until all keys have a response, all poison is produced, and all kills are done.
pub(crate) fn run(
    stage: &mut Stage,
    plan: &Plan,
    clients: &Clients,
    poison: &mut Poison,
) -> FaultCounts {
    let mut chance = Chance::new(plan.seed);
    let mut chaos = Chaos {
        stage,
        plan: *plan,
        victims: victims::draw(plan.kills, &mut chance),
        chance,
        toll: FaultCounts::default(),
        down: Vec::new(),
        owner_frozen: !plan.is_long,
    };
    chaos.rage(clients, poison);
    chaos.toll
}

struct Chaos<'s> {
    stage: &'s mut Stage,
    plan: Plan,
    /// Who is still to be killed; the last is the next.
    victims: Vec<Kind>,
    chance: Chance,
    toll: FaultCounts,
    /// Who is down, and until when.
    down: Vec<(Instant, Victim)>,
    owner_frozen: bool,
}

impl Chaos<'_> {
    fn rage(&mut self, clients: &Clients, poison: &mut Poison) {
        let begun = Instant::now();
        let mut told = Instant::now();
        let mut strike_at = begun + self.pause();
        let poison_every = self.plan.placing_time() / u32::try_from(Poison::COUNT + 1).unwrap();
        while !clients.are_done()
            || poison.laid() < Poison::COUNT
            || !self.victims.is_empty()
            || !self.down.is_empty()
        {
            self.restart_due();
            self.watch();
            let poison_at = poison_every * u32::try_from(poison.laid() + 1).unwrap();
            if begun.elapsed() > poison_at && self.stage.kafka_state == State::Running {
                poison.lay();
            }
            let is_enough = self.victims.is_empty() && clients.are_done();
            if self.plan.kills > 0 && !is_enough && strike_at <= Instant::now() {
                self.inject_fault();
                strike_at = Instant::now() + self.pause();
            }
            if told.elapsed() > TELL {
                let (answered, orders) = (clients.answered(), self.plan.orders);
                eprintln!("{answered} of {orders} orders placed, {} kills", self.toll.kills());
                told = Instant::now();
            }
            let_pass(TICK, "the pace of the unrest");
        }
    }

    /// Between half of the average and one and a half of it.
    fn pause(&mut self) -> Duration {
        let average = u64::try_from(self.plan.kill_pause.as_millis()).unwrap();
        Duration::from_millis(self.chance.between(average / 2, average * 3 / 2))
    }

    fn inject_fault(&mut self) {
        // In the middle of the run, so that there are keys in progress.
        if !self.owner_frozen && self.toll.kills() >= self.plan.kills / 3 {
            self.owner_frozen = self.freeze(0, FREEZE_OWNER);
            return;
        }
        let draw = self.chance.below(100) as u64;
        if draw < FLUSH_PERCENT {
            return self.flush();
        }
        if draw < FLUSH_PERCENT + FREEZE_PERCENT {
            let service = self.chance.below(self.stage.services.len());
            self.freeze(service, FREEZE);
            return;
        }
        let Some(kind) = self.victims.pop() else { return };
        match self.kill(kind) {
            Some(victim) => {
                *self.toll.kills.entry(kind).or_default() += 1;
                self.restart(victim);
            }
            // All of that kind are down.
            None => self.victims.insert(0, kind),
        }
    }

    fn kill(&mut self, kind: Kind) -> Option<Victim> {
        let stage = &mut *self.stage;
        match kind {
            Kind::Service => {
                let count = stage.services.len();
                let first = self.chance.below(count);
                let mut from_first = (0..count).map(|step| (first + step) % count);
                let number = from_first
                    .find(|number: &usize| stage.services[*number].state == State::Running)?;
                stage.services[number].kill(&mut stage.watchdog);
                Some(Victim::Service(number))
            }
            Kind::Relay => {
                let number = self.chance.below(stage.relays.len());
                stage.relays[number].take()?.kill();
                Some(Victim::Relay(number))
            }
            Kind::Postgres => stage.kill_postgres().then_some(Victim::Postgres),
            Kind::Kafka => stage.kill_kafka().then_some(Victim::Kafka),
            Kind::Redis => stage.kill_redis().then_some(Victim::Redis),
        }
    }

    fn flush(&mut self) {
        if self.stage.redis_state == State::Running {
            self.stage.redis.flush().unwrap();
            self.toll.flushes += 1;
        }
    }

    fn freeze(&mut self, number: usize, length: Duration) -> bool {
        let service = &mut self.stage.services[number];
        if service.state != State::Running {
            return false;
        }
        service.freeze();
        self.toll.freezes += 1;
        self.down.push((Instant::now() + length, Victim::Service(number)));
        true
    }

    fn restart(&mut self, victim: Victim) {
        let is_at_once = self.chance.percent(AT_ONCE_PERCENT);
        let pause = if is_at_once { 0 } else { self.chance.between(100, PAUSE_MS_MAX) };
        self.down.push((Instant::now() + Duration::from_millis(pause), victim));
    }

    /// Those whose time has come.
    fn restart_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.down.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, victim) in due {
            match victim {
                Victim::Service(number) => match self.stage.services[number].state {
                    State::Frozen => self.stage.services[number].thaw(),
                    State::Dead => self.stage.start_service(number),
                    State::Running => {}
                },
                Victim::Relay(number) => self.stage.start_relay(number),
                Victim::Postgres => self.stage.start_postgres(),
                Victim::Kafka => self.stage.start_kafka(),
                Victim::Redis => {
                    if !self.stage.replace_redis() {
                        // The Sentinels have not decided yet.
                        self.down.push((now + FAILOVER_LOOK, Victim::Redis));
                    }
                }
            }
        }
    }

    /// Restarts processes that ended by themselves, and reports them.
    fn watch(&mut self) {
        for number in 0..self.stage.services.len() {
            let stage = &mut *self.stage;
            let service = &mut stage.services[number];
            let Some(status) = service.ended(&mut stage.watchdog) else { continue };
            let words = format!("{} ended ({status}):\n{}", service.name, service.last_log_lines());
            self.note_end(words, Victim::Service(number));
        }
        for number in 0..self.stage.relays.len() {
            let relay = &mut self.stage.relays[number];
            let Some(relay) = relay.take_if(Running::has_ended) else { continue };
            let outcome = relay.outcome();
            let tail: Vec<&String> = outcome.log.iter().rev().take(20).rev().collect();
            let words = format!("relay {number} ended ({}): {tail:#?}", outcome.status);
            self.note_end(words, Victim::Relay(number));
        }
    }

    fn note_end(&mut self, words: String, victim: Victim) {
        eprintln!("{words}");
        self.toll.ended.push(words);
        self.down.push((Instant::now() + Duration::from_secs(1), victim));
    }
}
