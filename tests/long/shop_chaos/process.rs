//! A service of the shop as a process: started, killed, frozen, watched by its log.
//!
//! Input: arguments and variables. Output: where it answers, what it warned of, what it counted. Invariant:
//! a process that ends by itself is noticed; none outlives this program, whatever ends it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::sandbox::watchdog::{LastSignal, Watchdog};
use rustix::process::{Pid, Signal, kill_process};

use crate::shop_chaos::clients::ServiceAddress;
use crate::shop_chaos::http;
use crate::shop_chaos::settings;
use support::wait::within;

/// How long a service may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How long reading its metrics may take, right before it is killed.
const ASK_LIMIT: Duration = Duration::from_millis(500);

/// Last lines of a log that are kept for diagnosis.
const LINES_KEPT: usize = 60;

/// Its log line when it listens.
const SERVING: &str = "serving";

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Frozen,
    Dead,
}

/// One of two or more processes of a service.
pub(crate) struct Service {
    /// Such as `payments 2`.
    pub(crate) name: String,
    pub(crate) door: ServiceAddress,
    pub(crate) state: State,
    arguments: Vec<String>,
    variables: Vec<(&'static str, String)>,
    child: Option<Child>,
    log: Arc<Mutex<Log>>,
    /// Metrics of former runs of the process, by name.
    counted: BTreeMap<String, u64>,
}

/// The log of all its runs.
#[derive(Debug, Default)]
struct Log {
    last: VecDeque<String>,
    /// Warnings and errors, by text.
    warnings: BTreeMap<String, u32>,
}

impl Service {
    /// One that is not started yet.
    pub(crate) fn new(
        name: String,
        arguments: Vec<String>,
        variables: Vec<(&'static str, String)>,
    ) -> Self {
        Self {
            name,
            door: ServiceAddress::default(),
            state: State::Dead,
            arguments,
            variables,
            child: None,
            log: Arc::default(),
            counted: BTreeMap::new(),
        }
    }

    /// Starts it; its log says when it listens.
    pub(crate) fn start(&mut self, watchdog: &mut Watchdog) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_shop"))
            .args(&self.arguments)
            .envs(self.variables.iter().cloned())
            .env("RUST_LOG", settings::log())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        watchdog.hold(child.id(), LastSignal::Kill).unwrap();
        follow(child.stderr.take().unwrap(), Arc::clone(&self.log), Arc::clone(&self.door));
        self.child = Some(child);
        self.state = State::Running;
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, watchdog: &mut Watchdog) {
        self.count();
        let Some(mut child) = self.child.take() else { return };
        child.kill().unwrap();
        child.wait().unwrap();
        watchdog.free(child.id()).unwrap();
        *self.door.lock().unwrap() = None;
        self.state = State::Dead;
    }

    /// Stops it in the middle of whatever it does.
    pub(crate) fn freeze(&mut self) {
        self.signal(Signal::STOP);
        self.state = State::Frozen;
    }

    /// Resumes it.
    pub(crate) fn thaw(&mut self) {
        self.signal(Signal::CONT);
        self.state = State::Running;
    }

    /// Sends SIGTERM.
    pub(crate) fn request_stop(&mut self) {
        self.count();
        self.signal(Signal::TERM);
    }

    /// Waits for the end that it was asked for.
    pub(crate) fn wait_stopped(&mut self, watchdog: &mut Watchdog) -> Option<ExitStatus> {
        within(STOP_LIMIT, || self.ended(watchdog))
    }

    /// How it ended, if it did, by itself or because it was asked to.
    pub(crate) fn ended(&mut self, watchdog: &mut Watchdog) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().unwrap()?;
        watchdog.free(child.id()).unwrap();
        self.child = None;
        *self.door.lock().unwrap() = None;
        self.state = State::Dead;
        Some(status)
    }

    /// Whether it listens, and its database answers.
    pub(crate) fn is_ready(&self) -> bool {
        let address = *self.door.lock().unwrap();
        let ask = |address| http::get(address, "/readyz", ASK_LIMIT).ok();
        address.and_then(ask).is_some_and(|answer| answer.status == 200)
    }

    /// Metrics of all its runs, as last read.
    pub(crate) fn counted(&self) -> &BTreeMap<String, u64> {
        &self.counted
    }

    /// Warnings and errors of all its runs.
    pub(crate) fn warnings(&self) -> BTreeMap<String, u32> {
        self.log.lock().unwrap().warnings.clone()
    }

    /// The last lines of its log.
    pub(crate) fn last_log_lines(&self) -> String {
        let log = self.log.lock().unwrap();
        let lines: Vec<String> = log.last.iter().map(|line| format!("  {line}")).collect();
        lines.join("\n")
    }

    /// Adds the metrics of this run; it must not be used any further.
    fn count(&mut self) {
        let address = *self.door.lock().unwrap();
        if self.state != State::Running {
            return;
        }
        let Some(answer) = address.and_then(|at| http::get(at, "/metrics", ASK_LIMIT).ok()) else {
            return;
        };
        for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, value)) = line.split_once(' ') {
                *self.counted.entry(name.to_owned()).or_default() +=
                    value.parse::<u64>().unwrap_or(0);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let Some(child) = &self.child else { return };
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It has ended already where this fails, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads a log to its end, on a thread of its own.
fn follow(output: impl Read + Send + 'static, log: Arc<Mutex<Log>>, door: ServiceAddress) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line.contains(SERVING)
                && let Some(address) = line.split("address=").nth(1)
            {
                *door.lock().unwrap() = address.trim().parse().ok();
            }
            log.lock().unwrap().note(line);
        }
    });
}

impl Log {
    fn note(&mut self, line: String) {
        // A time, a level, where it comes from, and a text; or words of a panic.
        let mut words = line.split_whitespace().skip(1);
        if !matches!(words.next(), Some("INFO" | "DEBUG" | "TRACE")) {
            let text: Vec<&str> = line.split_whitespace().skip(1).collect();
            *self.warnings.entry(general(&text.join(" "))).or_default() += 1;
        }
        if self.last.len() == LINES_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

/// The same text for all that differ by numbers alone: ids, offsets, ports.
fn general(text: &str) -> String {
    let is_name = |word: &&str| !word.chars().any(|char| char.is_ascii_digit());
    text.split(' ').filter(is_name).collect::<Vec<_>>().join(" ")
}
