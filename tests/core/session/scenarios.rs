//! Replays fixtures/scenarios: pipeline scripts with their expected output in the file.
//!
//! Below each command stands what it answered, unless that is nothing. With `POSTRIDER_REWRITE=1` the
//! answers are written anew; commit such a rewrite only if you can say why each line changed. The
//! commands are explained in `script`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::session::script::Script;

/// Begins an answer.
const ARROW: &str = "  -> ";

fn scenarios() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios");
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    files.sort();
    files
}

/// The file as it would be if its answers were right.
fn replay(text: &str) -> String {
    let mut script = Script::default();
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with(ARROW)) {
        writeln!(out, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(answer) = script.run(line) {
            writeln!(out, "{ARROW}{answer}").unwrap();
        }
    }
    out
}

#[test]
fn g1_g3_g4_g5_scenarios_answer_as_written() {
    let files = scenarios();
    assert!(files.len() >= 5, "where are the scenarios? {files:?}");
    for file in files {
        let written = std::fs::read_to_string(&file).unwrap();
        let replayed = replay(&written);
        if std::env::var_os("POSTRIDER_REWRITE").is_some() {
            std::fs::write(&file, replayed).unwrap();
            continue;
        }
        let differs = written.lines().zip(replayed.lines()).find(|(old, new)| old != new);
        assert!(
            written == replayed,
            "{}: first difference (written, replayed): {differs:?}",
            file.display()
        );
    }
}
