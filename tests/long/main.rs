//! What takes minutes: disasters, the whole shop under kill -9, Debezium beside Postrider, random workloads beside
//! test_decoding, what is around the stream, and logins that change.
//!
//! `cargo test --test long NAME` runs those whose names contain `NAME`; all of them, small, without one.
//! Each prints lines of JSON and fails when what it is for does not hold. Not run by the test harness, so
//! that stdout holds those lines alone.

mod compare;
mod compare_speed;
mod crash;
mod decoding;
mod failover;
mod identity;
mod lifecycle;
mod load;
mod shop_chaos;
mod streams;

use std::panic::catch_unwind;
use std::process::ExitCode;

/// The name by which it is asked for, and what says whether all was as it should be.
type Run = (&'static str, fn() -> bool);

const RUNS: &[Run] = &[
    ("compare_bytes", compare::all),
    ("compare_speed", compare_speed::all),
    ("crash", crash::all),
    ("decoding", decoding::all),
    ("failover", failover::all),
    ("identity", identity::all),
    ("lifecycle", lifecycle::all),
    ("shop_chaos", shop_chaos::all),
    ("streams", streams::all),
];

fn main() -> ExitCode {
    // As the test harness would: names are filters, flags are its own.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    end_with_any_thread();
    let mut is_sound = true;
    for (_, run) in RUNS.iter().filter(|(name, _)| is_wanted(name)) {
        // One that cannot go on has said why; the others run all the same.
        is_sound &= catch_unwind(run).unwrap_or(false);
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A thread that panics must not be outlived by a run that then sees nothing wrong.
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
