//! Commands without `--stream`: an answer for each stream of the file, and one exit code.

use serde_json::Value;

use super::{file_of, relay, start};
use crate::operate::Desk;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Outcome;

/// The lines of JSON, by the stream that each names.
fn by_stream(outcome: &Outcome) -> Vec<(String, Value)> {
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        (value["stream"].as_str().unwrap().to_owned(), value)
    };
    outcome.stdout.lines().map(line).collect()
}

#[test]
fn setup_doctor_lag_and_status_answer_for_every_stream_with_the_worst_exit_code() {
    let broker = Broker::best();
    let bootstrap = broker.bootstrap();
    let new = |name| (name, Stage::empty(postgres::installed(), &bootstrap, name));
    let streams = [new("first"), new("second"), new("away")];
    let desk = Desk::new();
    let text = file_of("", &streams);
    let away = streams[2].1.database.address().url();
    desk.write(&text.replace(&away, "postgres://u@127.0.0.1:1/x?connect_timeout=2"));
    let relay = relay(&streams).allow_log("");
    let run = |words: &[&str]| start(&relay, &desk.file(), words).outcome();

    assert_eq!(run(&["config", "streams"]).stdout, "first\nsecond\naway\n");
    let listed = by_stream(&run(&["config", "streams", "--output", "json"]));
    assert_eq!(listed[1].1["slot"], streams[1].1.slot());
    let shown = by_stream(&run(&["config", "show", "--output", "json"]));
    assert_eq!(shown.len(), 3);

    let printed = run(&["setup", "--print"]);
    assert_eq!(printed.status.code(), Some(78), "one psql is in one database: {printed:?}");
    let made = run(&["setup"]);
    let told = made.log.join("\n");
    assert_eq!(made.status.code(), Some(69), "{told}");
    assert!(told.contains("stream `away`: ") && !told.contains("stream `first`: "), "{told}");
    for (name, stage) in &streams[..2] {
        let begins = made.stdout.split_once(&format!("stream `{name}`:\n")).unwrap().1;
        let slot = format!("created: replication slot `{}`", stage.slot());
        assert!(begins.contains(&slot), "{}", made.stdout);
    }
    assert!(run(&["setup", "--only", "first"]).stdout.starts_with("already exists"));

    let lag = run(&["lag", "--output", "json"]);
    assert_eq!(lag.status.code(), Some(69), "{lag:?}");
    let lines = by_stream(&lag);
    let ok: Vec<_> = lines.iter().map(|(name, value)| (name.as_str(), &value["ok"])).collect();
    let expected = [("first", true), ("second", true), ("away", false)];
    assert!(ok.iter().zip(expected).all(|(&(a, b), (c, d))| a == c && *b == d), "{lag:?}");
    assert_eq!(lines[2].1["exit_code"], 69);
    let lag = run(&["lag", "--only", "second"]);
    assert!(lag.status.success() && lag.stdout.starts_with("slot `"), "{lag:?}");

    let status = run(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    let doctor = run(&["doctor", "--only", "slot.exists", "--output", "json"]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    assert_eq!(by_stream(&doctor)[0].1["failed"], 0);
    let doctor = run(&["doctor", "--only", "slot.exists"]);
    for (name, _) in &streams {
        let begins = format!("stream `{name}`:\n");
        assert!(status.stdout.contains(&begins) && doctor.stdout.contains(&begins));
    }
}
