//! `postrider top` on a real terminal, before a relay that runs, that is gone, and at every end.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rdkafka::mocking::MockCluster;
use rustix::process::{Pid, Signal, kill_process};

use super::terminal::Terminal;
use crate::stage::Stage;
use support::postgres;
use support::relay_http::RelayHttp;

#[test]
fn a_running_relay_is_watched_on_a_terminal_that_is_given_back() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "top");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut running = stage.relay().set("http.bind", &free.to_string()).run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 12);
    face.wait_count("postrider_records_confirmed_total", 12);
    face.wait_ready(200);
    let url = format!("http://{}", face.address());
    let top = Terminal::run(&["top", "--url", &url]);
    let screen = top.wait_for("confirmed 12");
    assert!(top.is_raw());
    assert!(
        screen.starts_with(&format!("Postrider  ✓ streaming  slot {}", stage.slot())),
        "{screen}"
    );
    assert!(screen.contains("Kafka ✓ ok") && screen.contains(&stage.topic("A")), "{screen}");
    assert!(!top.text().contains("\x1b[38;5;"), "NO_COLOR");
    stage.insert("A", 5);
    top.wait_for("confirmed 17");
    (&top.keys).write_all(b"h").unwrap();
    top.wait_for("postrider doctor");
    (&top.keys).write_all(b"q").unwrap();
    top.ends();

    let top = Terminal::run(&["top", "--url", &url]);
    top.wait_for("confirmed 17");
    running.stop();
    let screen = top.wait_for("The relay does not answer");
    assert!(screen.contains("confirmed 17"), "what was known stays: {screen}");
    kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap();
    top.ends();

    let top = Terminal::run(&["top", "--url", &url]);
    top.wait_for("no relay answers");
    (&top.keys).write_all(b"\x03").unwrap();
    top.ends();
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["top", "--url", "127.0.0.1:1"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("postrider status --watch"));
}
