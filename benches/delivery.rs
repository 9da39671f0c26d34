//! What exactly-once costs, on the embedded broker and on real Apache Kafka: `make bench-delivery`.
//!
//! Runs the release `postrider bench delivery` for each figure that is asked of it, and prints its lines
//! of JSON. Servers end with it. A plain `cargo bench` runs nothing of it, since it takes minutes.

#![expect(
    clippy::unwrap_used,
    reason = "all of this crate is a bench; what goes wrong should stop it"
)]

use std::process::{Command, ExitCode};

/// What has to be said for it to run.
const WORD: &str = "figures";
/// Few and many partitions.
const TOPICS: [&str; 2] = ["5", "50"];
/// Rows per transaction: one by one, and in the batches of a busy writer.
const PER_TRANSACTION: [&str; 2] = ["100", "1"];
/// Rows per second of the live load.
const RATE: &str = "1000";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if arguments.first().is_none_or(|word| word != WORD) {
        return ExitCode::SUCCESS;
    }
    arguments.remove(0);
    let kafka =
        support::kafka::start(&support::kafka::Options { measured: true, ..Default::default() });
    let bootstrap = kafka.as_ref().map(support::kafka::Kafka::bootstrap);
    let mut is_whole = bootstrap.is_some();
    let brokers = |address: Option<&String>| {
        address.map_or_else(Vec::new, |address| vec!["--brokers".to_owned(), address.clone()])
    };
    for address in [None].into_iter().chain(bootstrap.as_ref().map(Some)) {
        for topics in TOPICS {
            for per_transaction in PER_TRANSACTION {
                let shape = ["--topics", topics, "--per-transaction", per_transaction];
                is_whole &= bench(&shape, &[brokers(address), arguments.clone()].concat());
            }
        }
    }
    for topics in TOPICS.iter().filter(|_| bootstrap.is_some()) {
        let shape = ["--topics", topics, "--latency", RATE];
        is_whole &= bench(&shape, &[brokers(bootstrap.as_ref()), arguments.clone()].concat());
    }
    if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One line of JSON.
fn bench(shape: &[&str], further: &[String]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(["bench", "delivery", "-q", "--output", "json"]).args(shape).args(further);
    command.status().unwrap().success()
}
