//! Debezium and Postrider beside each other on the same tables, their topics compared byte for
//! byte: keys, values, headers, partitions, and timestamps where a column gives them.
//!
//! Each configuration of `fixtures/debezium` is what Kafka Connect takes; Connect and `postrider run
//! --debezium` get the same file, in which only the address of the database is of this run. Each
//! has a database, and each side a slot and a Kafka of its own. `make compare-bytes` prints one
//! line; a difference prints both records and fails.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod plans;
mod rows;
mod sides;
mod verdict;

use plans::{PLANS, Plan};
use sides::{Shop, deliver};
use support::chance::Chance;
use support::connect::{Connect, Worker};
use support::kafka::{self, Options};
use support::{java, skip, topic};
use verdict::{Verdict, comparable};

/// Put another seed here to draw other rows.
const SEED: u64 = 20_240_229;

/// Rows of each configuration.
const ROWS: usize = 60;

/// Differences that are shown.
const SHOWN: usize = 3;

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    match java::jars("debezium") {
        Ok(jars) => compare(&jars),
        Err(why) => {
            skip::skip("the comparison with Debezium", &why);
            true
        }
    }
}

fn compare(jars: &std::path::Path) -> bool {
    let Some((theirs, ours)) = two_clusters() else { return true };
    let shops: Vec<Shop> = PLANS.iter().map(Shop::open).collect();
    let configurations: Vec<(&str, &str)> =
        shops.iter().map(|shop| (shop.plan.name, shop.configuration.as_str())).collect();
    let bootstrap = theirs.bootstrap();
    let worker = Worker::of_tests(jars, &bootstrap);
    let mut connect = Connect::start(&worker, &configurations);
    let mut chance = Chance::new(SEED);
    for shop in &shops {
        shop.fill(&mut chance, ROWS);
    }
    sides::await_records(&mut connect, &theirs.bootstrap(), ROWS * shops.len());
    assert!(connect.is_closed(), "others may ask for the passwords of the connectors");
    // Read before the relay runs: `run --once` writes a logical message of its own, which a
    // connector without a filter passes on, and its converters may stop at.
    let debezium = everything(&theirs.bootstrap());
    for shop in &shops {
        deliver(shop, &ours.bootstrap());
    }
    let verdict = judge(&debezium, &everything(&ours.bootstrap()));
    let weighed = verdict.identical + verdict.deliberate + verdict.different.len();
    assert!(weighed >= ROWS * shops.len(), "{weighed} records of {} rows", ROWS * shops.len());
    for difference in verdict.different.iter().take(SHOWN) {
        eprintln!("{difference}");
    }
    println!(
        "{{\"rows\":{},\"configs\":{},\"identical\":{},\"deliberate\":{},\"different\":{}}}",
        ROWS * shops.len(),
        shops.len(),
        verdict.identical,
        verdict.deliberate,
        verdict.different.len()
    );
    verdict.different.is_empty()
}

/// One for each side, started at the same time. Topics whose records have times of long ago keep
/// them.
fn two_clusters() -> Option<(kafka::Kafka, kafka::Kafka)> {
    let start = || {
        let kafka = kafka::start(&Options::default())?;
        for name in plans::dated_topics() {
            topic::create(&kafka.bootstrap(), &name, 3, &[("retention.ms", "-1")]);
        }
        Some(kafka)
    };
    std::thread::scope(|scope| {
        let theirs = scope.spawn(start);
        let ours = start();
        Some((theirs.join().unwrap()?, ours?))
    })
}

/// Reads all topics of a cluster to their ends.
fn everything(bootstrap: &str) -> Vec<topic::Stored> {
    let names = topic::names(bootstrap, "");
    let names: Vec<String> = names.into_iter().filter(|name| !name.starts_with("__")).collect();
    topic::read(bootstrap, &names)
}

/// Compares both sides, plan by plan.
fn judge(theirs: &[topic::Stored], ours: &[topic::Stored]) -> Verdict {
    let mut verdict = Verdict::default();
    for plan in &PLANS {
        let of = |side: &[topic::Stored]| -> Vec<topic::Stored> {
            let records = side.iter().filter(|record| belongs(record, plan));
            records.map(|record| comparable(record, plan.has_timestamp)).collect()
        };
        let theirs = of(theirs);
        verdict::assert_sees(plan.name, &theirs);
        verdict.judge(plan.name, &theirs, &of(ours));
    }
    verdict
}

/// Route values name their plan, and so do topics.
fn belongs(record: &topic::Stored, plan: &Plan) -> bool {
    let name = record.topic.trim_start_matches("outbox.event.");
    PLANS
        .iter()
        .filter(|plan| name.starts_with(plan.name))
        .max_by_key(|plan| plan.name.len())
        .is_some_and(|found| found.name == plan.name)
}
