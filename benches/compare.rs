//! Postrider beside Debezium, a polling publisher and `pg_recvlogical`: `make compare`.
//!
//! `-- figures` runs all, `QUICK=1` fewer rows and runs, `WORKLOADS="one_row bulk"` some workloads; what that means is in
//! `tests/support/src/compare`. Prints one line of JSON, writes `target/compare/report.md` and `report.svg`, with
//! `UPDATE_DOCS=1` also `docs/benchmarks.md` and the table of the README, and fails where any contestant delivered something
//! else than it should have. A plain `cargo bench` runs nothing of it, since it takes half an hour.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is a bench; stdout holds its figures alone"
)]

use std::path::Path;
use std::process::ExitCode;

use support::compare::{Scale, Settings, compare};

/// What has to be said for it to run.
const WORD: &str = "figures";
/// Names another build of the relay than that of this bench.
const BINARY: &str = "COMPARE_POSTRIDER";

fn main() -> ExitCode {
    if !std::env::args().any(|argument| argument == WORD) {
        return ExitCode::SUCCESS;
    }
    let variable = |name| std::env::var(name).unwrap_or_default();
    let named = variable(BINARY);
    let settings = Settings {
        postrider: Path::new(if named.is_empty() {
            env!("CARGO_BIN_EXE_postrider")
        } else {
            &named
        }),
        build: match (named.is_empty(), cfg!(debug_assertions)) {
            (true, false) => "release profile",
            (true, true) => "debug profile: its figures mean nothing",
            (false, _) => "named by COMPARE_POSTRIDER",
        },
        scale: if variable("QUICK") == "1" { Scale::Quick } else { Scale::Full },
        only: variable("WORKLOADS").split_whitespace().map(str::to_owned).collect(),
    };
    let Some(comparison) = compare(&settings) else { return ExitCode::FAILURE };
    let folder = support::root().join("target/compare");
    comparison.write(&folder);
    println!("{}", comparison.json());
    eprintln!("report: {}", folder.join("report.md").display());
    let failures = comparison.failures();
    if failures.is_empty() && variable("UPDATE_DOCS") == "1" {
        comparison.publish(support::root());
    }
    for failure in &failures {
        eprintln!("FAILED: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
