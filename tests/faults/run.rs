//! Runs what stands behind each row of the fault matrix, and writes the table of the results.
//!
//! `make faults`. Input: `fixtures/faults/matrix.toml`; names of rows as arguments, all without any;
//! `--table` runs nothing and keeps the results that are there. Output: the table in
//! docs/evidence.md, one line a row on stdout, and exit code 1 where a row does not hold. Builds the
//! tests once, and runs each of them once, however many rows name it. What a machine lacks is a
//! failure here, not a skip.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for developers, which stops where it fails and says so"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use support::register::{self, DOCUMENT, REGISTER, Row};

/// Tests at a time: most of them wait for a server most of the time.
const THREADS: &str = "6";

/// Some rows kill the relay at named places.
const FEATURES: &str = "faults";

/// Whether a test passed, by its whole path.
type Results = BTreeMap<String, bool>;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join(REGISTER)).expect(REGISTER);
    let faults = register::parse(&text).unwrap_or_else(|error| panic!("{REGISTER}: {error}"));
    let mut arguments: BTreeSet<String> = std::env::args().skip(1).collect();
    let only_table = arguments.remove("--table");
    let is_wanted = |fault: &Row| {
        !only_table && (arguments.is_empty() || arguments.contains(&fault.number.to_string()))
    };
    let wanted: Vec<&Row> = faults.iter().filter(|fault| is_wanted(fault)).collect();
    let begun = Instant::now();
    let results = run(root, &wanted);
    let document = root.join(DOCUMENT);
    let known = std::fs::read_to_string(&document).expect(DOCUMENT);
    let before = register::table(&known);
    let (mut rows, mut failed, mut held) = (String::new(), 0, 0);
    for fault in &faults {
        let (result, date) = if let Some(why) = &fault.not_run {
            (format!("not run: {why}"), String::new())
        } else if is_wanted(fault) {
            let result = verdict(fault, &results);
            println!("{:>2} {result}: {}", fault.number, fault.fault);
            failed += usize::from(result != HOLDS);
            held += usize::from(result == HOLDS);
            (result, today())
        } else {
            earlier(fault, &before)
        };
        rows += &fault.row(&result, &date);
    }
    let table = register::with_table(&known, &rows).expect("the marks of the table");
    std::fs::write(&document, table).expect(DOCUMENT);
    println!("{held} rows hold, {failed} do not; {} s", begun.elapsed().as_secs());
    ExitCode::from(u8::from(failed > 0))
}

const HOLDS: &str = "holds";

/// What the table said of a row that is not run this time.
fn earlier(fault: &Row, before: &[Vec<String>]) -> (String, String) {
    let row = before.iter().find(|row| row.first() == Some(&fault.number.to_string()));
    match row.map(Vec::as_slice) {
        Some([_, _, _, result, date]) if !result.starts_with("not run") => {
            (result.clone(), date.clone())
        }
        _ => ("not run yet".to_owned(), String::new()),
    }
}

fn verdict(fault: &Row, results: &Results) -> String {
    let mut wrong = Vec::new();
    for name in &fault.shown_by {
        let mut found = results.iter().filter(|(path, _)| is_named(path, name)).peekable();
        if found.peek().is_none() {
            wrong.push(format!("no test is named {name}"));
        }
        wrong
            .extend(found.filter(|(_, passed)| !**passed).map(|(path, _)| format!("{path} fails")));
    }
    if wrong.is_empty() { HOLDS.to_owned() } else { wrong.join("; ") }
}

/// Whether a test's path ends with these segments.
fn is_named(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with("::"))
}

fn run(root: &Path, faults: &[&Row]) -> Results {
    let names: BTreeSet<&str> =
        faults.iter().flat_map(|fault| fault.shown_by.iter().map(String::as_str)).collect();
    let mut results = Results::new();
    if names.is_empty() {
        return results;
    }
    for binary in build(root) {
        let listed = output(Command::new(&binary).arg("--list").current_dir(root));
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let wanted = tests.filter(|path| names.iter().any(|name| is_named(path, name)));
        let paths: Vec<&str> = wanted.collect();
        if !paths.is_empty() {
            eprintln!("{} tests of {}", paths.len(), binary.display());
            results.extend(run_binary(root, &binary, &paths));
        }
    }
    results
}

/// Builds all tests, and names their binaries.
fn build(root: &Path) -> Vec<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "test",
            "--no-run",
            "--locked",
            "--features",
            FEATURES,
            "--lib",
            "--bins",
            "--tests",
        ])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root);
    let binary = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message.get("profile")?.get("test")?.as_bool()?;
        is_test.then_some(PathBuf::from(message.get("executable")?.as_str()?))
    };
    output(&mut command).lines().filter_map(binary).collect()
}

/// Runs these tests of a binary, and shows what those that fail have to say.
fn run_binary(root: &Path, binary: &Path, paths: &[&str]) -> Results {
    let mut command = Command::new(binary);
    command
        .args(paths)
        .args(["--exact", "--test-threads", THREADS])
        .current_dir(root)
        .env("CI", "true");
    let finished = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let finished = finished.unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
    let text = String::from_utf8_lossy(&finished.stdout);
    if !finished.status.success() {
        eprintln!("{text}");
    }
    let passed: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... ok"))
        .collect();
    paths.iter().map(|&path| (path.to_owned(), passed.contains(path))).collect()
}

fn output(command: &mut Command) -> String {
    let finished = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let finished = finished.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(finished.status.success(), "{command:?}: {}", finished.status);
    String::from_utf8_lossy(&finished.stdout).into_owned()
}

/// As ISO 8601 writes it, in UTC.
fn today() -> String {
    output(Command::new("date").args(["-u", "+%F"])).trim().to_owned()
}
