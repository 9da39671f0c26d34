//! Runs the embedded broker and the relay as child processes, so that the benchmark does not
//! measure itself.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::drain::{DrainError, ResourceUsage, run_measured};
use super::wal_load;
use crate::set_source;

pub(super) const PARTITIONS: u32 = 3;
/// Time that suffices for a drain of any sensible size.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("cannot start {what}")]
    Start {
        /// Name of the program.
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{what} did not answer as expected: {answer}")]
    Answer {
        /// Name of the program.
        what: &'static str,
        answer: String,
    },
    #[error(transparent)]
    Drain(#[from] DrainError),
}

pub(super) struct ChildGuard(Child);

impl ChildGuard {
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) struct EmbeddedBroker {
    pub(super) bootstrap: String,
    _process: ChildGuard,
    /// The process also ends when this is closed.
    _input: ChildStdin,
}

#[derive(Deserialize)]
struct Address {
    bootstrap: String,
}

impl EmbeddedBroker {
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

const PROGRESS_TOPIC: &str = "BenchProgress";

#[derive(Debug, Clone, Copy)]
pub(super) struct RelayTarget<'a> {
    pub(super) source: &'a str,
    pub(super) slot: &'a str,
    pub(super) bootstrap: &'a str,
    /// As for `run --set`; the last of one name wins.
    pub(super) settings: &'a [String],
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct RunSummary {
    pub(super) confirmed: u64,
    pub(super) dead_letters: u64,
    pub(super) streaming_seconds: f64,
}

/// `postmaster` is the server's process.
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
        // The pipe holds the summary, which is one short line.
        let _ = BufReader::new(stdout).read_line(&mut answer);
    }
    let summary = serde_json::from_str(&answer)
        .map_err(|_| ProgramError::Answer { what: "the relay", answer })?;
    Ok((usage, summary))
}

pub(super) fn carry(target: RelayTarget<'_>) -> Result<ChildGuard, ProgramError> {
    adopt(target)?;
    let mut command = command("run", target)?;
    let child = command.stdout(Stdio::null()).spawn();
    child.map(ChildGuard).map_err(|source| ProgramError::Start { what: "the relay", source })
}

/// Stores the slot's position, because exactly-once delivery begins with progress.
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
        // Unlike -q, this lets RUST_LOG and `settings` raise the level.
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
