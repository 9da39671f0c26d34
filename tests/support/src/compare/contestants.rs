//! Who is compared, and how each is started on a slot and topics of its own.
//!
//! Input: a [`Task`]. Output: a [`Process`]. Invariant: no command line has a password; a process ends with its value.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use postrider_sandbox::postgres::{Address, Cluster};
use postrider_sandbox::spawn::spawn;

use super::debezium;
use super::rows::POLLED;
use crate::connect::Connect;
use crate::java::Purpose;
use crate::kafka::Kafka;
use crate::{root, topic};

/// How Postgres is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Unix,
}

/// Who is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contestant {
    /// `pg_recvlogical`, which throws away what it reads: how fast the server can send.
    Ceiling(Transport),
    AtLeastOnce(Transport),
    ExactlyOnce(Transport),
    /// At least once, without windows: a backlog is streamed as live rows are.
    Streamed,
    /// The relay as a polling publisher.
    Poll,
    DebeziumDefault,
    DebeziumTuned,
    /// A relay as one writes it by hand in Go: `benches/compare/main.go`.
    Go,
    /// Nobody: who commits a row sends it to Kafka itself after that. What the servers and the machine take by themselves.
    Writer,
}

impl Contestant {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ceiling(Transport::Tcp) => "pg_recvlogical_tcp",
            Self::Ceiling(Transport::Unix) => "pg_recvlogical_unix",
            Self::AtLeastOnce(Transport::Tcp) => "postrider_at_least_once_tcp",
            Self::AtLeastOnce(Transport::Unix) => "postrider_at_least_once_unix",
            Self::ExactlyOnce(Transport::Tcp) => "postrider_exactly_once_tcp",
            Self::ExactlyOnce(Transport::Unix) => "postrider_exactly_once_unix",
            Self::Streamed => "postrider_streamed_tcp",
            Self::Poll => "postrider_poll",
            Self::DebeziumDefault => "debezium_default",
            Self::DebeziumTuned => "debezium_tuned",
            Self::Go => "go_pglogrepl_franz",
            Self::Writer => "writer_alone",
        }
    }

    pub(super) const fn is_debezium(self) -> bool {
        matches!(self, Self::DebeziumDefault | Self::DebeziumTuned)
    }

    /// Whether it reads the log from a slot.
    pub(super) const fn has_slot(self) -> bool {
        !matches!(self, Self::Poll | Self::Writer)
    }

    /// Whether it ends by itself when all is delivered.
    pub(super) const fn ends(self) -> bool {
        !self.is_debezium() && !matches!(self, Self::Go)
    }

    pub(super) const fn has_topics(self) -> bool {
        !matches!(self, Self::Ceiling(_))
    }

    const fn transport(self) -> Transport {
        match self {
            Self::Ceiling(transport)
            | Self::AtLeastOnce(transport)
            | Self::ExactlyOnce(transport) => transport,
            _ => Transport::Tcp,
        }
    }
}

/// The servers of a comparison, and the programs.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) kafka: Kafka,
    pub(super) postrider: PathBuf,
    /// Where the jars of Kafka Connect and Debezium lie.
    pub(super) debezium: PathBuf,
    pub(super) worker_purpose: Purpose,
    /// The relay in Go, or why there is none.
    pub(super) go: Result<PathBuf, String>,
}

/// What a contestant is to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) slot: String,
    /// What its topics begin with.
    pub(super) prefix: String,
    /// Ends at this position, if it can; follows the log without.
    pub(super) end: Option<String>,
}

/// A contestant at work.
#[derive(Debug)]
pub(super) enum Process {
    Program {
        child: Child,
        command: Box<Command>,
        log: File,
    },
    Worker(Box<Connect>),
    /// The process that commits rows: this one.
    Own,
}

impl Stage {
    /// What is done once, before the first start.
    pub(super) fn prepare(&self, contestant: Contestant, task: &Task) {
        if matches!(contestant, Contestant::ExactlyOnce(_)) {
            self.adopt(contestant, task);
        }
    }

    pub(super) fn start(&self, contestant: Contestant, task: &Task) -> Process {
        if contestant.is_debezium() {
            return Process::Worker(Box::new(debezium::start(self, contestant, task)));
        }
        if contestant == Contestant::Writer {
            return Process::Own;
        }
        let mut command = match contestant {
            Contestant::Ceiling(_) => self.receive(contestant, task),
            Contestant::Go => self.by_hand(task),
            _ => self.relay("run", contestant, task),
        };
        if task.end.is_some() && contestant.ends() && contestant.has_topics() {
            command.arg("--once");
        }
        let log = tempfile::tempfile().unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone().unwrap());
        let child = spawn(&mut command).unwrap();
        Process::Program { child, command: Box::new(command), log }
    }

    fn receive(&self, contestant: Contestant, task: &Task) -> Command {
        let address = self.cluster.address();
        let shown = Address { password: None, ..address.clone() };
        let mut command = Command::new(self.cluster.binaries().join("pg_recvlogical"));
        command
            .args(["--start", "--no-loop", "-f", "/dev/null", "--slot", &task.slot])
            .args(["-o", "proto_version=1", "-o", "publication_names=postrider"])
            .args(task.end.iter().map(|end| format!("--endpos={end}")))
            .args(["-d", &url(&shown, contestant.transport())])
            .envs(address.password.map(|password| ("PGPASSWORD", password)));
        command
    }

    fn by_hand(&self, task: &Task) -> Command {
        let mut command = Command::new(self.go.as_ref().unwrap());
        command
            .env("DSN", format!("{}?replication=database", self.cluster.url()))
            .env("BROKERS", self.kafka.bootstrap())
            .env("SLOT", &task.slot)
            .env("PREFIX", &task.prefix)
            .env("LINGER_MS", if task.end.is_some() { "5" } else { "0" });
        command
    }

    /// A command of the relay. All that is not said here is as it comes.
    fn relay(&self, name: &str, contestant: Contestant, task: &Task) -> Command {
        let mut command = Command::new(&self.postrider);
        for (variable, _) in std::env::vars() {
            if variable.starts_with("PG") || variable.starts_with("POSTRIDER_") {
                command.env_remove(variable);
            }
        }
        let source = url(&self.cluster.address(), contestant.transport());
        command.arg(name).env("POSTRIDER_SOURCE__URL", source).current_dir("/");
        for setting in self.settings(contestant, task) {
            command.args(["--set", &setting]);
        }
        command
    }

    fn settings(&self, contestant: Contestant, task: &Task) -> Vec<String> {
        let Task { slot, prefix, .. } = task;
        let mut settings = vec![
            format!("source.slot={slot}"),
            format!("kafka.brokers={}", self.kafka.bootstrap()),
            format!("route.topic={prefix}${{routedByValue}}"),
            format!("dead_letters.topic={prefix}dead-letters"),
            format!("progress.topic={}", progress(prefix)),
            "http.bind=".to_owned(),
            "log.level=warn".to_owned(),
        ];
        if matches!(contestant, Contestant::ExactlyOnce(_)) {
            settings.push("kafka.delivery=exactly_once".to_owned());
        }
        if contestant == Contestant::Streamed {
            settings.push("source.catch_up=false".to_owned());
        }
        if contestant == Contestant::Poll {
            settings.push("source.mode=poll".to_owned());
            settings.push(format!("source.tables=public.{POLLED}"));
            settings.push("outbox.order_by=sequence".to_owned());
            settings.push(format!("source.poll.notify={POLLED}"));
        }
        settings
    }

    /// What each run of the relay has been told, for the report.
    pub(super) fn relay_settings(&self, contestant: Contestant) -> String {
        let (slot, prefix) = ("SLOT".to_owned(), "PREFIX.".to_owned());
        self.settings(contestant, &Task { slot, prefix, end: None }).join("\n")
    }

    /// Takes the slot's position for the progress that exactly-once delivery begins with.
    fn adopt(&self, contestant: Contestant, task: &Task) {
        let compacted = [("cleanup.policy", "compact")];
        topic::create(&self.kafka.bootstrap(), &progress(&task.prefix), 1, &compacted);
        let output = self.relay("adopt", contestant, task).arg("--execute").output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "adopt: {words}");
    }

    /// Makes what polling needs of its table.
    pub(super) fn set_up_polling(&self) {
        let task = Task { slot: "none".to_owned(), prefix: "none.".to_owned(), end: None };
        let output = self.relay("setup", Contestant::Poll, &task).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "setup: {words}");
    }
}

/// Compiles the relay in Go.
pub(super) fn build_go() -> Result<PathBuf, String> {
    let folder = root().join("target/compare");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let binary = folder.join("go_pglogrepl_franz");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&binary).arg(".").current_dir(root().join("benches/compare"));
    // Nothing of it needs C.
    build.env("CGO_ENABLED", "0").stdin(Stdio::null());
    let output = build.output().map_err(|error| format!("go: {error}"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.lines().last().unwrap_or_default();
    output.status.success().then_some(binary).ok_or_else(|| format!("go build: {last}"))
}

fn progress(prefix: &str) -> String {
    format!("{prefix}progress")
}

fn url(address: &Address, transport: Transport) -> String {
    match transport {
        Transport::Tcp => address.url(),
        Transport::Unix => address.unix_url(),
    }
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        match self {
            Self::Program { child, .. } => child.id(),
            Self::Worker(connect) => connect.id(),
            Self::Own => std::process::id(),
        }
    }

    /// Why it does not run any more, unless it has ended as it should.
    pub(super) fn failure(&mut self) -> Option<String> {
        match self {
            Self::Program { child, log, .. } => {
                let status = child.try_wait().unwrap()?;
                (!status.success()).then(|| format!("{status}: {}", words(log)))
            }
            Self::Worker(connect) => connect.failure(),
            Self::Own => None,
        }
    }

    /// Whether it has ended by itself. Of one that has, nobody has asked for its status yet, so that its figures are
    /// still there.
    pub(super) fn has_ended(&self) -> bool {
        let stat =
            std::fs::read_to_string(Path::new("/proc").join(self.id().to_string()).join("stat"));
        // After the name, which is in parentheses.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
    }

    /// kill -9, and a start at once.
    pub(super) fn kill_and_start(&mut self) {
        match self {
            Self::Program { child, command, .. } => {
                child.kill().unwrap();
                child.wait().unwrap();
                *child = spawn(command).unwrap();
            }
            Self::Worker(connect) => connect.kill_and_start(),
            Self::Own => unreachable!("it runs where nothing is killed"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Program { child, .. } = self {
            // Killing fails only for a process that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn words(log: &mut File) -> String {
    let mut text = String::new();
    log.rewind().unwrap();
    let _ = log.read_to_string(&mut text);
    text
}
