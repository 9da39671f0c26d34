//! Fault injection: kills, freezes and flushes, and restarts.
//!
//! Input: a running [`Stage`], and the clients. Output: a stage with all processes running, and
//! [`FaultCounts`]. Invariant: times and victims come from the seed; a process that ends by itself is
//! a fault.

use std::time::{Duration, Instant};

use crate::shop_chaos::clients::Clients;
use crate::shop_chaos::poison::Poison;
use crate::shop_chaos::process::State;
use crate::shop_chaos::settings::Plan;
use crate::shop_chaos::stage::Stage;
use support::chance::Chance;
use support::relay::Running;
use support::wait::let_pass;

/// How often it checks for due restarts.
const TICK: Duration = Duration::from_millis(20);

/// Pause between two lines on how it goes.
const TELL: Duration = Duration::from_secs(15);

/// Of the victims of a kill, in percent: who is no service is the relay or Redis.
const RELAY_PERCENT: u64 = 17;
const REDIS_PERCENT: u64 = 13;

/// Instead of a kill: a flush of Redis, or a frozen service. Percent.
const FLUSH_PERCENT: u64 = 8;
const FREEZE_PERCENT: u64 = 6;

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
    pub(crate) kills: u32,
    pub(crate) kills_of_relay: u32,
    pub(crate) kills_of_redis: u32,
    pub(crate) flushes: u32,
    pub(crate) freezes: u32,
    /// Who ended by itself, and what it said.
    pub(crate) ended: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service(usize),
    Relay,
    Redis,
}

/// Injects faults until all keys have a response, all poison is produced, and all kills are done.
pub(crate) fn run(
    stage: &mut Stage,
    plan: &Plan,
    clients: &Clients,
    poison: &mut Poison,
) -> FaultCounts {
    let mut chaos = Chaos {
        stage,
        plan: *plan,
        chance: Chance::new(plan.seed),
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
            || self.toll.kills < self.plan.kills
            || !self.down.is_empty()
        {
            self.restart_due();
            self.watch();
            if begun.elapsed() > poison_every * u32::try_from(poison.laid() + 1).unwrap() {
                poison.lay();
            }
            let is_enough = self.toll.kills >= self.plan.kills && clients.are_done();
            if self.plan.kills > 0 && !is_enough && strike_at <= Instant::now() {
                self.inject_fault();
                strike_at = Instant::now() + self.pause();
            }
            if told.elapsed() > TELL {
                let (answered, orders) = (clients.answered(), self.plan.orders);
                eprintln!("{answered} of {orders} orders placed, {} kills", self.toll.kills);
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
        if !self.owner_frozen && self.toll.kills >= self.plan.kills / 3 {
            self.owner_frozen = self.freeze(0, FREEZE_OWNER);
            return;
        }
        let draw = self.chance.below(100) as u64;
        if draw < FLUSH_PERCENT {
            return self.flush();
        }
        let service = self.chance.below(self.stage.services.len());
        if draw < FLUSH_PERCENT + FREEZE_PERCENT {
            self.freeze(service, FREEZE);
            return;
        }
        match self.chance.below(100) as u64 {
            0..RELAY_PERCENT => self.kill_relay(),
            draw if draw < RELAY_PERCENT + REDIS_PERCENT => self.kill_redis(),
            _ => self.kill_service(service),
        }
    }

    fn kill_service(&mut self, first: usize) {
        let count = self.stage.services.len();
        let mut from_first = (0..count).map(|step| (first + step) % count);
        // Running and frozen processes can be killed.
        let is_up = |number: &usize| self.stage.services[*number].state == State::Running;
        let Some(number) = from_first.find(is_up) else { return };
        let stage = &mut *self.stage;
        stage.services[number].kill(&mut stage.watchdog);
        self.toll.kills += 1;
        self.restart(Victim::Service(number));
    }

    fn kill_relay(&mut self) {
        let Some(running) = self.stage.relay.take() else { return };
        running.kill();
        self.toll.kills += 1;
        self.toll.kills_of_relay += 1;
        self.restart(Victim::Relay);
    }

    fn kill_redis(&mut self) {
        if self.stage.redis_state != State::Running {
            return;
        }
        self.stage.redis.kill().unwrap();
        self.stage.redis_state = State::Dead;
        self.toll.kills += 1;
        self.toll.kills_of_redis += 1;
        self.restart(Victim::Redis);
    }

    fn flush(&mut self) {
        if self.stage.redis_state == State::Running {
            flush_redis(&self.stage.redis.url());
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
                Victim::Relay => self.stage.start_relay(),
                Victim::Redis => {
                    self.stage.redis.restart().unwrap();
                    self.stage.redis_state = State::Running;
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
            eprintln!("{words}");
            self.toll.ended.push(words);
            self.down.push((Instant::now() + Duration::from_secs(1), Victim::Service(number)));
        }
        if self.stage.relay.as_mut().is_some_and(Running::has_ended)
            && let Some(relay) = self.stage.relay.take()
        {
            let outcome = relay.outcome();
            let tail: Vec<&String> = outcome.log.iter().rev().take(20).rev().collect();
            let words = format!("the relay ended ({}): {tail:#?}", outcome.status);
            eprintln!("{words}");
            self.toll.ended.push(words);
            self.down.push((Instant::now() + Duration::from_secs(1), Victim::Relay));
        }
    }
}

/// FLUSHALL.
fn flush_redis(url: &str) {
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
}
