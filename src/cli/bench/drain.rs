//! Runs a command that reads a slot to its end ("drains" it), as a child process, and measures it.
//!
//! Input: the command, the postmaster's process id, a time limit. Output: `ResourceUsage`: wall time, CPU time
//! and peak memory of the child, and CPU time of its walsender; or a `DrainError` if it does not start,
//! fails or exceeds the limit. Both processes are sampled from outside, so that the measurement does not
//! measure itself.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use postrider_sandbox::proc;

/// Distance of two samples of a process: fine enough to miss little of its last moments.
const SAMPLE: Duration = Duration::from_millis(5);

/// What a drain took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ResourceUsage {
    /// From start of the process to its exit.
    pub(super) wall: Duration,
    /// User and system time of the process.
    pub(super) cpu: Duration,
    /// User and system time of the walsender process, as last seen.
    pub(super) walsender_cpu: Duration,
    /// Peak resident memory of the process.
    pub(super) peak_rss_bytes: u64,
}

/// Why a drain has no figures.
#[derive(Debug, thiserror::Error)]
pub(super) enum DrainError {
    /// The program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Its path.
        program: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// It ended with an error of its own.
    #[error("{program} ended with {status}")]
    Failed {
        /// Its path.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// It did not come to an end.
    #[error("{program} was still running after {seconds} s")]
    Stuck {
        /// Its path.
        program: String,
        /// The limit.
        seconds: u64,
    },
}

/// Starts `command`, watches it to its end, and returns its figures and standard output's owner.
pub(super) fn run_measured(
    mut command: Command,
    postmaster: u32,
    limit: Duration,
) -> Result<(ResourceUsage, Child), DrainError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let mut child =
        command.spawn().map_err(|source| DrainError::Start { program: program.clone(), source })?;
    let mut usage = ResourceUsage::default();
    loop {
        let seen = proc::stat(child.id()).unwrap_or_default();
        usage.cpu = usage.cpu.max(seen.cpu);
        if seen.is_zombie {
            usage.wall = start.elapsed();
            break;
        }
        if let Some(peak) = proc::peak_rss_bytes(child.id()) {
            usage.peak_rss_bytes = peak;
        }
        if let Some(cpu) = proc::walsender_cpu(postmaster) {
            usage.walsender_cpu = usage.walsender_cpu.max(cpu);
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Err(DrainError::Stuck { program, seconds: limit.as_secs() });
        }
        std::thread::sleep(SAMPLE);
    }
    match child.wait() {
        Ok(status) if status.success() => Ok((usage, child)),
        Ok(status) => Err(DrainError::Failed { program, status }),
        Err(source) => Err(DrainError::Start { program, source }),
    }
}
