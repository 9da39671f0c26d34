//! Disasters, again and again, while rows flow: two relays on one slot are killed, stopped and woken up as
//! zombies, ended and ousted, Postgres crashes, brokers die or fall silent; or the end of Kafka transactions
//! is disturbed on its way; then an account of every row.
//!
//! Truth is the outbox table, which is kept whole, and the order in a second slot. Readers of both
//! isolation levels read the topics all the time, and every status update is held until it is known
//! what was visible then. Nothing here shares code with the relay but the sandbox that starts
//! Postgres. `make crash` and `make endtxn` print one line of JSON for each run and fail when a guarantee
//! does not hold; plain `cargo test` runs a few cycles. `MODE=poll` is a run of its own, without slots ([`polling`]).

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
pub(crate) mod judge;
mod kills;
mod pair;
pub(crate) mod polling;
pub(crate) mod readers;
mod report;
mod second_judge;
mod settings;
mod watch;
mod writers;

use arena::Arena;
use settings::Plan;

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    if let Some(scale) = Plan::polled() {
        return polling::run(scale);
    }
    judge::assert_sees_each_fault();
    Plan::all().into_iter().map(run).fold(true, |so_far, run| so_far & run)
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
