//! The postmaster of a temporary cluster as a child process, ended and reaped on drop.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Stop;
use crate::SandboxError;
use crate::spawn::spawn;

const POLL: Duration = Duration::from_millis(5);

const LAST_WAIT: Duration = Duration::from_secs(5);

const LOG_TAIL_LINES: usize = 12;

#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// The own process group keeps the terminal's Ctrl-C away.
    pub(super) fn spawn(command: &mut Command, log: &Path) -> Result<Self, SandboxError> {
        // Truncated, so that an error shows the messages of this start.
        let output = File::create(log).map_err(SandboxError::file("write", log))?;
        let errors = output.try_clone().map_err(SandboxError::file("write", log))?;
        command.process_group(0).stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = spawn(command).map_err(|source| SandboxError::Spawn {
            program: command.get_program().into(),
            source,
        })?;
        Ok(Self { child, log: log.to_path_buf() })
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ready once the pid file says so (miscadmin.h, `LOCK_FILE_LINE_PM_STATUS`). The file of a
    /// killed predecessor names another process.
    pub(super) fn wait_ready(&mut self, data: &Path, limit: Duration) -> Result<(), SandboxError> {
        let file = data.join("postmaster.pid");
        let process = self.process().to_string();
        let deadline = Instant::now() + limit;
        loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            if lines.next() == Some(&process) && lines.nth(6) == Some("ready") {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                return Err(SandboxError::Ended {
                    program: "postgres".to_owned(),
                    status: status.to_string(),
                    log: log_tail(&self.log),
                });
            }
            if Instant::now() > deadline {
                return Err(self.timed_out("become ready", limit));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Signals of pg_ctl: SIGINT fast, SIGQUIT immediate.
    pub(super) fn signal(&self, how: Stop) -> Result<(), SandboxError> {
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
            Stop::Kill => Signal::KILL,
        };
        let Some(pid) = i32::try_from(self.process()).ok().and_then(Pid::from_raw) else {
            return Ok(());
        };
        kill_process(pid, signal)
            .map_err(|errno| SandboxError::file("signal the server of", &self.log)(errno.into()))
    }

    pub(super) fn wait(&mut self, limit: Duration) -> Result<(), SandboxError> {
        let deadline = Instant::now() + limit;
        while self.ended()?.is_none() {
            if Instant::now() > deadline {
                return Err(self.timed_out("stop", limit));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, SandboxError> {
        self.child.try_wait().map_err(SandboxError::file("wait for the server of", &self.log))
    }

    fn timed_out(&self, what: &'static str, limit: Duration) -> SandboxError {
        SandboxError::TimedOut {
            program: "postgres".to_owned(),
            what,
            limit,
            log: log_tail(&self.log),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that the server has already ended.
        let _ = self.signal(Stop::Immediate);
        if self.wait(LAST_WAIT).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(super) fn log_tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(LOG_TAIL_LINES);
    lines.into_iter().skip(skipped).collect::<Vec<_>>().join("\n")
}
