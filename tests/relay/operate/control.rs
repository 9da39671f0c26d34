//! The control API of a real relay, and `postrider ctl`.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use super::{Desk, ctl};
use crate::delivery::idle::{ALL, impatient};
use crate::stage::Stage;
use support::broker::Broker;
use support::relay_http::RelayHttp;
use support::{http, postgres};

const TOKEN: &str = "a-token-that-nobody-else-knows-0123456789";

#[test]
fn a_token_opens_the_api_and_is_shown_nowhere() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "token");
    let desk = Desk::new();
    let file = desk.path("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let relay = stage.relay().set("http.control.token_file", file.to_str().unwrap());
    let mut running = relay.set("log.level", "trace").run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("streaming");
    let ask = |what: &str, header: &str| {
        let head = format!("{what} HTTP/1.1{header}");
        let answer = http::send(face.address(), &head, b"").unwrap();
        assert!(!answer.body.contains(TOKEN), "{answer:?}");
        answer
    };
    let right = format!("\r\nauthorization: Bearer {TOKEN}");
    assert_eq!(ask("POST /api/v1/pause", "").status, 401);
    assert_eq!(ask("POST /api/v1/pause", "\r\nauthorization: Bearer wrong").status, 401);
    let from_a_page = format!("{right}\r\norigin: http://127.0.0.1");
    assert_eq!(ask("POST /api/v1/pause", &from_a_page).status, 403);
    assert_eq!(face.count("postrider_paused"), Some(0));
    assert_eq!(ask("POST /api/v1/pause", &right).status, 200);
    assert_eq!(face.count("postrider_paused"), Some(1));
    assert_eq!(ask("POST /api/v1/resume", &right).json()["paused"], false);
    for page in ["/metrics", "/readyz", "/api/v1/state", "/api/v1/openapi.json"] {
        assert!(!face.get(page).1.contains(TOKEN), "{page}");
    }
    assert_eq!(ask("POST /api/v1/drain", &right).status, 202);
    let outcome = running.outcome();
    assert!(outcome.status.success(), "{outcome:?}");
    assert!(!outcome.log.iter().any(|line| line.contains(TOKEN)));
}

#[test]
fn ctl_says_what_is_missing() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "ctl");
    let desk = Desk::new();
    let told = |relay: &support::relay::Relay, words: &[&str]| {
        let outcome = relay.start(&[&["ctl"], words].concat()).outcome();
        (outcome.status.code().unwrap(), outcome.log.concat() + &outcome.stdout)
    };
    let (code, text) = told(&stage.relay(), &["pause"]);
    assert!(
        code == 78 && text.contains("PR-H012") && text.contains("http.control.socket"),
        "{text}"
    );
    let relay = desk.controlled(stage.relay());
    let (code, text) = told(&relay, &["pause"]);
    assert!(code == 69 && text.contains("PR-H013"), "{text}");

    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("streaming");
    face.wait_ready(200);
    let mode = std::fs::metadata(desk.path("control")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let answer = http::send(face.address(), "POST /api/v1/pause HTTP/1.1", b"").unwrap();
    assert!(answer.status == 403 && answer.body.contains("--unix-socket"), "{answer:?}");
    let (code, text) = told(&relay, &["status"]);
    assert!(code == 0 && text.contains("streaming, ready, active"), "{text}");
    let (code, text) = told(&relay, &["log-level", "loud"]);
    assert!(code == 1 && text.contains("PR-H015") && text.contains("`loud`"), "{text}");
    assert_eq!(ctl(&relay, &["log-level"]).1["filter"], "info");
    let filter = "info,postrider::telemetry=off,postrider::relay=debug";
    assert_eq!(ctl(&relay, &["log-level", filter]), (0, serde_json::json!({ "filter": filter })));
    assert_eq!(ctl(&relay, &["log-level"]).1["filter"], filter);
    let (code, text) = told(&relay, &["reload"]);
    assert!(code == 0 && text.contains("nothing to apply"), "{text}");
    // A filter that shows nothing is told by the one before it.
    assert_eq!(ctl(&relay, &["log-level", "error"]).0, 0);
    running.wait_for_log("\"after\":\"error\"");
    assert_eq!(ctl(&relay, &["log-level", "info"]).0, 0);
    let (code, text) = told(&relay, &["log-level", "postrider::kafak=debug"]);
    assert!(code == 1 && text.contains("`postrider::kafak` is not a part"), "{text}");
    // Two relays cannot have one socket; a second one says so, and the first keeps it.
    let second = relay.run().outcome();
    let text = second.log.concat();
    assert!(second.status.code() == Some(78) && text.contains("PR-H010"), "{text}");
    let (code, text) = told(&relay, &["drain", "--wait"]);
    assert!(code == 0 && text.contains("confirmation of every record"), "{text}");
    assert!(text.contains("the relay has ended"), "{text}");
    assert!(running.wait().success());
    assert!(!desk.path("control").exists());
}

/// SIGTERM after a drain by the API is the first signal, and no abort.
#[test]
fn g8_a_drain_that_a_supervisor_follows_up_is_clean() {
    let mock = rdkafka::mocking::MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "drain_term");
    let desk = Desk::new();
    let relay = desk.controlled(impatient(stage.relay())).allow_log("cannot reach Kafka");
    let relay = relay.allow_log("BrokerTransportFailure").allow_log("confirm nothing");
    let relay = relay.allow_log("REQTMOUT").set("shutdown.grace", "2m");
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("streaming");
    stage.strand(&mock, 5);
    // A drain leaves alone what was not read yet.
    face.wait_count("postrider_in_flight_records", 5);
    let (code, answer) = ctl(&relay, &["drain"]);
    assert_eq!((code, &answer["draining"]), (0, &true.into()), "{answer}");
    running.wait_for_log("draining");
    running.signal(Signal::TERM);
    running.wait_for_log("stopping; signal again to abort");
    mock.broker_up(ALL).unwrap();
    assert!(running.wait().success());
    assert_eq!(stage.records().len(), 15);
}
