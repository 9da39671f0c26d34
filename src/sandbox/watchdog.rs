//! Stops temporary servers and removes their folder when this process ends, even by SIGKILL.
//!
//! `Drop` does not run after a SIGKILL or for a static. Therefore a small shell waits at the read
//! end of a pipe. Only this process has the write end, which is close-on-exec. The shell ignores
//! the terminal's signals, so that Ctrl-C reaches the relay first.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::SandboxError;
use super::spawn::spawn;

/// Reads `hold PID SIGNAL` and `free PID` lines. At the end of input, signals the held processes,
/// and kills them after five seconds. Then removes the folder.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
held=
while read -r verb pid signal; do
  case "$verb" in
    hold) held="$held $pid/$signal" ;;
    free)
      kept=
      for h in $held; do [ "${h%/*}" = "$pid" ] || kept="$kept $h"; done
      held=$kept ;;
  esac
done
for h in $held; do kill -s "${h#*/}" "${h%/*}"; done
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
  alive=
  for h in $held; do kill -0 "${h%/*}" && alive=yes; done
  [ -n "$alive" ] || break
  sleep 0.2
done
for h in $held; do kill -s KILL "${h%/*}"; done
rm -rf -- "$1"
"#;

/// A folder and its processes, removed when this is dropped or this process ends in any way.
#[derive(Debug)]
pub struct Watchdog {
    folder: PathBuf,
    shell: Child,
}

/// Signal that ends a held process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastSignal {
    /// PostgreSQL's immediate shutdown.
    Quit,
    /// SIGKILL.
    Kill,
}

impl Watchdog {
    /// Ties `folder` to this process. The folder will be removed.
    pub fn new(folder: &Path) -> Result<Self, SandboxError> {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", SCRIPT, "watchdog"])
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let shell = spawn(&mut shell)
            .map_err(|source| SandboxError::Spawn { program: "/bin/sh".into(), source })?;
        Ok(Self { folder: folder.to_path_buf(), shell })
    }

    /// The tied folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ties a process to this process.
    pub fn hold(&mut self, process: u32, signal: LastSignal) -> Result<(), SandboxError> {
        let signal = match signal {
            LastSignal::Quit => "QUIT",
            LastSignal::Kill => "KILL",
        };
        self.say(&format!("hold {process} {signal}\n"))
    }

    /// Unties a process that was waited for, because its id may be reused.
    pub fn free(&mut self, process: u32) -> Result<(), SandboxError> {
        self.say(&format!("free {process}\n"))
    }

    fn say(&mut self, line: &str) -> Result<(), SandboxError> {
        let Some(pipe) = self.shell.stdin.as_mut() else { return Ok(()) };
        pipe.write_all(line.as_bytes())
            .map_err(SandboxError::file("write to the watchdog of", &self.folder))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn dropping_ends_what_is_held_spares_what_is_free_and_removes_the_folder() {
        let folder = tempfile::tempdir().unwrap().keep();
        let (mut held, mut freed) = (sleeper(), sleeper());
        let mut watchdog = Watchdog::new(&folder).unwrap();
        watchdog.hold(freed.id(), LastSignal::Kill).unwrap();
        watchdog.hold(held.id(), LastSignal::Quit).unwrap();
        watchdog.free(freed.id()).unwrap();
        // Reaped during the drop, because `kill -0` succeeds for a zombie.
        let reaper = std::thread::spawn(move || held.wait().unwrap());
        drop(watchdog);
        assert!(!reaper.join().unwrap().success());
        assert!(!folder.exists());
        assert_eq!(freed.try_wait().unwrap(), None, "a freed process must live on");
        freed.kill().unwrap();
        freed.wait().unwrap();
    }

    #[test]
    fn the_shell_acts_at_once_when_the_pipe_ends() {
        let folder = tempfile::tempdir().unwrap().keep();
        let start = Instant::now();
        drop(Watchdog::new(&folder).unwrap());
        assert!(start.elapsed() < Duration::from_secs(20));
        assert!(!folder.exists());
    }
}
