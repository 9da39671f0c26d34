//! The control API of several streams, and a file that is read again.

use std::time::Duration;

use serde_json::Value;

use super::{file_of, relay, stages, start};
use crate::operate::Desk;
use support::broker::Broker;
use support::postgres;
use support::relay_http::RelayHttp;
use support::wait::stays;

/// Longer than rows take that nobody holds up.
const PAUSED: Duration = Duration::from_secs(2);

#[test]
fn one_stream_is_paused_or_rerouted_and_the_others_go_on() {
    let broker = Broker::best();
    let streams = stages(postgres::installed(), &broker.bootstrap(), &["first", "second"]);
    let [(_, first), (_, second)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    let text = file_of("", &streams);
    desk.write(&text);
    let relay = desk.controlled(relay(&streams).allow_log(""));
    let mut running = start(&relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let ctl = |words: &[&str]| {
        let words = [&["ctl"], words, &["--output", "json"]].concat();
        let outcome = start(&relay, &desk.file(), &words).outcome();
        let answer = outcome.stdout.lines().next().unwrap_or("null");
        (outcome.status.code().unwrap(), serde_json::from_str::<Value>(answer).unwrap())
    };

    let (code, answer) = ctl(&["pause"]);
    assert!(code == 1 && answer["error"].as_str().unwrap().contains("first, second"), "{answer}");
    let (code, answer) = ctl(&["pause", "--only", "second"]);
    assert_eq!((code, &answer["stream"], &answer["paused"]), (0, &"second".into(), &true.into()));
    first.insert("A", 5);
    second.insert("A", 5);
    first.wait_for_records(5);
    assert_eq!(ctl(&["status", "--only", "first"]).1["paused"], false);
    stays("nothing is read while paused", PAUSED, || second.records().is_empty());
    assert_eq!(face.count("postrider_paused{stream=\"second\"}"), Some(1));
    assert_eq!(ctl(&["resume", "--only", "second"]).0, 0);
    second.wait_for_records(5);
    let status = start(&relay, &desk.file(), &["status", "--only", "first"]);
    let status = status.outcome();
    assert!(status.status.success() && status.stdout.contains(first.slot()), "{status:?}");

    // Rules of one stream are new; the other goes by its own as before.
    let to = second.topic("B");
    desk.write(&format!("{text}route.rules = [{{ glob = \"A\", topic = \"{to}\" }}]\n"));
    let (code, answer) = ctl(&["reload"]);
    assert_eq!(code, 0, "{answer}");
    // By the look at the file, or by the order, whichever came first.
    let line = running.wait_for_log("the routes of the reloaded configuration are in effect");
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["stream"], "second");
    first.insert("A", 3);
    second.insert("A", 3);
    second.wait_for_records(8);
    first.wait_for_records(8);
    let rerouted = second.records().into_iter().filter(|record| record.topic == to).count();
    assert_eq!((rerouted, first.records().len()), (3, 8));
    assert_eq!(ctl(&["drain", "--only", "first"]).0, 1);
    assert_eq!(ctl(&["drain"]).0, 0);
    assert!(running.outcome().status.success());
}
