//! Progress of a long command on a terminal.

use rustix::process::{Pid, Signal, kill_process};

use super::terminal::Terminal;
use crate::stage::Stage;
use crate::tables::insert_in_time;
use support::broker::Broker;
use support::relay::Relay;
use support::{postgres, topic, wait_for};

const ROWS: usize = 6_000;
/// More than three backfills deliver before they are interrupted.
const FAST_ROWS: usize = 60_000;
const RESUMES: &str = r#"resume="postrider backfill --execute --rate 300""#;

/// The percentage of the last bar that has one.
fn percent(text: &str) -> Option<u64> {
    let bar = text.rsplit("\r\x1b[K").find(|frame| frame.contains("% "))?;
    let (before, _) = bar.split_once('%')?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Starts a backfill, interrupts it once it is further than that, and returns its last percentage.
fn interrupted(relay: &Relay, behind: u64) -> u64 {
    let arguments = ["backfill", "--execute", "--rate", "300"];
    let mut terminal = Terminal::of(&mut relay.command(&arguments));
    let first = wait_for("a bar", || percent(&terminal.text()));
    assert!(first >= behind, "{first}% after {behind}%: {:?}", terminal.text());
    wait_for("a bar that has moved", || percent(&terminal.text()).filter(|it| *it > behind + 5));
    kill_process(Pid::from_child(&terminal.child), Signal::INT).unwrap();
    let status = wait_for("the end", || terminal.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(69), "{:?}", terminal.text());
    let text = wait_for("how to resume", || {
        let text = terminal.text();
        (text.contains(RESUMES) && text.contains("resume it before")).then_some(text)
    });
    assert!(!text.contains("\x1b[32m"), "NO_COLOR: {text:?}");
    percent(&text).unwrap()
}

/// Runs a backfill until so many records are in the topics, and returns what it has done of how much.
fn interrupted_behind(stage: &Stage, relay: &Relay, records: usize) -> (u64, u64) {
    let relay = relay.clone().expect_log("interrupted");
    let running = relay.start(&["backfill", "--execute", "--rate", "2000"]);
    topic::wait_for_offsets(stage.bootstrap(), &stage.topic(""), records);
    running.signal(Signal::INT);
    let log = running.outcome().log;
    let line = log.iter().find(|line| line.contains("\"interrupted\""));
    let line = line.unwrap_or_else(|| panic!("not interrupted: {log:#?}"));
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    (line["done"].as_u64().unwrap(), line["total"].as_u64().unwrap_or_default())
}

/// What a backfill has delivered itself, before its rows are counted, counts once.
#[test]
fn a_resumed_backfill_counts_each_row_once() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "counted");
    insert_in_time(&stage, "A", FAST_ROWS);
    let relay = stage.relay().set("progress.at_least_once", "true");
    // The last one is 20 s before the end.
    for records in [2_000, 10_000, 18_000] {
        let (done, total) = interrupted_behind(&stage, &relay, records);
        assert_eq!((done, total), (stage.records().len() as u64, FAST_ROWS as u64));
    }
}

#[test]
fn a_resumed_backfill_shows_the_percentage_of_the_whole() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "progress");
    insert_in_time(&stage, "A", ROWS);
    let relay = stage.relay().set("log.format", "text").set("progress.at_least_once", "true");
    let reached = interrupted(&relay, 0);
    interrupted(&relay, reached);
}
