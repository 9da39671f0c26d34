//! Runs a command that reads a slot to its end ("drains" it), as a child process, and measures it
//! from outside.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use postrider_sandbox::proc;

/// Short enough to miss little of a process's last moments.
const SAMPLE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ResourceUsage {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    /// CPU time from the last sample.
    pub(super) walsender_cpu: Duration,
    /// Peak resident memory of the process.
    pub(super) peak_rss_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DrainError {
    #[error("cannot start {program}")]
    Start {
        /// Path of the program.
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} ended with {status}")]
    Failed {
        /// Path of the program.
        program: String,
        status: std::process::ExitStatus,
    },
    #[error("{program} was still running after {seconds} s")]
    Stuck {
        /// Path of the program.
        program: String,
        seconds: u64,
    },
}

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
