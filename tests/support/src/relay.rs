//! The `postrider` binary as a process: configured by environment variables, watched by its log.
//!
//! Invariant: a WARN or ERROR line that the test did not announce fails it, and the process ends
//! with its [`Running`] value.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use postrider_sandbox::postgres::Address;
use postrider_sandbox::spawn::spawn;
use rustix::process::{Pid, Signal, kill_process};

use super::wait::{wait_until, within};

/// How long a relay may take to do what a test waits for, on a machine busy with other tests.
const LIMIT: Duration = Duration::from_mins(3);

/// A relay's configuration.
#[derive(Debug, Clone)]
pub struct Relay {
    /// Where `postrider` lies.
    binary: &'static str,
    variables: Vec<(String, String)>,
    expected: Vec<String>,
    allowed: Vec<String>,
    /// What a shell does first, if anything.
    shell: String,
    /// Leave a slot that the test created as it is, though the relay would refuse it.
    unprepared: bool,
}

impl Relay {
    /// Runs `binary`, which a test of the root package knows as `env!("CARGO_BIN_EXE_postrider")`; reads slot
    /// `slot` of publication `postrider`, writes topics that begin with `prefix`.
    pub fn new(
        binary: &'static str,
        source: &Address,
        slot: &str,
        bootstrap: &str,
        prefix: &str,
    ) -> Self {
        let mut relay = Self {
            binary,
            variables: Vec::new(),
            expected: Vec::new(),
            allowed: Vec::new(),
            shell: String::new(),
            unprepared: false,
        };
        // All tests of the relay can be run with another guarantee than the usual one.
        if let Ok(delivery) = std::env::var("RELAY_DELIVERY") {
            relay = relay.set("kafka.delivery", &delivery);
        }
        // What the relay says of brokers before 3.6, where the tests are run with those.
        if std::env::var_os("POSTRIDER_KAFKA_JARS").is_some() {
            relay = relay.allow_log("whose transactions have known flaws");
        }
        relay
            .set("source.url", &source.url())
            .set("source.slot", slot)
            .set("kafka.brokers", bootstrap)
            .set("route.topic", &format!("{prefix}${{routedByValue}}"))
            .set("dead_letters.topic", &format!("{prefix}dead-letters"))
            .set("http.bind", "127.0.0.1:0")
            .set("log.format", "json")
    }

    /// Sets an option, such as `route.by`; lists are comma-separated.
    #[must_use]
    pub fn set(mut self, option: &str, value: &str) -> Self {
        let name = format!("POSTRIDER_{}", option.to_uppercase().replace('.', "__"));
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Sets a property of the Kafka client, such as `sasl.username`.
    #[must_use]
    pub fn property(self, name: &str, value: &str) -> Self {
        let name = name.to_uppercase().replace('.', "_");
        self.variable(&format!("POSTRIDER_KAFKA__PROPERTIES__{name}"), value)
    }

    /// May create its slot, and waits for the transactions that other tests hold open on the same server.
    #[must_use]
    pub fn creates_slot(self) -> Self {
        self.set("source.create", "auto").allow_log("cannot be created while a write transaction")
    }

    /// Goes to these brokers, where users log in by PLAIN, as this one.
    #[must_use]
    pub fn log_in(self, brokers: &str, user: &str, password: &str) -> Self {
        self.set("kafka.brokers", brokers)
            .property("security.protocol", "SASL_PLAINTEXT")
            .property("sasl.mechanism", "PLAIN")
            .property("sasl.username", user)
            .property("sasl.password", password)
    }

    /// Sets an environment variable, such as `PGHOST`.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes an option back, so that it has its default.
    #[must_use]
    pub fn unset(mut self, option: &str) -> Self {
        let name = format!("POSTRIDER_{}", option.to_uppercase().replace('.', "__"));
        self.variables.retain(|(known, _)| *known != name);
        self
    }

    /// Bears with WARN and ERROR lines that contain `part`.
    #[must_use]
    pub fn allow_log(mut self, part: &str) -> Self {
        self.allowed.push(part.to_owned());
        self
    }

    /// Demands lines that contain `part`, and has with them.
    #[must_use]
    pub fn expect_log(mut self, part: &str) -> Self {
        self.expected.push(part.to_owned());
        self
    }

    /// Lets a shell do this before it becomes the relay: set limits, close files.
    #[must_use]
    pub fn after(mut self, shell: &str) -> Self {
        shell.clone_into(&mut self.shell);
        self
    }

    /// Nobody reads its stderr: a pipe in this folder, full from the start.
    #[must_use]
    pub fn unread(self, folder: &std::path::Path) -> Self {
        self.after(&format!(
            "rm -f {0}; mkfifo {0}; exec 9<>{0}; dd if=/dev/zero bs=64k count=1 >&9 2>/dev/null; exec 2>{0}",
            folder.join("pipe").display()
        ))
    }

    /// A relay that delivers exactly once and meets a slot as the test left it, even at first.
    #[must_use]
    pub fn unprepared(mut self) -> Self {
        self.unprepared = true;
        self
    }

    /// Starts `postrider` with these arguments.
    pub fn start(&self, arguments: &[&str]) -> Running {
        if !self.unprepared && arguments.contains(&"run") {
            self.prepare();
        }
        self.spawn(arguments)
    }

    /// Tests create slots themselves, and a relay that delivers exactly once refuses a slot that it
    /// knows nothing of. What comes of it is for the relay that is started then to say.
    pub fn prepare(&self) {
        static ADOPTED: Mutex<BTreeSet<[String; 2]>> = Mutex::new(BTreeSet::new());
        let wanted = ["POSTRIDER_SOURCE__SLOT", "POSTRIDER_KAFKA__BROKERS"];
        let stream = wanted.map(|name| self.variable_of(name).unwrap_or_default().to_owned());
        let exactly_once = self.variable_of("POSTRIDER_KAFKA__DELIVERY") == Some("exactly_once");
        if exactly_once && ADOPTED.lock().unwrap().insert(stream) {
            let mut adopting = self.spawn(&["adopt", "--execute"]);
            adopting.child.wait().unwrap();
            adopting.allowed.push(String::new());
        }
    }

    fn variable_of(&self, name: &str) -> Option<&str> {
        let (_, value) = self.variables.iter().rev().find(|(variable, _)| variable == name)?;
        Some(value)
    }

    /// The command, for a caller that gives it other streams.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(if self.shell.is_empty() { self.binary } else { "sh" });
        if !self.shell.is_empty() {
            command.args(["-c", &format!("{}; exec \"$0\" \"$@\"", self.shell), self.binary]);
        }
        for (name, _) in std::env::vars() {
            if name.starts_with("PG") || name.starts_with("POSTRIDER_") {
                command.env_remove(name);
            }
        }
        command.args(arguments).envs(self.variables.iter().cloned()).current_dir("/");
        command
    }

    fn spawn(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(&mut command).unwrap();
        let (lines, log_reader) = follow(child.stderr.take().unwrap());
        let (printed, print_reader) = follow(child.stdout.take().unwrap());
        Running {
            child,
            lines,
            printed,
            readers: vec![log_reader, print_reader],
            log: Vec::new(),
            expected: self.expected.clone(),
            allowed: self.allowed.clone(),
        }
    }

    /// `postrider run`
    pub fn run(&self) -> Running {
        self.start(&["run"])
    }

    /// `postrider run --once`, which must succeed.
    pub fn run_once(&self) {
        let status = self.start(&["run", "--once"]).wait();
        assert!(status.success(), "run --once: {status}");
    }
}

/// A started relay.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    /// Lines of stdout.
    printed: Receiver<String>,
    readers: Vec<JoinHandle<()>>,
    log: Vec<String>,
    expected: Vec<String>,
    allowed: Vec<String>,
}

impl Running {
    /// Waits until a log line contains `part`, and returns it.
    pub fn wait_for_log(&mut self, part: &str) -> String {
        self.wait_for_any(&[part])
    }

    /// Whether a line with this part was among those that were waited for, or passed over meanwhile.
    pub fn has_logged(&self, part: &str) -> bool {
        self.log.iter().any(|line| line.contains(part))
    }

    /// The same for one of several parts.
    pub fn wait_for_any(&mut self, parts: &[&str]) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.log.push(line.clone());
                    if parts.iter().any(|part| line.contains(part)) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no `{parts:?}` in:\n{}", self.log.join("\n"))
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("ended without `{parts:?}`:\n{}", self.log.join("\n"));
                }
            }
        }
    }

    /// The first signal: drain and end, which must succeed.
    pub fn stop(self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "after SIGTERM: {status}");
    }

    /// kill -9. What it logged until then is not judged for what it had no time to say.
    pub fn kill(mut self) {
        self.expected.clear();
        // Of one whose end was seen already, the number may be another process's by now: no signal is sent.
        self.child.kill().unwrap();
        self.wait();
    }

    /// The same, of a command that may have ended, whatever it logged.
    pub fn kill_quietly(mut self) {
        // Killing fails only for a process that has ended already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// The lines that it has written to stdout since the last call.
    pub fn printed(&self) -> impl Iterator<Item = String> {
        self.printed.try_iter()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns when the process stands still, as a failpoint that stops it has it.
    pub fn wait_frozen(&self) {
        wait_until("the process to stand still", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
            // After the name, which is in parentheses.
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        });
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Whether it has ended by itself, or was killed.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end and judges its log.
    pub fn wait(self) -> ExitStatus {
        self.wait_printed().0
    }

    /// The same, with the lines it wrote to stdout.
    pub fn wait_printed(mut self) -> (ExitStatus, Vec<String>) {
        let status = self.wait_end();
        let unexpected =
            unexpected(&self.log, &[self.expected.clone(), self.allowed.clone()].concat());
        assert!(
            unexpected.is_empty(),
            "unexpected in the log ({status}):\n{}",
            unexpected.join("\n")
        );
        for part in &self.expected {
            assert!(self.log.iter().any(|line| line.contains(part)), "`{part}` never logged");
        }
        (status, self.printed.try_iter().collect())
    }

    /// Waits for its end and returns all it wrote, for a caller that judges the log by itself.
    pub fn outcome(mut self) -> Outcome {
        let status = self.wait_end();
        let stdout: String = self.printed.try_iter().map(|line| line + "\n").collect();
        Outcome { status, stdout, log: std::mem::take(&mut self.log) }
    }

    /// The same for a relay that is told to stop as soon as `enough` says so, unless it ends before.
    pub fn outcome_once(mut self, mut enough: impl FnMut() -> bool) -> Outcome {
        wait_until("the relay to have done enough", || self.has_ended() || enough());
        if !self.has_ended() {
            self.signal(Signal::TERM);
        }
        self.outcome()
    }

    fn wait_end(&mut self) -> ExitStatus {
        let ended = within(LIMIT, || {
            self.log.extend(self.lines.try_iter());
            self.child.try_wait().unwrap()
        });
        let Some(status) = ended else { panic!("still running:\n{}", self.log.join("\n")) };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        self.log.extend(self.lines.try_iter());
        status
    }
}

/// What an ended relay leaves behind.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    /// The lines of stderr.
    pub log: Vec<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killing fails only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.log.extend(self.lines.try_iter());
            eprintln!("the relay's log:\n{}", self.log.join("\n"));
        }
    }
}

fn follow(output: impl Read + Send + 'static) -> (Receiver<String>, JoinHandle<()>) {
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Nobody listens any more once the test is over.
            let _ = sender.send(line);
        }
    });
    (lines, reader)
}

/// Lines at WARN or above, or that are no log lines at all (a panic), without the announced ones.
fn unexpected<'a>(log: &'a [String], expected: &[String]) -> Vec<&'a str> {
    let is_unexpected = |line: &&str| {
        let value: Option<serde_json::Value> = serde_json::from_str(line).ok();
        let level = value.as_ref().and_then(|value| value.get("level")?.as_str());
        !matches!(level, Some("INFO" | "DEBUG" | "TRACE"))
            && !expected.iter().any(|part| line.contains(part))
            && !value.as_ref().is_some_and(is_slow_broker)
    };
    log.iter().map(String::as_str).filter(is_unexpected).collect()
}

/// Whether the log line only says that no broker has answered yet. The relay says so after a second, and a busy machine
/// may take longer for the first answer. A connection that failed is named as the reason instead. The library closes
/// the first connection itself once it knows the brokers' ids.
pub fn is_slow_broker(line: &serde_json::Value) -> bool {
    let reason = line["reason"].as_str().unwrap_or_default();
    let is_nobodys_fault =
        reason == "no answer yet" || reason.ends_with("Decommissioning this broker");
    line["message"] == "cannot reach Kafka; retrying" && is_nobodys_fault
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_errors_and_panics_are_unexpected_unless_announced() {
        let log = [
            r#"{"level":"INFO","fields":{"message":"streaming"}}"#,
            r#"{"level":"WARN","fields":{"message":"broker lost"}}"#,
            r#"{"level":"ERROR","fields":{"message":"slot lost"}}"#,
            "thread 'main' panicked at src/main.rs",
        ]
        .map(str::to_owned);
        assert_eq!(unexpected(&log, &[]).len(), 3);
        let announced = ["broker lost".to_owned()];
        assert_eq!(unexpected(&log, &announced), [&log[2], &log[3]]);
    }

    #[test]
    fn a_broker_that_has_not_answered_yet_is_no_failure() {
        let line = |reason: &str| {
            let message = "cannot reach Kafka; retrying";
            serde_json::json!({ "level": "WARN", "message": message, "reason": reason }).to_string()
        };
        let log = [line("no answer yet"), line("Connection refused")];
        assert_eq!(unexpected(&log, &[]), [&log[1]]);
    }
}
