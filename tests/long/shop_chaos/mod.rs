//! The whole shop under kill -9: orders, payments and inventory in two processes each, with a database and a
//! relay each, on real PostgreSQL, Kafka and Redis, which are killed too; requests that are sent again, records
//! that are delivered again, replies that are destroyed, poison in every topic; then an audit of every order.
//!
//! Clients repeat each request until it has a response. The audit shares no code with the services:
//! it compares what clients were told, tables, topics, dead letters and offsets with what should be
//! there for each order and its end (`expected`). `make shop` prints one line of JSON and fails when
//! anything is missing, doubled, stuck or out of balance; plain `cargo test` runs it small.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod audit;
mod audit_checks;
mod chaos;
mod clients;
mod consumers;
mod databases;
mod duplicates;
mod expected;
mod final_state;
mod http;
mod poison;
mod process;
mod report;
mod settings;
mod stage;
mod topics;
mod victims;
mod workload;

use std::time::{Duration, Instant};

use audit::Inputs;
use clients::Clients;
use duplicates::Duplicator;
use poison::Poison;
use report::RunSummary;
use settings::Plan;
use stage::Stage;
use support::chance::Chance;

/// How long all work may take to finish after the last fault: the fifth deadline of an order whose replies are
/// destroyed again and again comes after 20 s times 31.
const REST_LIMIT: Duration = Duration::from_mins(12);

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    audit_checks::assert_detects_each_fault();
    run(&Plan::read())
}

/// Whether there is no fault.
fn run(plan: &Plan) -> bool {
    let begun = Instant::now();
    let Plan { orders, kills, seed, .. } = plan;
    eprintln!("{orders} orders, {kills} kills, seed {seed}");
    // Each draws for itself, so that what one does leaves the others as they are.
    let [wishing, asking, echoing, poisoning] = [1, 2, 3, 4].map(|part| seed ^ (part << 32));
    let wishes = workload::draw(plan, &mut Chance::new(wishing));
    let stock = workload::stock(wishes.iter().map(|(wish, _)| wish));
    // Said already: this machine has no Kafka.
    let Some(mut stage) = Stage::open(&stock, plan) else { return true };
    eprintln!("open after {:.1} s", begun.elapsed().as_secs_f64());
    let echo = Duplicator::start(&stage.bootstrap, echoing);
    let mut poison = Poison::new(&stage.bootstrap, poisoning);
    let clients = Clients::start(wishes, stage.doors(), asking);
    let toll = chaos::run(&mut stage, plan, &clients, &mut poison);
    let (wishes, tally) = clients.finish();
    eprintln!("all keys have a response after {:.1} s", begun.elapsed().as_secs_f64());
    let mut faults = Vec::new();
    if !stage.settle(&echo, REST_LIMIT) {
        faults.push("work did not finish".to_owned());
    }
    let copies = echo.finish();
    faults.extend(stage.close());
    eprintln!("finished after {:.1} s", begun.elapsed().as_secs_f64());
    let books = final_state::read(&stage, &copies);
    let beginning = Inputs { wishes, stock, poison: poison.expected().clone() };
    let verdict = audit::audit(&beginning, &books);
    let (services, took) = (&stage.services, begun.elapsed());
    let course = RunSummary { tally, toll: &toll, copies: &copies, services, faults, took };
    report::report(plan, &verdict, &course)
}
