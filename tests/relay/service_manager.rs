//! What systemd is told by a relay that it starts with `Type=notify`: a socket of ours is in its place.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::delivery::idle::impatient;
use crate::operate::{Desk, with_file};
use crate::stage::Stage;
use crate::streams;
use support::postgres;
use support::relay::Relay;

/// How long systemd would wait for the next line, on a machine busy with other tests.
const LIMIT: Duration = Duration::from_mins(3);

/// The clock that systemd compares with.
fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket, folder }
    }

    fn starts(&self, relay: Relay) -> Relay {
        let socket = self.folder.path().join("notify");
        relay.variable("NOTIFY_SOCKET", &socket.display().to_string())
    }

    /// Every line up to the first that begins so.
    fn wait_for(&self, line: &str) -> Vec<String> {
        let mut said = Vec::new();
        let mut datagram = [0; 4096];
        while !said.iter().any(|other: &String| other.starts_with(line)) {
            let length = self.socket.recv(&mut datagram).unwrap();
            let text = std::str::from_utf8(&datagram[..length]).unwrap();
            said.extend(text.lines().map(str::to_owned));
        }
        said
    }
}

#[test]
fn a_relay_is_ready_when_it_streams_and_says_that_it_lives_and_stops() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "systemd");
    let manager = Manager::new();
    let relay = manager.starts(stage.relay()).variable("WATCHDOG_USEC", "1000000");
    let running = relay.set("shutdown.grace", "20s").run();
    let said = manager.wait_for("STATUS=streaming");
    assert!(said.contains(&"READY=1".to_owned()), "{said:?}");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    stage.insert("OrderPaid", 1);
    running.signal(Signal::TERM);
    let said = manager.wait_for("EXTEND_TIMEOUT_USEC=35000000");
    assert!(said.contains(&"STOPPING=1".to_owned()), "{said:?}");
    assert!(!said.contains(&"READY=1".to_owned()), "said once: {said:?}");
    assert_eq!(running.wait().code(), Some(0));
}

/// Without it `systemctl reload` would return at once, whatever the reload comes to; a file that is refused ends it too.
#[test]
fn a_reload_is_told_with_the_time_of_its_beginning_and_with_its_end() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "systemd_reload");
    let (manager, desk) = (Manager::new(), Desk::new());
    desk.write("[log]\nlevel = \"info\"\n");
    let relay = manager.starts(stage.relay()).expect_log("the configuration is refused");
    let running = relay.start(&with_file(&desk.file()));
    manager.wait_for("STATUS=streaming");
    for text in ["[log]\nlevel = \"debug\"\n", "[log]\nlevel = \"loud\"\n"] {
        desk.write(text);
        let before = monotonic_us();
        running.signal(Signal::HUP);
        let said = manager.wait_for("MONOTONIC_USEC=");
        assert!(said.contains(&"RELOADING=1".to_owned()), "{said:?}");
        assert!(!said.contains(&"READY=1".to_owned()), "{said:?}");
        let began = said.last().unwrap().trim_start_matches("MONOTONIC_USEC=").parse().unwrap();
        assert!((before..=monotonic_us()).contains(&began), "{before} {said:?}");
        let said = manager.wait_for("READY=1");
        assert!(!said.contains(&"RELOADING=1".to_owned()), "{said:?}");
    }
    running.stop();
}

#[test]
fn a_standby_is_ready_too() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "standing");
    let mut active = stage.relay().run();
    active.wait_for_log("streaming");
    let manager = Manager::new();
    let standby = manager.starts(impatient(stage.relay())).run();
    let said = manager.wait_for("STATUS=standby");
    assert!(said.contains(&"READY=1".to_owned()), "{said:?}");
    standby.stop();
    active.stop();
}

#[test]
fn a_relay_that_waits_for_its_database_is_ready_and_says_why_it_waits() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "booting");
    let manager = Manager::new();
    // A port that nobody listens on.
    let relay =
        manager.starts(stage.relay()).set("source.url", "postgres://postrider@127.0.0.1:1/shop");
    let running = relay.allow_log("").run();
    let said = manager.wait_for("STATUS=retrying: ");
    assert!(said.contains(&"READY=1".to_owned()), "{said:?}");
    running.signal(Signal::TERM);
    manager.wait_for("STOPPING=1");
    running.wait();
}

#[test]
fn a_slot_that_is_missing_is_never_ready() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "slotless");
    let manager = Manager::new();
    let relay = manager.starts(stage.relay()).set("source.slot", "nobody_made_this").allow_log("");
    let running = relay.run();
    assert!(!running.wait().success());
    manager.socket.set_nonblocking(true).unwrap();
    let mut datagram = [0; 4096];
    while let Ok(length) = manager.socket.recv(&mut datagram) {
        let said = String::from_utf8_lossy(&datagram[..length]).into_owned();
        assert!(!said.contains("READY=1"), "{said}");
    }
}

/// One that fails holds up no `systemctl start`.
#[test]
fn several_streams_are_ready_once_one_serves_and_each_has_begun() {
    let mock = MockCluster::new(1).unwrap();
    let names = ["serves", "wrong"];
    let all = streams::stages(postgres::installed(), &mock.bootstrap_servers(), &names);
    let desk = Desk::new();
    let wrong = "source.publication = \"nowhere\"\n";
    desk.write(&format!("{}{wrong}", streams::file_of("", &all)));
    let manager = Manager::new();
    let relay = manager.starts(streams::relay(&all).allow_log(""));
    let running = streams::start(&relay, &desk.file(), &["run"]);
    let said = manager.wait_for("STATUS=1 of 2 streams are ready; `wrong`: failed: ");
    assert!(said.contains(&"READY=1".to_owned()), "{said:?}");
    let told = said.last().unwrap();
    assert!(told.contains("until `postrider ctl resume --stream wrong`"), "{told}");
    running.signal(Signal::TERM);
    manager.wait_for("STOPPING=1");
    assert_eq!(running.wait().code(), Some(70));
}
