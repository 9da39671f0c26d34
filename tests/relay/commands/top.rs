//! `postrider top` on a real terminal, before a relay that runs, that is gone, and at every end.

use std::io::Write as _;
use std::process::{Command, Stdio};

use postrider::sandbox::port;
use rdkafka::mocking::MockCluster;
use rustix::process::{Pid, Signal, kill_process};

use super::terminal::Terminal;
use crate::operate::Desk;
use crate::stage::Stage;
use crate::streams::{file_of, relay, stages, start};
use support::postgres;
use support::relay_http::RelayHttp;
use support::wait_for;

#[test]
fn a_running_relay_is_watched_on_a_terminal_that_is_given_back() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "top");
    let free = format!("127.0.0.1:{}", port::free().unwrap());
    let mut running = stage.relay().set("http.bind", &free).run();
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
    // A key whose sequence is not whole.
    (&top.keys).write_all(b"\x1b[").unwrap();
    terminate(&top);
    top.ends();

    let top = Terminal::run(&["top", "--url", &url]);
    top.wait_for("no relay answers");
    (&top.keys).write_all(b"\x03").unwrap();
    top.ends();
}

fn terminate(top: &Terminal) {
    kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap();
}

/// Before a relay that is not there.
fn shown() -> Terminal {
    let top = Terminal::run(&["top", "--url", "127.0.0.1:1"]);
    top.wait_for("no relay answers");
    top
}

#[test]
fn it_ends_with_its_terminal() {
    let mut top = shown();
    top.vanish();
    top.ends_unseen();
}

#[test]
fn sigterm_ends_it_on_a_terminal_that_is_gone() {
    let mut top = shown();
    top.vanish();
    terminate(&top);
    top.ends_unseen();
}

#[test]
fn sigterm_ends_it_on_a_terminal_that_takes_nothing() {
    let mut top = shown();
    top.stall();
    // Draws more than a terminal keeps for its reader.
    (&top.keys).write_all(&[b'h'; 500]).unwrap();
    let call = format!("/proc/{}/syscall", top.child.id());
    wait_for("a write to stdout that does not end", || {
        let call = std::fs::read_to_string(&call).unwrap();
        (call.split(' ').nth(1) == Some("0x1")).then_some(())
    });
    terminate(&top);
    wait_for("cooked mode", || (!top.is_raw()).then_some(()));
    top.ends_unseen();
}

#[test]
fn the_stream_that_is_named_is_shown_of_several() {
    let mock = MockCluster::new(1).unwrap();
    let streams = stages(postgres::installed(), &mock.bootstrap_servers(), &["first", "second"]);
    let [(_, first), (_, second)] = &streams[..] else { panic!("two") };
    let free = format!("127.0.0.1:{}", port::free().unwrap());
    let desk = Desk::new();
    desk.write(&file_of(&format!("[http]\nbind = \"{free}\""), &streams));
    let file = desk.file();
    let relay = relay(&streams).set("http.bind", &free);
    let mut running = start(&relay, &file, &["run"]);
    let face = RelayHttp::of(&mut running);
    first.insert("A", 7);
    second.insert("A", 12);
    first.wait_for_records(7);
    second.wait_for_records(12);
    face.wait_ready(200);
    let configured = ["--config", file.to_str().unwrap(), "top", "--stream"];
    for (name, stage, shown) in
        [("first", first, "confirmed 7"), ("second", second, "confirmed 12")]
    {
        let top = Terminal::run(&[&configured[..], &[name]].concat());
        let screen = top.wait_for(shown);
        let title = format!("streaming  stream {name}  slot {}", stage.slot());
        assert!(screen.contains(&title) && screen.contains(&stage.topic("A")), "{screen}");
        (&top.keys).write_all(b"q").unwrap();
        top.ends();
    }
    let url = format!("http://{}", face.address());
    let asked = ["top", "--url", &url];
    let third = [&asked[..], &["--stream", "third"]].concat();
    for (words, said) in
        [(&asked[..], "has several streams"), (&third[..], "has no stream `third`")]
    {
        let top = Terminal::run(words);
        // The screen breaks its lines between words.
        let screen = top.wait_for(said).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(screen.contains("first, second"), "{screen}");
        (&top.keys).write_all(b"q").unwrap();
        top.ends();
    }
    running.stop();
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
