//! Configurations, tables and rows drawn by chance, through `postrider route`.
//!
//! Always holds, whatever is drawn: the program ends well; every row is answered by exactly one of
//! record, drop and rejection; a record's topic is legal and its first header the row's id; the same
//! input gives the same bytes. A failure names its seed.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::format_push_string,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod draw;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use postrider::route::check_topic;
use serde_json::Value;

use support::chance::Chance;

/// Configurations that are drawn, and rows for each.
const CONFIGURATIONS: usize = 32;
const ROWS: usize = 250;

#[test]
fn g4_g7_every_drawn_row_is_answered_and_always_the_same() {
    let (mut routed, mut records) = (0, 0);
    for seed in 0..CONFIGURATIONS {
        let mut chance = Chance::new(seed as u64);
        let configuration = draw::configuration(&mut chance);
        let rows: String = (0..ROWS).map(|_| draw::line(&mut chance) + "\n").collect();
        let answers = route(&configuration, &rows);
        let log = String::from_utf8_lossy(&answers.stderr).into_owned();
        match answers.status.code() {
            Some(0) => {}
            // Some drawn configurations contradict themselves, and are refused before any row.
            Some(78) => {
                assert!(log.contains("PR-C") && answers.stdout.is_empty(), "seed {seed}: {log}");
                continue;
            }
            code => panic!("seed {seed}: {code:?}: {log}\n{configuration}"),
        }
        let text = String::from_utf8(answers.stdout).unwrap();
        assert_eq!(text.lines().count(), ROWS, "seed {seed}");
        for (number, line) in text.lines().enumerate() {
            records += usize::from(is_record(line, &format!("seed {seed}, row {number}")));
        }
        let again = String::from_utf8(route(&configuration, &rows).stdout).unwrap();
        assert!(text == again, "seed {seed}: other bytes the second time");
        routed += 1;
    }
    assert!(routed > CONFIGURATIONS / 2, "{routed} of the configurations were taken");
    // Else the draw would show nothing but rejections.
    let share = records * 100 / (routed * ROWS);
    assert!((20..90).contains(&share), "{share} % of the rows became records");
}

/// Checks an answer, and tells whether it is a record.
fn is_record(line: &str, place: &str) -> bool {
    let answer: Value = serde_json::from_str(line).unwrap();
    let has = |name: &str| answer.get(name).is_some();
    let kinds = [has("topic"), has("dropped"), has("rejected")];
    assert_eq!(kinds.iter().filter(|kind| **kind).count(), 1, "{place}: {line}");
    if has("rejected") {
        assert!(answer["code"].is_string() && answer["reason"].is_string(), "{place}: {line}");
    }
    let Some(topic) = answer.get("topic") else { return false };
    assert_eq!(check_topic(topic.as_str().unwrap()), Ok(()), "{place}: {line}");
    let first = &answer["headers"][0];
    assert!(first[0] == draw::ID_HEADER && !first[1].is_null(), "{place}: {line}");
    true
}

fn route(configuration: &str, rows: &str) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(configuration.as_bytes()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .env_clear()
        .args(["route", "--config"])
        .arg(file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let rows = rows.to_owned();
    let writer = std::thread::spawn(move || {
        // A refused configuration closes the pipe.
        let _ = stdin.write_all(rows.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}
