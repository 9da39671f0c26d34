//! What a row costs the core, in instructions and allocations, against `baseline.txt`: part of `make check`.
//!
//! Input: nothing; `UPDATE_BASELINE=1` records what is counted now, `count WORKLOAD ROWS` runs one workload alone, for
//! callgrind. Output: a line per workload, and a failure where one costs more than the baseline says. Invariant: no
//! figure depends on time, so that a busy machine counts what an idle one does.
//!
//! Instructions are counted by callgrind in two runs of different length, whose difference leaves out the start of
//! the process. glibc is told to take the variants of memcpy that every x86-64 has. Without valgrind, or on another
//! architecture than the baseline's, allocations alone are held against it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its report")]

mod baseline;
mod callgrind;
mod workload;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use baseline::{Baseline, Cost};
use callgrind::Unavailable;
use workload::Workload;

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.txt");
/// Rows of which allocations are counted; a multiple of every transaction's.
const ROWS: usize = 6_000;
/// Rows of the shorter run under callgrind; the difference is what counts.
const FEWER_ROWS: usize = 2_000;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments.as_slice() {
        ["count", name, rows] => count(name, rows),
        [] => check(),
        _ => Err("usage: postrider-instructions [count WORKLOAD ROWS]".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one workload.
fn count(name: &str, rows: &str) -> Result<(), Failure> {
    let workload = Workload::named(name).ok_or("no such workload")?;
    workload.run(rows.parse()?);
    Ok(())
}

fn check() -> Result<(), Failure> {
    let compiler = compiler()?;
    let mut now = Baseline { arch: std::env::consts::ARCH.to_owned(), compiler, costs: Vec::new() };
    let mut lacking = None;
    for workload in Workload::ALL {
        let instructions = match instructions(workload) {
            Ok(instructions) => Some(instructions),
            Err(Counting::Lacking(reason)) => {
                lacking = Some(reason);
                None
            }
            Err(Counting::Failed(failure)) => return Err(failure),
        };
        let allocations = workload.allocations(ROWS) * 1_000 / ROWS as u64;
        now.costs.push(Cost { workload: workload.name().to_owned(), instructions, allocations });
    }
    if let Some(reason) = lacking {
        skipped(&reason)?;
    }
    if std::env::var_os("UPDATE_BASELINE").is_some_and(|value| value == "1") {
        std::fs::write(BASELINE, now.to_string())?;
        println!("recorded in {}", Path::new(BASELINE).display());
        return Ok(());
    }
    let baseline: Baseline = std::fs::read_to_string(BASELINE)?.parse()?;
    if baseline.arch != now.arch {
        skipped(&format!("the baseline is of {}, this is {}", baseline.arch, now.arch))?;
    }
    print!("{}", baseline.table(&now));
    let findings = baseline.findings(&now);
    if findings.is_empty() { Ok(()) } else { Err(baseline.explain(&findings, &now).into()) }
}

/// Why there is no count.
enum Counting {
    /// This machine cannot count.
    Lacking(String),
    Failed(Failure),
}

/// Instructions per thousand rows.
fn instructions(workload: Workload) -> Result<u64, Counting> {
    let of = |rows| {
        callgrind::instructions(workload.name(), rows).map_err(|error| match error {
            Unavailable::NotInstalled => Counting::Lacking(error.to_string()),
            Unavailable::Failed(_) => Counting::Failed(error.into()),
        })
    };
    let more = of(ROWS)?.saturating_sub(of(FEWER_ROWS)?);
    Ok(more * 1_000 / (ROWS - FEWER_ROWS) as u64)
}

/// Says what was left out; `make check` prints it again at its end.
fn skipped(reason: &str) -> Result<(), Failure> {
    let line = format!("SKIPPED instruction counts: {reason}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("POSTRIDER_SKIPPED").filter(|path| !path.is_empty()) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        writeln!(file, "{line}")?;
    }
    Ok(())
}

/// The compiler's version, which decides much of the counts.
fn compiler() -> Result<String, Failure> {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program).arg("--version").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().nth(1).unwrap_or_default().to_owned())
}
