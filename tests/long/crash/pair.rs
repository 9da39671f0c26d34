//! The two relays that share the slot, as users run them: one streams, the other waits.
//!
//! Input: what is done to them. Invariant: whatever happens, neither ends by itself, and one that
//! is told to end does so with exit code 0, if not the other one has the slot and sleeps. Where the end of Kafka transactions is disturbed, there is
//! one relay alone.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use support::chance::Chance;
use support::relay::{Outcome, Relay, Running};

/// How often it is the relay with the slot that suffers, of 100 times.
const HOLDER_PERCENT: u64 = 80;
/// A sleep that is longer than every timeout of Kafka's (`transaction.timeout.ms`, a minute), and how
/// many of 100 are.
const LONG_SLEEP: Duration = Duration::from_secs(70);
const LONG_PERCENT: u64 = 12;
/// A sleep is over after so many cycles at most.
const CYCLES_MAX: u64 = 4;

/// The exit code of a relay that was told to end, and cannot know whether the next start repeats records: it
/// lost the slot to one that was stopped before it delivered them, or acknowledged them.
const UNFINISHED: i32 = 69;

/// The relays' application names, by which Postgres tells who has the slot.
pub(crate) const NAMES: [&str; 2] = ["crash-a", "crash-b"];

/// See the module.
pub(crate) struct Pair {
    relays: Vec<Relay>,
    running: Vec<Running>,
    sleep: Option<Sleep>,
    /// Warnings and errors of all that have ended, by message.
    warnings: BTreeMap<String, u32>,
    /// SIGTERMs after which records may be repeated, for the other relay slept.
    frank: u32,
}

/// A relay that is stopped.
#[derive(Debug, Clone, Copy)]
struct Sleep {
    who: usize,
    /// Until this cycle, and this moment.
    cycle: u32,
    moment: Instant,
}

impl Pair {
    pub(crate) fn start(relay: &Relay, count: usize) -> Self {
        let named = |name: &&str| relay.clone().variable("PGAPPNAME", name);
        let relays: Vec<Relay> = NAMES.iter().take(count).map(named).collect();
        let running = relays.iter().map(Relay::run).collect();
        Self { relays, running, sleep: None, warnings: BTreeMap::new(), frank: 0 }
    }

    /// # Panics
    /// When one has ended by itself: whatever its exit code says, nobody told it to.
    pub(crate) fn assert_alive(&mut self) {
        if let Some(who) = self.running.iter_mut().position(Running::has_ended) {
            let Outcome { status, log, .. } = self.running.swap_remove(who).outcome();
            panic!("relay {} ended by itself ({status}):\n{}", NAMES[who], log.join("\n"));
        }
    }

    /// One of the two: mostly the one with this application name, which has the slot.
    pub(crate) fn draw(holder: Option<&str>, chance: &mut Chance) -> usize {
        let (by_chance, wants_holder) = (chance.below(2), chance.percent(HOLDER_PERCENT));
        let holder = holder.and_then(|holder| NAMES.iter().position(|name| *name == holder));
        holder.filter(|_| wants_holder).unwrap_or(by_chance)
    }

    /// kill -9 of these at once; `killed` is called when they are gone and before they are back.
    pub(crate) fn kill(&mut self, whom: &[usize], killed: impl FnOnce()) {
        for &who in whom {
            self.running[who].signal(Signal::KILL);
        }
        killed();
        for &who in whom {
            let (status, log) = self.renew(who);
            assert!(
                status.signal() == Some(9),
                "relay {} ended by itself ({status}):\n{}",
                NAMES[who],
                log.join("\n")
            );
        }
    }

    /// SIGTERM: a clean end, and the same command again. One that sleeps would not hear it.
    pub(crate) fn term(&mut self, who: usize) {
        let is_asleep = self.sleep.is_some_and(|sleep| sleep.who == who);
        let who = if is_asleep { 1 - who } else { who };
        self.running[who].signal(Signal::TERM);
        let (status, log) = self.renew(who);
        self.frank += u32::from(is_frank(NAMES[who], status, &log, self.is_asleep()));
    }

    /// Whether one of them is stopped.
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleep.is_some()
    }

    /// SIGSTOP.
    pub(crate) fn freeze(&mut self, who: usize, cycle: u32, chance: &mut Chance) {
        let cycles = u32::try_from(chance.between(1, CYCLES_MAX)).unwrap();
        let pause = if chance.percent(LONG_PERCENT) { LONG_SLEEP } else { Duration::ZERO };
        self.running[who].signal(Signal::STOP);
        self.sleep = Some(Sleep { who, cycle: cycle + cycles, moment: Instant::now() + pause });
    }

    /// Lets the one that sleeps go on if its time has come. Whether it did.
    pub(crate) fn wake(&mut self, cycle: u32) -> bool {
        let is_due = |sleep: &Sleep| cycle >= sleep.cycle && Instant::now() >= sleep.moment;
        let Some(sleep) = self.sleep.filter(is_due) else { return false };
        self.running[sleep.who].signal(Signal::CONT);
        self.sleep = None;
        true
    }

    /// The same whether its time has come or not.
    pub(crate) fn wake_now(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            self.running[sleep.who].signal(Signal::CONT);
        }
    }

    /// The first of them.
    pub(crate) fn first(&mut self) -> &mut Running {
        &mut self.running[0]
    }

    /// Ends both, which must go well, and tells what they and all before them complained of.
    pub(crate) fn stop(mut self) {
        self.assert_alive();
        eprintln!("{} times a relay left its work to one that slept", self.frank);
        for (message, count) in &self.warnings {
            eprintln!("{count} times a relay logged: {message}");
        }
        for (name, running) in NAMES.iter().zip(self.running) {
            running.signal(Signal::TERM);
            let Outcome { status, log, .. } = running.outcome();
            is_frank(name, status, &log, false);
        }
    }

    /// Starts one again whose end is near, and returns how that was.
    fn renew(&mut self, who: usize) -> (ExitStatus, Vec<String>) {
        self.sleep = self.sleep.filter(|sleep| sleep.who != who);
        // Two of the same name would be a third relay: the first has to be gone.
        let mut ended = None;
        let running = std::mem::take(&mut self.running);
        for (number, one) in running.into_iter().enumerate() {
            if number == who {
                ended = Some(one.outcome());
                self.running.push(self.relays[who].run());
            } else {
                self.running.push(one);
            }
        }
        let Outcome { status, log, .. } = ended.expect("one of the two");
        for line in &log {
            let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            if !matches!(line["level"].as_str(), Some("INFO" | "DEBUG" | "TRACE")) {
                let message = line["message"].as_str().unwrap_or("(not JSON)");
                *self.warnings.entry(message.to_owned()).or_default() += 1;
            }
        }
        (status, log)
    }
}

/// Whether a relay that was told to end says that it could not finish. It may only while the other one
/// sleeps, who may have the slot: then nobody delivers or acknowledges what is left (G8).
///
/// # Panics
/// When it ended in any other way but well.
fn is_frank(name: &str, status: ExitStatus, log: &[String], other_sleeps: bool) -> bool {
    let is_frank = other_sleeps
        && status.code() == Some(UNFINISHED)
        && log.iter().any(|line| line.contains("the drain ended"));
    // It had only just been started, and listened for no signal yet.
    let had_not_begun = status.signal() == Some(15) && log.is_empty();
    let is_well = status.success() || is_frank || had_not_begun;
    assert!(is_well, "relay {name} after SIGTERM: {status}\n{}", log.join("\n"));
    is_frank
}
