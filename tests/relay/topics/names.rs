//! Rows that each name a topic of its own that is not there, and the ordinary rows between them.

use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;

use crate::stage::Stage;
use support::kafka::{self, Kafka, Options};
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::wait::{let_pass, within};
use support::{postgres, topic};

const MODES: [&str; 2] = ["at_least_once", "exactly_once"];

/// Rows, and as many names.
const NAMES: u64 = 3_000;
/// Rows of the flood that goes on, each with its name; so many a second for so many seconds.
const RATE: u64 = 170;
const SECONDS: u64 = 8;

/// What an ordinary row is delivered within, beyond what as many rows of one topic take, by a debug
/// build on a machine that is busy with other tests (0.2 to 1 s were seen). When each name was asked
/// for it was 47 s.
const PROMPT: Duration = Duration::from_secs(10);
/// The same where brokers create topics by themselves, which is waited for in part.
const CREATING: Duration = Duration::from_secs(15);

/// The same where the relay tries to create them: 10 s at once, and a tenth of the time.
const IN_VAIN: Duration = Duration::from_secs(25);

/// What the relay's memory may grow by meanwhile, in MiB: a flood fills buffers once.
const GROWTH_MIB: f64 = 60.0;

/// A stage with an ordinary topic, and a relay that has delivered to it.
struct Flooded {
    stage: Stage,
    consumer: BaseConsumer,
    running: Running,
    face: RelayHttp,
    named: u64,
}

impl Flooded {
    fn new(kafka: &Kafka, mode: &str) -> Self {
        Self::set(kafka, &[("kafka.delivery", mode)])
    }

    fn set(kafka: &Kafka, settings: &[(&str, &str)]) -> Self {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "names");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
        topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 1, &[]);
        let set = |relay: Relay, (name, value): &(&str, &str)| relay.set(name, value);
        let relay = settings.iter().fold(stage.relay(), set).allow_log("could not be created");
        let mut running = relay.allow_log("dead letter").allow_log("replica").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        let consumer = topic::client(&kafka.bootstrap()).create().unwrap();
        let flooded = Self { stage, consumer, running, face, named: 0 };
        flooded.bystander();
        flooded
    }

    /// Rows with so many more names.
    fn name(&mut self, names: u64) {
        let (from, to) = (self.named + 1, self.named + names);
        self.write("rpad('m' || n, 150, 'x')", from, to);
        self.named = to;
    }

    fn write(&self, name: &str, from: u64, to: u64) {
        self.stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 't', n % 10, {name}, NULL FROM generate_series({from}, {to}) AS n"
        ));
    }

    /// Writes an ordinary row and waits until it is delivered. Returns how long that took.
    fn bystander(&self) -> Duration {
        let end = || topic::ends(&self.consumer, &self.stage.topic("A"))[0].1;
        let (before, begun) = (end(), Instant::now());
        self.stage.insert("A", 1);
        let delivered =
            within(Duration::from_mins(2), || (end() > before).then(|| begun.elapsed()));
        delivered.expect("an ordinary row")
    }

    fn memory_mib(&self) -> f64 {
        self.face.metric("process_resident_memory_bytes").unwrap() / f64::from(1 << 20)
    }

    fn restarts(&self) -> f64 {
        let (_, page) = self.face.get("/metrics");
        let lines = page.lines().filter(|line| line.starts_with("postrider_restarts_total"));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    fn rejected(&self) -> u64 {
        let missing = "postrider_rejections_total{reason=\"missing_topic\"}";
        self.face.count(missing).unwrap_or_default()
    }

    /// A flood at once, then one that goes on.
    fn suffer(mut self, limit: Duration) -> u64 {
        self.write("'gone'", 1, NAMES);
        let usual = self.bystander();
        let memory = self.memory_mib();
        self.name(NAMES);
        let once = self.bystander();
        let mut worst = Duration::ZERO;
        for _ in 0..SECONDS {
            let second = Instant::now();
            self.name(RATE);
            worst = worst.max(self.bystander());
            let_pass(Duration::from_secs(1).saturating_sub(second.elapsed()), "the flood's rate");
        }
        // Every row has become a record or a dead letter, and the counts say so.
        let rows = 1 + (NAMES + 1) * 2 + (RATE + 1) * SECONDS;
        self.face.wait_count("postrider_records_confirmed_total", rows);
        let (rejected, grown) = (self.rejected(), self.memory_mib() - memory);
        eprintln!(
            "behind {NAMES} rows of one topic {usual:?}, of as many topics {once:?}, then {worst:?}; \
             {rejected} rejected; {grown:.0} MiB more"
        );
        assert!(once < usual + limit && worst < limit, "{once:?}, {worst:?}");
        assert!(self.restarts() == 0.0, "sessions were repeated");
        assert!(grown < GROWTH_MIB, "{grown} MiB");
        self.running.stop();
        rejected
    }
}

/// Where nobody creates them, each row becomes a dead letter.
#[test]
fn g3_g4_rows_that_each_name_a_missing_topic_hold_up_no_other() {
    let Some(kafka) = kafka::strict() else { return };
    for mode in MODES {
        let rejected = Flooded::new(kafka, mode).suffer(PROMPT);
        assert_eq!(rejected, 2 * NAMES + RATE * SECONDS, "{mode}");
    }
}

/// Brokers as they come, which create what is asked for.
#[test]
fn g3_g4_rows_that_each_name_a_topic_that_brokers_may_create_hold_up_no_other() {
    let Some(kafka) = kafka::start(&Options::default()) else { return };
    for mode in MODES {
        let rejected = Flooded::new(&kafka, mode).suffer(CREATING);
        assert!(rejected < NAMES + RATE * SECONDS, "{mode}: none was created");
    }
}

/// The relay itself is to create them, and cannot.
#[test]
fn g4_rows_that_each_name_a_topic_that_cannot_be_created_hold_up_no_other() {
    let Some(kafka) = kafka::strict() else { return };
    // More replicas than there are brokers.
    let rules = [("route.missing_topic", "create"), ("route.create_topics", "*: replication=3")];
    let mut flooded = Flooded::set(kafka, &rules);
    flooded.name(NAMES);
    let once = flooded.bystander();
    eprintln!("behind {NAMES} topics that cannot be created: {once:?}");
    assert!(once < IN_VAIN, "{once:?}");
    flooded.face.wait_count("postrider_records_confirmed_total", 2 + NAMES);
    assert!(flooded.rejected() == NAMES && flooded.restarts() == 0.0);
    flooded.running.stop();
}

/// Kafka creates `x_1` only where there is no `x.1`: nobody waits for it in vain.
#[test]
fn g4_names_that_kafka_takes_for_another_topics_hold_up_no_other() {
    const PAIRS: u64 = 10;
    let Some(kafka) = kafka::shared() else { return };
    let flooded = Flooded::new(kafka, MODES[0]);
    let begun = Instant::now();
    for number in 0..PAIRS {
        flooded.stage.insert(&format!("x.{number}"), 1);
        flooded.stage.insert(&format!("x_{number}"), 1);
    }
    flooded.bystander();
    let took = begun.elapsed();
    eprintln!("{PAIRS} pairs of names: {took:?}, {} rejected", flooded.rejected());
    assert!(took < CREATING, "{took:?}");
    flooded.face.wait_count("postrider_records_confirmed_total", 2 + 2 * PAIRS);
    assert!(flooded.rejected() >= PAIRS && flooded.restarts() == 0.0);
    flooded.running.stop();
}
