//! The disasters: what happens when, and what is waited for in between.
//!
//! Kinds and moments come from a seed, in microseconds; what happens at them is up to the machine.
//! Output: relays that run, for the rest.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Stop;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::metadata::MetadataTopic;

use crate::crash::arena::Arena;
use crate::crash::disasters::{Disaster, Disasters};
use crate::crash::pair::Pair;
use crate::crash::settings::Victim;
use support::chance::Chance;
use support::topic;

/// How long it may take until rows are visible again.
const RECOVERY_LIMIT: Duration = Duration::from_mins(2);

/// Pause between two lines on how it goes.
const TELL: Duration = Duration::from_secs(10);

/// How often Postgres writes down what it knows about slots before it is killed.
const CHECKPOINT_PERCENT: u64 = 30;

/// A backend notices within this that its postmaster is gone.
const RESTART_LIMIT: Duration = Duration::from_secs(30);

/// How often the walsender of a frozen relay is ended, rather than left to its timeout.
const TERMINATED_PERCENT: u64 = 50;

/// Disasters as planned.
pub(crate) fn strike_again_and_again(arena: &mut Arena) -> Pair {
    let mut chance = Chance::new(arena.plan.seed);
    arena.reader.await_row(arena.writers.next());
    let relays = if arena.plan.victim == Victim::EndTxn { 1 } else { 2 };
    let mut pair = Pair::start(&arena.relay, relays);
    let mut disasters = Disasters::of(arena.plan.victim);
    let mut told = Instant::now();
    for cycle in 1..=arena.plan.cycles {
        if arena.plan.victim == Victim::EndTxn {
            arena.await_injection(cycle);
        } else {
            let moment = Moment::draw(&mut chance);
            wait(arena, &moment);
            if pair.wake(cycle) {
                arena.count_waking();
            }
            let disaster = disasters.draw(&mut chance);
            arena.note(cycle, disaster);
            strike(disaster, cycle, arena, &mut pair, &mut chance);
        }
        pair.assert_alive();
        if told.elapsed() > TELL {
            arena.tell(cycle);
            told = Instant::now();
        }
    }
    pair.wake_now();
    recover(arena);
    arena.tell(arena.plan.cycles);
    pair
}

/// When it happens.
enum Moment {
    /// So long after what happened before, whatever has come of that by then.
    AfterStart(Duration),
    /// So long after rows became visible again.
    AfterRecovery(Duration),
}

impl Moment {
    fn draw(chance: &mut Chance) -> Self {
        let mut up_to = |most_us| Duration::from_micros(chance.between(0, most_us));
        // The first two fall into a start or a takeover; several in a row meet one that never got far.
        let (start, early, streaming) = (up_to(60_000), up_to(1_500_000), up_to(1_200_000));
        match chance.below(100) {
            0..15 => Self::AfterStart(start),
            15..45 => Self::AfterStart(early),
            _ => Self::AfterRecovery(streaming),
        }
    }
}

fn wait(arena: &Arena, moment: &Moment) {
    match moment {
        Moment::AfterStart(pause) => std::thread::sleep(*pause),
        Moment::AfterRecovery(pause) => {
            recover(arena);
            std::thread::sleep(*pause);
        }
    }
}

/// Waits until a row is visible that was written after the last disaster.
fn recover(arena: &Arena) {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    while !arena.reader.has_recovered() {
        assert!(Instant::now() < deadline, "no new row became visible in {RECOVERY_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn strike(disaster: Disaster, cycle: u32, arena: &mut Arena, pair: &mut Pair, chance: &mut Chance) {
    let who = Pair::draw(arena.holder().as_deref(), chance);
    match disaster {
        Disaster::KillOne => pair.kill(&[who], || arena.count_kill()),
        Disaster::KillBoth => pair.kill(&[0, 1], || arena.count_kill()),
        Disaster::Term => {
            arena.count_kill();
            pair.term(who);
        }
        // One sleeps already: then the other one only loses the slot, and has to take it back.
        Disaster::Freeze if !pair.is_asleep() => {
            pair.freeze(who, cycle, chance);
            arena.count_kill();
            if chance.percent(TERMINATED_PERCENT) {
                arena.terminate();
            }
        }
        Disaster::Freeze | Disaster::Terminate => {
            arena.terminate();
            arena.count_kill();
        }
        Disaster::KillPostgres => kill_postgres(arena, chance),
        Disaster::KillBroker => disturb_broker(arena, chance, kill_broker),
        Disaster::FreezeBroker => disturb_broker(arena, chance, freeze_broker),
    }
}

/// kill -9 of the postmaster, and a start at once.
fn kill_postgres(arena: &mut Arena, chance: &mut Chance) {
    recover(arena);
    // Otherwise the slot restarts ever further back, and each start takes longer than the last.
    if chance.percent(CHECKPOINT_PERCENT) {
        arena.checkpoint();
    }
    std::thread::sleep(Duration::from_micros(chance.between(0, 1_000_000)));
    arena.cluster.stop(Stop::Kill).unwrap();
    arena.count_kill();
    // It is refused as long as a backend of before lives, which has to notice first.
    let deadline = Instant::now() + RESTART_LIMIT;
    while let Err(error) = arena.cluster.start_again() {
        assert!(Instant::now() < deadline, "{error}");
    }
}

/// Not before the last broker has caught up, for with two of three gone everything rightly stands
/// still; and until it is over, for the watch before Postgres waits for the brokers, too.
fn disturb_broker(
    arena: &mut Arena,
    chance: &mut Chance,
    disturb: fn(&mut Arena, usize, &mut Chance),
) {
    recover(arena);
    await_replicas(&arena.shelf.bootstrap);
    std::thread::sleep(Duration::from_micros(chance.between(0, 1_000_000)));
    let broker = chance.below(arena.plan.brokers());
    disturb(arena, broker, chance);
    recover(arena);
}

/// kill -9, and a start after a while.
fn kill_broker(arena: &mut Arena, broker: usize, chance: &mut Chance) {
    arena.kafka.kill_broker(broker);
    arena.count_outage();
    std::thread::sleep(Duration::from_micros(chance.between(0, 3_000_000)));
    arena.kafka.start_broker(broker);
}

/// SIGSTOP, sometimes for longer than brokers wait for each other (`broker.session.timeout.ms`,
/// 9 s): then it wakes up as a leader that was replaced.
fn freeze_broker(arena: &mut Arena, broker: usize, chance: &mut Chance) {
    let most_us = if chance.percent(25) { 12_000_000 } else { 2_500_000 };
    arena.kafka.freeze_broker(broker);
    arena.count_outage();
    std::thread::sleep(Duration::from_micros(chance.between(200_000, most_us)));
    arena.kafka.resume_broker(broker);
}

/// Waits until every partition of every topic has all its replicas.
fn await_replicas(bootstrap: &str) {
    let consumer: BaseConsumer = topic::client(bootstrap).create().unwrap();
    let deadline = Instant::now() + RECOVERY_LIMIT;
    loop {
        let metadata = consumer.fetch_metadata(None, Duration::from_secs(5));
        let is_whole = metadata.is_ok_and(|metadata| {
            let topics = metadata.topics().iter();
            topics.flat_map(MetadataTopic::partitions).all(|partition| {
                partition.isr().len() == partition.replicas().len() && partition.leader() >= 0
            })
        });
        if is_whole {
            return;
        }
        assert!(Instant::now() < deadline, "the replicas did not catch up");
        std::thread::sleep(Duration::from_millis(100));
    }
}
