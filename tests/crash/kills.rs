//! The kills: whom, when, and what is waited for in between.
//!
//! Moments come from a seed, in microseconds; what happens at them is up to the machine. Leaves: a
//! relay that runs, for the rest. Called by `main`.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Stop;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::metadata::MetadataTopic;
use rustix::process::Signal;

use crate::arena::Arena;
use crate::chance::Chance;
use crate::settings::Victim;
use crate::support::relay::Running;
use crate::support::topic;

/// How long it may take until rows are visible again.
const RECOVERY_LIMIT: Duration = Duration::from_mins(2);

/// Pause between two lines on how it goes.
const TELL: Duration = Duration::from_secs(10);

/// How often Postgres writes down what it knows about slots before it is killed.
const CHECKPOINT_PERCENT: u64 = 30;

/// Warnings and errors of all relays, by message.
type Warnings = BTreeMap<String, u32>;

/// Kills as planned.
pub(crate) fn kill_again_and_again(arena: &mut Arena) -> Running {
    let mut chance = Chance::new(arena.plan.seed);
    arena.reader.await_row(arena.writers.next());
    let mut running = arena.relay.run();
    let mut warnings = Warnings::new();
    let mut told = Instant::now();
    for cycle in 1..=arena.plan.cycles {
        match arena.plan.victim {
            Victim::Relay => {
                wait(arena, &Moment::draw(&mut chance));
                running = kill_relay(arena, running, &mut warnings);
            }
            Victim::Postgres => kill_postgres(arena, &mut chance),
            Victim::Broker => kill_broker(arena, &mut chance),
            Victim::EndTxn => arena.await_injection(cycle),
        }
        if told.elapsed() > TELL {
            arena.tell(cycle);
            told = Instant::now();
        }
    }
    recover(arena);
    arena.tell(arena.plan.cycles);
    for (message, count) in warnings {
        eprintln!("{count} times the relay logged: {message}");
    }
    running
}

/// When the relay dies.
enum Moment {
    /// So long after its start, whatever it has done by then.
    AfterStart(Duration),
    /// So long after rows became visible again.
    AfterRecovery(Duration),
}

impl Moment {
    fn draw(chance: &mut Chance) -> Self {
        let mut up_to = |most_us| Duration::from_micros(chance.between(0, most_us));
        // The first two fall into the start; several in a row are kills of one that never got far.
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

/// Waits until a row is visible that was written after the last kill.
fn recover(arena: &Arena) {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    while !arena.reader.has_recovered() {
        assert!(Instant::now() < deadline, "no new row became visible in {RECOVERY_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// kill -9, and the same command again at once.
fn kill_relay(arena: &mut Arena, running: Running, warnings: &mut Warnings) -> Running {
    running.signal(Signal::KILL);
    arena.count_kill();
    let outcome = running.outcome();
    let next = arena.relay.run();
    let status = outcome.status;
    let log = || outcome.log.join("\n");
    assert!(status.signal() == Some(9), "the relay ended by itself ({status}):\n{}", log());
    for line in &outcome.log {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        if !matches!(line["level"].as_str(), Some("INFO" | "DEBUG" | "TRACE")) {
            let message = line["message"].as_str().unwrap_or("(not JSON)");
            *warnings.entry(message.to_owned()).or_default() += 1;
        }
    }
    next
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
    arena.cluster.start_again().unwrap();
}

/// kill -9 of one broker, and a start after a while; not before the last one has caught up, for with
/// two of three gone everything rightly stands still.
fn kill_broker(arena: &mut Arena, chance: &mut Chance) {
    recover(arena);
    await_replicas(&arena.shelf.bootstrap);
    std::thread::sleep(Duration::from_micros(chance.between(0, 1_500_000)));
    let broker = chance.below(3);
    arena.kafka.kill_broker(broker);
    arena.count_kill();
    std::thread::sleep(Duration::from_micros(chance.between(0, 3_000_000)));
    arena.kafka.start_broker(broker);
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
