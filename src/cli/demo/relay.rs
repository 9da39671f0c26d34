//! Runs the demo's relay: `postrider run` as a child process, so that it can be killed as in a
//! crash. The relay ends with the demo, even if the demo is killed (`Watchdog`).

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::set_source;
use postrider_sandbox::watchdog::{LastSignal, Watchdog};

pub(super) struct RelayProcess {
    source: String,
    arguments: Vec<OsString>,
    child: Child,
    watchdog: Watchdog,
    kills: u32,
}

impl RelayProcess {
    pub(super) fn start(
        source: String,
        arguments: Vec<OsString>,
        watchdog: Watchdog,
    ) -> io::Result<Self> {
        let child = spawn(&source, &arguments)?;
        let mut relay = Self { source, arguments, child, watchdog, kills: 0 };
        relay.hold()?;
        Ok(relay)
    }

    /// Sends SIGKILL, as the kernel's OOM killer would, and restarts the relay.
    pub(super) fn kill_and_restart(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.kills += 1;
        self.release()?;
        self.child = spawn(&self.source, &self.arguments)?;
        self.hold()
    }

    pub(super) const fn kills(&self) -> u32 {
        self.kills
    }

    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends SIGTERM, and SIGKILL after `grace`.
    pub(super) fn stop(mut self, grace: Duration) -> io::Result<ExitStatus> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + grace;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.release()?;
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn hold(&mut self) -> io::Result<()> {
        self.watchdog.hold(self.child.id(), LastSignal::Kill).map_err(io::Error::other)
    }

    fn release(&mut self) -> io::Result<()> {
        self.watchdog.free(self.child.id()).map_err(io::Error::other)
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(source: &str, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").arg("-q").args(arguments);
    set_source(&mut command, source);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}
