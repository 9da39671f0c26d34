//! A terminal for the tests of commands that draw on one.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use support::wait_for;

/// A terminal of 80 columns and 24 lines with the program on it.
pub(super) struct Terminal {
    pub(super) keys: File,
    /// The program's side, whose settings the test reads.
    line: OwnedFd,
    /// Everything that was written to it.
    written: Arc<Mutex<Vec<u8>>>,
    reader: Reader,
    pub(super) child: Child,
}

/// The thread that reads what the program writes.
struct Reader {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn of(mut output: File, written: Arc<Mutex<Vec<u8>>>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while !over.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(&output, PollFlags::IN)];
                let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                if poll(&mut fds, Some(&limit)).unwrap() > 0 {
                    let Ok(count @ 1..) = output.read(&mut some) else { return };
                    written.lock().unwrap().extend(&some[..count]);
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Terminal {
    /// Runs `top` or the like, which asks its controlling terminal.
    pub(super) fn run(arguments: &[&str]) -> Self {
        // Otherwise the program reads the size of the tester's own terminal.
        let mut command = Command::new("setsid");
        Self::of(command.arg(env!("CARGO_BIN_EXE_postrider")).args(arguments))
    }

    /// Runs a command.
    pub(super) fn of(command: &mut Command) -> Self {
        // A program that has the other side, too, keeps its own terminal open.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        let child = command
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(master);
        let written = Arc::new(Mutex::new(Vec::new()));
        let reader = Reader::of(keys.try_clone().unwrap(), Arc::clone(&written));
        Self { keys, line, written, reader, child }
    }

    /// Whether the terminal is in raw mode without echo.
    pub(super) fn is_raw(&self) -> bool {
        !tcgetattr(&self.line)
            .unwrap()
            .local_modes
            .intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    pub(super) fn text(&self) -> String {
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

    /// Takes nothing more of what the program writes.
    pub(super) fn stall(&mut self) {
        self.reader.end();
    }

    /// Closes the other side, as a connection that drops does.
    pub(super) fn vanish(&mut self) {
        self.reader.end();
        self.keys = File::open("/dev/null").unwrap();
    }

    /// Asserts a clean end, on a terminal that nobody sees any more.
    pub(super) fn ends_unseen(mut self) {
        let status = wait_for("the end", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
    }

    pub(super) fn wait_for(&self, part: &str) -> String {
        wait_for(&format!("`{part}` on the screen"), || {
            let screen = self.screen();
            screen.contains(part).then_some(screen)
        })
    }

    /// Asserts a clean end and restored terminal settings.
    pub(super) fn ends(mut self) {
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
