//! Says which suites could not run on this machine, and why.
//!
//! The test harness swallows the output of tests that pass, so a skip is written past it, and once
//! more into the file that `make test` prints last. Where `CI=true` a skip is a failure.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

/// Names the file that collects the lines, for `make test`.
const FILE_VARIABLE: &str = "POSTRIDER_SKIPPED";

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Records that `suite` does not run because of `why`; once per pair.
///
/// # Panics
/// Where `CI=true`.
pub fn skip(suite: &str, why: &str) {
    let line = format!("SKIPPED {suite}: {why}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{line} (not allowed where CI=true)");
    if !SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        return;
    }
    // Directly, because the harness captures only the print macros.
    let _ = writeln!(std::io::stderr(), "{line}");
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}
