//! Benchmarks that run once, small, so that they are known to run at all.

use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn what_it_costs_to_be_watched_is_measured_and_told_as_json() {
    let arguments = ["bench", "watched", "--rows", "2000", "--pairs", "1", "--output", "json"];
    let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&figures["rows"], &figures["pairs"]), (&2_000.into(), &1.into()), "{figures}");
    for name in ["rows_per_s_alone", "rows_per_s_visited", "ratio", "idle_rss_mib"] {
        assert!(figures[name].as_f64().unwrap() > 0.0, "{name}: {figures}");
    }
    // One pair has one ratio.
    assert_eq!(figures["ratio_min"], figures["ratio_max"], "{figures}");
}
