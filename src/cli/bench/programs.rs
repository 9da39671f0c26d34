//! Runs the embedded broker and the relay as child processes, so that the benchmark does not measure
//! itself.
//!
//! Input: topics, addresses, settings (`RelayTarget`). Output: `EmbeddedBroker::start` returns a broker
//! and its address; `drain` delivers what a slot has with `run --once` and returns its summary and resource
//! use; `carry` starts a relay that runs until its guard is dropped. For exactly-once delivery both run
//! `adopt` first, which stores the slot's position as progress.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::drain::{DrainError, ResourceUsage, run_measured};
use super::wal_load;
use crate::set_source;

/// Partitions of each topic.
pub(super) const PARTITIONS: u32 = 3;
/// No drain of a sensible size takes longer.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_mins(10);

/// Why a process is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    /// It did not start.
    #[error("cannot start {what}")]
    Start {
        /// Which.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// It said something else than expected.
    #[error("{what} did not answer as expected: {answer}")]
    Answer {
        /// Which.
        what: &'static str,
        /// What it said.
        answer: String,
    },
    /// A drain.
    #[error(transparent)]
    Drain(#[from] DrainError),
}

/// Ends a process with its owner.
pub(super) struct ChildGuard(Child);

impl ChildGuard {
    /// The process's number.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Already gone is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An embedded broker; it ends when dropped.
pub(super) struct EmbeddedBroker {
    /// Where it is reached.
    pub(super) bootstrap: String,
    _process: ChildGuard,
    /// Closing it ends the process too.
    _input: ChildStdin,
}

/// What `broker` prints.
#[derive(Deserialize)]
struct Address {
    bootstrap: String,
}

impl EmbeddedBroker {
    /// Starts one with the topics of a load, and the topic of progress.
    pub(super) fn start(topics: u32) -> Result<Self, ProgramError> {
        let start = |source| ProgramError::Start { what: "the embedded broker", source };
        let mut command = Command::new(this_program()?);
        command.args(["broker", "--partitions", &PARTITIONS.to_string()]);
        for topic in wal_load::topics(topics) {
            command.args(["--topic", &topic]);
        }
        command.args(["--topic", &format!("{PROGRESS_TOPIC}:1")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(start)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let guard = ChildGuard(child);
        let mut answer = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut answer).map_err(start)?;
        }
        match (stdin, serde_json::from_str::<Address>(&answer)) {
            (Some(input), Ok(Address { bootstrap })) => {
                Ok(Self { bootstrap, _process: guard, _input: input })
            }
            _ => Err(ProgramError::Answer { what: "the embedded broker", answer }),
        }
    }
}

/// Where the benches have progress kept.
const PROGRESS_TOPIC: &str = "BenchProgress";

/// A relay's target.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelayTarget<'a> {
    /// URL of the database.
    pub(super) source: &'a str,
    /// The slot.
    pub(super) slot: &'a str,
    /// Addresses of the brokers.
    pub(super) bootstrap: &'a str,
    /// Further settings, as for `run --set`; the last of one name wins.
    pub(super) settings: &'a [String],
}

/// What `run --once --output json` prints.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct RunSummary {
    /// Records that the brokers confirmed.
    pub(super) confirmed: u64,
    /// Dead letters among them.
    pub(super) dead_letters: u64,
    /// From the begin of streaming to the end.
    pub(super) streaming_seconds: f64,
}

/// Drains a slot with `run --once`; `postmaster` is the server's process.
pub(super) fn drain(
    target: RelayTarget<'_>,
    postmaster: u32,
) -> Result<(ResourceUsage, RunSummary), ProgramError> {
    adopt(target)?;
    let mut command = command("run", target)?;
    command.args(["--once", "--output", "json"]).stdout(Stdio::piped());
    let (usage, child) = run_measured(command, postmaster, DRAIN_LIMIT)?;
    let mut answer = String::new();
    if let Some(stdout) = child.stdout {
        // The summary is one short line: the pipe held it until now.
        let _ = BufReader::new(stdout).read_line(&mut answer);
    }
    let summary = serde_json::from_str(&answer)
        .map_err(|_| ProgramError::Answer { what: "the relay", answer })?;
    Ok((usage, summary))
}

/// Starts a relay that carries the stream until it is dropped.
pub(super) fn carry(target: RelayTarget<'_>) -> Result<ChildGuard, ProgramError> {
    adopt(target)?;
    let mut command = command("run", target)?;
    let child = command.stdout(Stdio::null()).spawn();
    child.map(ChildGuard).map_err(|source| ProgramError::Start { what: "the relay", source })
}

/// Takes the slot's position for the progress that exactly-once delivery begins with.
fn adopt(target: RelayTarget<'_>) -> Result<(), ProgramError> {
    const WHAT: &str = "adopt";
    if !target.settings.iter().any(|setting| setting == "kafka.delivery=exactly_once") {
        return Ok(());
    }
    let output = command(WHAT, target)?
        .arg("--execute")
        .output()
        .map_err(|source| ProgramError::Start { what: WHAT, source })?;
    if output.status.success() {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(ProgramError::Answer { what: WHAT, answer })
}

/// A command of this program, in these target.
fn command(name: &str, target: RelayTarget<'_>) -> Result<Command, ProgramError> {
    let RelayTarget { source, slot, bootstrap, settings } = target;
    let mut command = Command::new(this_program()?);
    command.arg(name).stdin(Stdio::null());
    set_source(&mut command, source);
    let usual = [
        format!("source.slot={slot}"),
        format!("kafka.brokers={bootstrap}"),
        format!("progress.topic={PROGRESS_TOPIC}"),
        "source.create=never".to_owned(),
        "http.bind=".to_owned(),
        // Not by -q, so that RUST_LOG and `settings` may ask for more.
        "log.level=warn".to_owned(),
    ];
    for setting in usual.iter().chain(settings) {
        command.args(["--set", setting]);
    }
    Ok(command)
}

fn this_program() -> Result<PathBuf, ProgramError> {
    std::env::current_exe().map_err(|source| ProgramError::Start { what: "this program", source })
}
