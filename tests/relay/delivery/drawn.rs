//! Ten thousand rows drawn from a seed, most of them ordinary, between them whatever an application
//! may write: at a relay with default settings and brokers with default settings that create no
//! topic, whose access lists allow the relay no more than it needs. Every row ends as a record or as a dead letter that outlives retention, and sessions are
//! bounded. What ordinary rows take meanwhile is printed, and bounded as far as a busy machine lets it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rustix::process::Signal;

use crate::stage::Stage;
use support::acl::{May, On, grant};
use support::chance::Chance;
use support::kafka::{DENIED_USER, Kafka, PASSWORD};
use support::relay::Relay;
use support::retention::{self, now_ms};
use support::topic::{self, Stored};
use support::{kafka, postgres};

/// Put another seed here to draw other rows.
const SEED: u64 = 20_261_122;
const ROWS: u64 = 10_000;
/// Rows of a commit, and the time between two: 250 rows a second.
const TOGETHER: u64 = 25;
const PAUSE: Duration = Duration::from_millis(100);
/// A row that is larger than `source.frame_max`, by its number.
const HUGE: u64 = 5_003;
/// Topics that nobody made.
const NOBODYS: usize = 40;
/// Topics whose access lists do not name the relay.
const SECRETS: usize = 3;
/// Kafka's partitions of each topic.
const PARTITIONS: i32 = 3;
/// An optimised relay takes 7 ms for half of the ordinary rows and 911 ms for all but one in a hundred at
/// least once, 16 and 1,121 ms exactly once, on two busy cores; most of the latter is the sessions that refusals
/// end, and the row of 80 MiB, which Postgres and the relay both work through for a second. An unoptimised one
/// among other tests is held to a share of the time that the attack takes: rows held up by what is hostile
/// between them, a session after the other, would take as long as the whole.
const P99_SHARE: f64 = 0.5;

/// What is to become of a row: a record, or a dead letter with this code.
type Fate = &'static str;
/// That of a row for a topic that the relay may not even see.
const HIDDEN: Fate = "hidden";

/// A row's columns as SQL, and its fate. Its number is in `aggregate_type`.
fn draw(chance: &mut Chance, stage: &Stage, n: u64) -> (String, Fate) {
    let a = stage.topic("A");
    let key = quoted(&format!("k{}", chance.below(17)));
    let small = format!("to_jsonb({n})");
    // Refusals of the brokers end a session each: they are few, and apart.
    let (topic, key, payload, fate) = match (n % 700, chance.below(100)) {
        _ if n == HUGE => (quoted(&a), key, json("repeat('x', 80 << 20)"), "too_large"),
        (301, _) => (quoted(&stage.topic("small")), key, json(&random_kib(6)), "too_large"),
        (601, _) => (quoted(&stage.topic("keyed")), "NULL".to_owned(), small, "refused"),
        (102, _) => (quoted(&a), key, json(&random_kib(1_500)), "too_large"),
        (202, _) => (quoted(&a), random_kib(1_500), small, "too_large"),
        (_, 0..70) => (quoted(&a), key, small, "record"),
        (_, 70..78) => (quoted(&reserved(chance, stage)), key, small, "invalid_topic"),
        (_, 78..80) => {
            let nobodys = stage.topic(&format!("nobody{}", chance.below(NOBODYS)));
            (quoted(&nobodys), key, small, "missing_topic")
        }
        (_, 89..91) => {
            let secret = stage.topic(&format!("secret{}", chance.below(SECRETS)));
            (quoted(&secret), key, small, HIDDEN)
        }
        (_, 91..92) => (quoted(&stage.topic("readable")), key, small, "forbidden_topic"),
        (_, 80..86) => (quoted(&format!("{a}{}", strange(chance))), key, small, "invalid_topic"),
        (_, 86..89) => (["NULL", "''"][chance.below(2)].to_owned(), key, small, "no_route"),
        _ => {
            let text = quoted(&strange(chance));
            let value = format!("to_jsonb({text}::text)");
            (quoted(&stage.topic("B")), text, value, "record")
        }
    };
    (format!("('{n}', {key}, {topic}, {payload})"), fate)
}

fn reserved(chance: &mut Chance, stage: &Stage) -> String {
    let progress = format!("postrider.progress.{}", stage.slot());
    let names = [
        "__consumer_offsets".to_owned(),
        "__transaction_state".to_owned(),
        "__x".to_owned(),
        progress.replace('.', "_"),
        progress,
        "postrider.progress.another".to_owned(),
        stage.topic("dead-letters"),
        stage.topic("dead-letters").replace('.', "_"),
    ];
    names[chance.below(names.len())].clone()
}

/// Some characters, one of each block or kind that has gone wrong somewhere; none is one of topics.
fn strange(chance: &mut Chance) -> String {
    const RANGES: [(u32, u32); 16] = [
        (0x01, 0x1F),
        (0x7F, 0x9F),
        (0xA0, 0xFF),
        (0x300, 0x36F),
        (0x590, 0x6FF),
        (0xE00, 0xE7F),
        (0x1100, 0x11FF),
        (0x2000, 0x206F),
        (0x2028, 0x2029),
        (0x3000, 0x30FF),
        (0xD7A0, 0xD7FF),
        (0xE000, 0xF8FF),
        (0xFDD0, 0xFDEF),
        (0xFFF0, 0xFFFF),
        (0x1F300, 0x1F6FF),
        (0x10_FF00, 0x10_FFFF),
    ];
    let length = 1 + chance.below(8);
    let character = |_| {
        let (from, to) = RANGES[chance.below(RANGES.len())];
        let code = from + u32::try_from(chance.below((to - from + 1) as usize)).unwrap();
        char::from_u32(code).unwrap()
    };
    (0..length).map(character).collect()
}

/// A text of so many KiB that do not compress.
fn random_kib(kib: usize) -> String {
    let md5s = kib * 32;
    format!("(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {md5s}))")
}

fn json(text: &str) -> String {
    format!("to_jsonb({text})")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The times that records of topic `A` took, in milliseconds, as a consumer sees them.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<Vec<u8>, i64>>,
}

impl Watch {
    fn start(stage: &Stage) -> Self {
        let (bootstrap, topic) = (stage.bootstrap().to_owned(), stage.topic("A"));
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut config = topic::client(&bootstrap);
            let consumer: BaseConsumer = config.set("fetch.wait.max.ms", "20").create().unwrap();
            let mut all = TopicPartitionList::new();
            for partition in 0..PARTITIONS {
                all.add_partition_offset(&topic, partition, Offset::Beginning).unwrap();
            }
            consumer.assign(&all).unwrap();
            let mut took = BTreeMap::new();
            while !flag.load(Ordering::Relaxed) {
                let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
                let message = message.unwrap();
                let value = message.payload().unwrap_or_default().to_vec();
                let ms = now_ms() - message.timestamp().to_millis().unwrap();
                took.entry(value).or_insert(ms);
            }
            took
        });
        Self { stop, thread }
    }

    /// Sorted.
    fn finish(self) -> Vec<i64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut took: Vec<i64> = self.thread.join().unwrap().into_values().collect();
        took.sort_unstable();
        took
    }
}

fn create_topics(stage: &Stage) {
    let small = [("max.message.bytes", "2000")];
    let keyed = [("cleanup.policy", "compact")];
    let create = |name: &str, settings: &[(&str, &str)]| {
        topic::create(stage.bootstrap(), &stage.topic(name), PARTITIONS, settings);
    };
    create("small", &small);
    create("keyed", &keyed);
    for name in ["A", "B", "dead-letters", "readable"] {
        create(name, &[]);
    }
    for number in 0..SECRETS {
        create(&format!("secret{number}"), &[]);
    }
}

/// Allows the relay's user what it needs, to see which topics nobody made, and to read one.
fn grant_rights(stage: &Stage) {
    let to = |on, name: &str, rights: &[May]| {
        grant(stage.bootstrap(), DENIED_USER, on, name, rights);
    };
    for name in ["A", "B", "small", "keyed", "dead-letters"] {
        let rights = [May::Write, May::Describe, May::DescribeConfigs];
        to(On::Topic, &stage.topic(name), &rights);
    }
    to(On::Topic, &stage.topic("readable"), &[May::Read, May::Describe]);
    for number in 0..NOBODYS {
        to(On::Topic, &stage.topic(&format!("nobody{number}")), &[May::Describe]);
    }
    let progress = format!("postrider.progress.{}", stage.slot());
    let rights = [May::Read, May::Write, May::Create, May::Describe, May::DescribeConfigs];
    to(On::Topic, &progress, &rights);
    to(On::TransactionalId, &stage.transactional_id(), &[May::Write, May::Describe]);
}

/// One with default settings, who logs in.
fn relay(stage: &Stage, kafka: &Kafka, delivery: &str) -> Relay {
    stage.relay().set("kafka.delivery", delivery).prepare();
    stage
        .relay()
        .set("route.topic", "${routedByValue}")
        .set("kafka.delivery", delivery)
        .log_in(&kafka.sasl_bootstrap(), DENIED_USER, PASSWORD)
        .unprepared()
}

/// By number, what was found: `record` or a dead letter's code.
fn found(records: &[Stored]) -> BTreeMap<u64, Vec<String>> {
    let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for record in records {
        let number = record.header("aggregate_type").unwrap().parse().unwrap();
        let code = record.header("postrider-error-code").unwrap_or("record");
        found.entry(number).or_default().push(code.to_owned());
    }
    found
}

fn attack(stage: &Stage) -> BTreeMap<u64, Fate> {
    let mut chance = Chance::new(SEED);
    let mut fates = BTreeMap::new();
    let sql = stage.sql();
    let begun = Instant::now();
    for commit in 0..u32::try_from(ROWS / TOGETHER).unwrap() {
        let from = u64::from(commit) * TOGETHER;
        let mut rows = Vec::new();
        for n in from..from + TOGETHER {
            let (row, fate) = draw(&mut chance, stage, n);
            rows.push(row);
            fates.insert(n, fate);
        }
        sql.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES {}",
            rows.join(", ")
        ));
        let due = begun + PAUSE * (commit + 1);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    fates
}

fn assault(delivery: &str) {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "drawn");
    create_topics(&stage);
    stage.sql().run(
        "ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_row_size,
            ALTER event_type DROP NOT NULL, ALTER aggregate_id DROP NOT NULL",
    );
    eprintln!("seed {SEED}, {delivery}");
    grant_rights(&stage);
    let mut running = relay(&stage, kafka, delivery).run();
    running.wait_for_log("streaming");
    let watch = Watch::start(&stage);
    let begun = Instant::now();
    let fates = attack(&stage);
    let attack_took = begun.elapsed();
    stage.wait_acknowledged(stage.log_end());
    running.signal(Signal::TERM);
    let outcome = running.outcome();
    assert!(outcome.status.success(), "{:?}", outcome.log);
    let took = watch.finish();

    retention::wait_for_checks(stage.bootstrap(), 3);
    let found = found(&stage.records());
    for (number, fate) in &fates {
        let codes = found.get(number).unwrap_or_else(|| panic!("row {number} ({fate}) is lost"));
        let is_fate = |code: &String| match (*fate, code.as_str()) {
            // Where a topic has just refused others as large it is not sent; a list of all topics is
            // silent of those that are hidden.
            ("too_large", "refused") | (HIDDEN, "forbidden_topic" | "missing_topic") => true,
            (fate, code) => fate == code,
        };
        assert!(codes.iter().all(is_fate), "row {number}: {codes:?}, not {fate}");
        assert!(delivery == "at_least_once" || codes.len() == 1, "row {number}: {codes:?}");
    }
    assert_eq!(found.len() as u64, ROWS);
    let sessions = outcome.log.iter().filter(|line| line.contains("\"message\":\"streaming\""));
    let refusals = ROWS / 700 * 2 + 2;
    let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    let copies: usize = found.values().map(Vec::len).sum();
    let sessions = sessions.count() as u64;
    eprintln!("{delivery}: {sessions} sessions, {copies} copies, p50 {p50} ms, p99 {p99} ms");
    let share = Duration::from_millis(p99.unsigned_abs()).as_secs_f64() / attack_took.as_secs_f64();
    assert!(share <= P99_SHARE, "ordinary rows: p99 {p99} ms of {attack_took:?}");
    // One ends at the batch, one at the record alone.
    assert!(sessions <= 2 * refusals + 1, "{sessions} sessions for {refusals} refusals");
}

#[test]
fn g4_drawn_rows_each_end_once_where_they_must_at_least_once() {
    assault("at_least_once");
}

#[test]
fn g4_g6_drawn_rows_each_end_once_where_they_must_exactly_once() {
    assault("exactly_once");
}
