//! `postrider top` on a real terminal, before a relay that runs, that is gone, and at every end.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rdkafka::mocking::MockCluster;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::stage::Stage;
use support::relay_http::RelayHttp;
use support::{postgres, wait_for};

/// A terminal of 80 columns and 24 lines with the program on it.
struct Terminal {
    keys: File,
    /// Our hold on the program's side, by which its settings are seen.
    line: OwnedFd,
    /// Everything that was written to it.
    written: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    fn run(arguments: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        // Else the program asks the terminal of whoever runs the tests how large it is.
        let child = Command::new("setsid")
            .arg(env!("CARGO_BIN_EXE_postrider"))
            .args(arguments)
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(master);
        let (mut output, written) = (keys.try_clone().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let all = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut some) {
                all.lock().unwrap().extend(&some[..count]);
            }
        });
        Self { keys, line, written, child }
    }

    /// Whether letters come as they are typed, and unseen.
    fn is_raw(&self) -> bool {
        !tcgetattr(&self.line)
            .unwrap()
            .local_modes
            .intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// What is on the screen.
    fn screen(&self) -> String {
        let mut cells = vec![vec![' '; 80]; 24];
        let (mut row, mut column) = (0, 0);
        let text = self.text();
        let mut rest = text.chars();
        while let Some(letter) = rest.next() {
            if letter != '\x1b' {
                if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = letter;
                }
                column += 1;
                continue;
            }
            let mut sequence = String::new();
            for next in rest.by_ref() {
                sequence.push(next);
                if next.is_ascii_alphabetic() {
                    break;
                }
            }
            // The cursor moves.
            let place = sequence.strip_prefix('[').and_then(|it| it.strip_suffix('H'));
            if let Some((to_row, to_column)) = place.and_then(|place| place.split_once(';')) {
                row = to_row.parse::<usize>().unwrap() - 1;
                column = to_column.parse::<usize>().unwrap() - 1;
            }
        }
        cells
            .iter()
            .map(|line| line.iter().collect::<String>().trim_end().to_owned() + "\n")
            .collect()
    }

    fn wait_for(&self, part: &str) -> String {
        wait_for(&format!("`{part}` on the screen"), || {
            let screen = self.screen();
            screen.contains(part).then_some(screen)
        })
    }

    /// It has ended well, and the terminal is as it was.
    fn ends(mut self) {
        let status = wait_for("the end", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{}", self.text());
        assert!(!self.is_raw());
        wait_for("the screen before it", || {
            let text = self.text();
            (text.contains("\x1b[?1049l") && text.contains("\x1b[?25h")).then_some(())
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

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
        screen.starts_with(&format!("Postrider  streaming  slot {}", stage.slot())),
        "{screen}"
    );
    assert!(screen.contains("Kafka ok") && screen.contains(&stage.topic("A")), "{screen}");
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
