//! Reads a secret from a file, or from the output of a command.
//!
//! Invariant: errors contain no part of a secret. The command runs without a shell, and is killed
//! with its children after 15 seconds. Sizes are bounded. Only a regular file is opened.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::mask::mask_text;
use crate::password::Password;

/// Cloud tokens take a second or two.
const COMMAND_LIMIT: Duration = Duration::from_secs(15);
/// Tokens have a few kilobytes.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// A bundle of all authorities has a few hundred kilobytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("the file that holds the secret, {}, cannot be read: {reason}", mask_text(&.path.display().to_string()))]
    File { path: PathBuf, reason: String },
    /// The file now contains an invalid connection string, or names a missing service.
    #[error("the connection settings cannot be used any more: {0}")]
    Settings(String),
    #[error("{0}")]
    NotIssued(String),
    #[error("the password command `{program}` {reason}")]
    Command { program: String, reason: String },
}

impl SecretError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::File { .. } => Some("make it readable for the relay's user".to_owned()),
            Self::Settings(_) | Self::NotIssued(_) => None,
            Self::Command { program, .. } if program.contains(' ') => Some(
                "if these are a program and its arguments, write a list: [\"program\", \"argument\"]"
                    .to_owned(),
            ),
            Self::Command { .. } => Some(
                "run it by hand as the relay's user: it must print the password and exit with 0; \
                 what it says on stderr is not logged"
                    .to_owned(),
            ),
        }
    }
}

/// Command that runs without a shell.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordCommand(Vec<String>);

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The arguments may contain credentials of a helper program.
        write!(f, "PasswordCommand({:?})", self.program())
    }
}

impl PasswordCommand {
    pub fn new(words: Vec<String>) -> Option<Self> {
        words.first().is_some_and(|program| !program.is_empty()).then_some(Self(words))
    }

    /// Masked program, because a user may have put the secret itself there.
    pub fn program(&self) -> Cow<'_, str> {
        mask_text(self.first())
    }

    fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Output without one line end is the password.
    pub fn run(&self) -> Result<Password, SecretError> {
        self.run_within(COMMAND_LIMIT)
    }

    fn run_within(&self, limit: Duration) -> Result<Password, SecretError> {
        let failed = |reason: String| {
            let program = self.program().into_owned();
            SecretError::Command { program, reason }
        };
        let mut child = Command::new(self.first())
            .args(self.0.iter().skip(1))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Its own process group, so that its children are killed with it.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(format!("cannot be run: {error}")))?;
        let result = answer(&mut child, limit);
        if result.is_err() {
            kill(&mut child);
        }
        let text = String::from_utf8(result.map_err(failed)?)
            .map_err(|_| failed("printed something else than UTF-8".to_owned()))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        match line.strip_suffix('\r').unwrap_or(line) {
            "" => Err(failed("printed nothing".to_owned())),
            password => Ok(Password::new(password)),
        }
    }
}

fn answer(child: &mut Child, limit: Duration) -> Result<Vec<u8>, String> {
    let too_long = || format!("did not end within {} s", limit.as_secs_f32());
    let deadline = Instant::now() + limit;
    let Some(stdout) = child.stdout.take() else { return Err("has no stdout".to_owned()) };
    let (send, printed) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes);
        // The receiver is gone after the limit.
        let _ = send.send(read.map(|_| bytes));
    });
    let bytes = printed
        .recv_timeout(limit)
        .map_err(|_| too_long())?
        .map_err(|error| format!("cannot be read from: {error}"))?;
    if bytes.len() as u64 > OUTPUT_BYTES_MAX {
        return Err(format!("printed more than {OUTPUT_BYTES_MAX} bytes"));
    }
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(bytes),
            Ok(Some(status)) => return Err(format!("failed: {status}")),
            Ok(None) if Instant::now() >= deadline => return Err(too_long()),
            Ok(None) => std::thread::sleep(TICK),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // The group may have ended by itself.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// Does not open a pipe, because that would wait for a writer.
pub fn read_secret(path: &Path) -> Result<String, SecretError> {
    let failed = |reason: String| SecretError::File { path: path.to_owned(), reason };
    let read = || {
        if !std::fs::metadata(path)?.is_file() {
            return Ok(None);
        }
        let mut text = String::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        Ok(Some(text))
    };
    let text = read().map_err(|error: io::Error| failed(error.to_string()))?.ok_or_else(|| {
        failed("it is not a regular file, so it cannot be read again at each login".to_owned())
    })?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.trim().is_empty() {
        return Err(failed("it is empty".to_owned()));
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn shell(script: &str) -> PasswordCommand {
        PasswordCommand::new(vec!["sh".into(), "-c".into(), script.into()]).unwrap()
    }

    #[test]
    fn a_command_prints_a_password_less_one_line_end() {
        for (script, expected) in
            [("echo hunter2", "hunter2"), ("printf 'a\\n\\n'", "a\n"), ("printf ' a b '", " a b ")]
        {
            assert_eq!(shell(script).run().unwrap().reveal(), expected);
        }
        let words = vec!["printf".to_owned(), "%s".to_owned(), "$HOME; `x`".to_owned()];
        let command = PasswordCommand::new(words).unwrap();
        assert_eq!(command.run().unwrap().reveal(), "$HOME; `x`", "there is no shell");
        assert!(PasswordCommand::new(Vec::new()).is_none());
    }

    #[test]
    fn a_command_that_fails_says_how_and_nothing_secret() {
        let limit = Duration::from_millis(300);
        for (script, words) in [
            ("echo hunter2; echo hunter2 >&2; exit 3", "exit status: 3"),
            ("true", "printed nothing"),
            ("echo hunter2; sleep 60", "did not end within 0.3 s"),
            ("sleep 60 & echo hunter2", "did not end within 0.3 s"),
            ("head -c 70000 /dev/zero", "printed more than"),
            ("printf 'hunter2\\377'", "UTF-8"),
        ] {
            let error = shell(script).run_within(limit).unwrap_err();
            let said = format!("{error} {error:?} {:?} {:?}", error.hint(), shell(script));
            assert!(said.contains(words) && !said.contains("hunter2"), "{script}: {said}");
        }
        let missing = PasswordCommand::new(vec!["/no/such/program".to_owned()]).unwrap();
        assert!(missing.run().unwrap_err().to_string().contains("cannot be run"));
    }

    #[test]
    fn a_file_is_read_if_it_is_one_and_not_endless() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "hunter2\r\n").unwrap();
        assert_eq!(read_secret(&path).as_deref(), Ok("hunter2"));
        fs::write(&path, "x".repeat(1024 * 1024 + 1)).unwrap();
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let missing = folder.path().join("missing");
        for (path, words) in [
            (path.as_path(), "more than 1048576 bytes"),
            (pipe.as_path(), "not a regular file"),
            (folder.path(), "not a regular file"),
            (Path::new("/dev/zero"), "not a regular file"),
            (missing.as_path(), "No such file"),
        ] {
            let error = read_secret(path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! > {}; wait", pid.display());
        shell(&script).run_within(Duration::from_secs(1)).unwrap_err();
        let pid = fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let deadline = Instant::now() + Duration::from_secs(5);
        // The process is gone, or dead and not yet reaped by init.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "{pid} lives");
            std::thread::sleep(TICK);
        }
    }
}
