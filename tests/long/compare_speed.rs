//! The comparison of `make compare`, with a few rows: whether it still runs, and sees what it should.
//!
//! Figures of such a run mean nothing and are not judged; that every row of every contestant arrived is.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use std::path::Path;

use serde_json::json;
use support::compare::{Scale, Settings, compare};

/// Whether all arrived and the report has all that was measured.
pub(crate) fn all() -> bool {
    let postrider = Path::new(env!("CARGO_BIN_EXE_postrider"));
    let settings = Settings { postrider, build: "of tests", scale: Scale::Smoke, only: Vec::new() };
    let Some(comparison) = compare(&settings) else { return true };
    let failures = comparison.failures();
    for failure in &failures {
        eprintln!("{failure}");
    }
    let json = comparison.json();
    let figure = |workload: &str, figure: &str| {
        let found =
            &json["workloads"][workload]["contestants"]["postrider_at_least_once_tcp"][figure];
        found.as_f64()
    };
    let ratio =
        &json["workloads"]["one_row"]["ratios"]["postrider_at_least_once_tcp"]["rows_per_s"];
    let has_figures = figure("one_row", "rows_per_s").is_some()
        && figure("one_row", "first_record_s").is_some()
        && figure("latency_200", "p99_ms").is_some()
        && figure("kill", "finished_s").is_some()
        && ratio.is_number();
    let folder = tempfile::tempdir().unwrap();
    comparison.write(folder.path());
    let written = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let has_report = written("report.md").contains("transforms.outbox.route.by.field=event_type")
        && written("report.svg").ends_with("</svg>\n");
    println!(
        "{}",
        json!({ "what": "compare_speed", "failures": failures, "figures": has_figures, "report": has_report })
    );
    failures.is_empty() && has_figures && has_report
}
