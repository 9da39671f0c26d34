//! The control API of several streams, and a file that is read again.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;

use super::{ctl, file_of, relay, stages, start};
use crate::operate::Desk;
use support::broker::Broker;
use support::http::send_local;
use support::postgres;
use support::relay_http::RelayHttp;
use support::wait::{let_pass, stays, wait_until};

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
    let ctl = |words: &[&str]| ctl(&relay, &desk.file(), words);

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

/// Databases that take a connection and say nothing are asked at the same time, hold up no other order, and make no file wrong.
#[test]
fn a_reload_waits_for_all_databases_at_once_and_holds_up_no_other_order() {
    const SILENT: usize = 4;
    let broker = Broker::best();
    let streams = stages(postgres::installed(), &broker.bootstrap(), &["first"]);
    let [(_, first)] = &streams[..] else { panic!("one") };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let file = |top: &str| {
        let mut text = file_of(top, &streams);
        for number in 0..SILENT {
            write!(
                text,
                "[[stream]]\nname = \"silent{number}\"\nsource.url = \"postgres://u@{address}/d{number}\"\n\
                 source.slot = \"s{number}\"\n"
            )
            .unwrap();
        }
        text
    };
    let desk = Desk::new();
    desk.write(&file(""));
    let relay = desk.controlled(relay(&streams).allow_log(""));
    let mut running = start(&relay, &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    wait_until("the first to stream", || face.probe("/readyz?stream=first").0 == 200);
    let ask = |what: &str| {
        send_local(&desk.path("control"), &format!("{what} HTTP/1.1")).expect("an answer")
    };

    desk.write(&file("[route]\nid_header = \"event\"\n"));
    let (answered, reloaded) = std::thread::scope(|scope| {
        let (reload, mut answered) = (scope.spawn(|| ask("POST /api/v1/reload")), 0);
        while !reload.is_finished() {
            assert_eq!(ask("GET /api/v1/log-level").status, 200);
            answered += usize::from(!reload.is_finished());
            let_pass(Duration::from_millis(20), "the reload takes seconds");
        }
        (answered, reload.join().unwrap())
    });
    // Few of them can have come before the reload.
    assert!(answered > 3, "{answered}");
    let answer = reloaded.json();
    assert_eq!((reloaded.status, answer["errors"].as_array().unwrap().len()), (200, 0), "{answer}");
    let not_asked = answer["not_asked"].as_array().unwrap();
    assert_eq!(not_asked.len(), SILENT, "{answer}");
    assert!(not_asked[0]["what"].as_str().unwrap().starts_with("stream `silent0`: "), "{answer}");
    let good = "postrider_config_last_reload_successful";
    for name in ["first", "silent0"] {
        assert_eq!(face.count(&format!("{good}{{stream=\"{name}\"}}")), Some(1), "{name}");
    }
    running.wait_for_log("this stream keeps its configuration");
    wait_until("the new routes", || {
        first.insert("A", 1);
        first.records().iter().any(|record| record.header("event").is_some())
    });
    running.signal(rustix::process::Signal::TERM);
    running.outcome();
}
