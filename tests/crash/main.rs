//! Disasters, again and again, while rows flow: two relays on one slot are killed, stopped and woken up as
//! zombies, ended and ousted, Postgres crashes, brokers die or fall silent; or the end of Kafka transactions
//! is disturbed on its way; then an account of every row.
//!
//! Truth is the outbox table, which is kept whole, and the order in a second slot. Readers of both
//! isolation levels read the topics all the time, and every status update is held until it is known
//! what was visible then. Nothing here shares code with the relay but the sandbox that starts
//! Postgres. `make crash` and `make endtxn` print one line of JSON for each run and fail when a guarantee
//! does not hold; plain `cargo test` runs a few cycles. Not run by the test harness, so that stdout holds those lines
//! alone.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod account;
mod arena;
mod coordinator;
mod disasters;
mod ends;
mod judge;
mod kills;
mod pair;
mod readers;
mod report;
mod rows;
mod settings;
mod watch;
mod writers;

use std::process::ExitCode;

use arena::Arena;
use settings::Plan;

/// What is asked for by name: `cargo test crash`.
const NAME: &str = "crash";

fn main() -> ExitCode {
    // As the test harness would: names are filters, flags are its own.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-'));
    let is_wanted = filters.clone().next().is_none() || filters.any(|filter| NAME.contains(filter));
    if !is_wanted || arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    end_with_any_thread();
    judge::assert_sees_each_fault();
    let is_sound = Plan::all().into_iter().map(run).fold(true, |so_far, run| so_far & run);
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the guarantee held.
fn run(plan: Plan) -> bool {
    let (victim, mode) = (plan.victim.name(), plan.mode.name());
    eprintln!("{} cycles against {victim}, {mode}, SEED={}", plan.cycles, plan.seed);
    // Said already: this machine has no Kafka.
    let Some(mut arena) = Arena::open(plan) else { return true };
    let pair = kills::strike_again_and_again(&mut arena);
    report::report(&plan, &arena.close(pair))
}

/// A reader or a watch that panics must not be outlived by a run that then sees nothing wrong.
fn end_with_any_thread() {
    let usual = std::panic::take_hook();
    let main = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        if std::thread::current().id() != main {
            std::process::exit(101);
        }
    }));
}
