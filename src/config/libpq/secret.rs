//! Where a secret comes from, to ask there again at every connect.
//!
//! Enters: the connection string or the file that holds it, the environment as it was, a command.
//! Leaves: the user and the passwords that hold now. What always holds: servers, database and TLS
//! stay as they were at the start; nothing secret is in `Debug` or in an error; a command is run
//! without a shell, is killed with its children at its time limit, and its output is bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Address, ConnectInfo, Password};

/// How long a password command may take: cloud tokens take a second or two.
const COMMAND_LIMIT: Duration = Duration::from_secs(15);
/// How much it may print; tokens have some kilobytes.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// How often its end is looked for.
const TICK: Duration = Duration::from_millis(10);

/// Why there is no secret. Holds no part of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// A file that held it cannot be read now.
    #[error("the file that holds the secret, {}, cannot be read: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// What is there now is no connection string, or names a service that is gone.
    #[error("the connection settings cannot be used any more: {0}")]
    Settings(String),
    /// The command did not print one.
    #[error("the password command `{program}` {reason}")]
    Command {
        /// Its first word.
        program: String,
        /// What it did instead.
        reason: String,
    },
}

impl SecretError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::File { .. } => Some("make it readable for the relay's user".to_owned()),
            Self::Settings(_) => None,
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

/// A command that prints a password: the program and its arguments, for no shell.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordCommand(Vec<String>);

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may hold what a helper logs in with.
        write!(f, "PasswordCommand({:?})", self.program())
    }
}

impl PasswordCommand {
    /// `None` if there is no program.
    pub fn new(words: Vec<String>) -> Option<Self> {
        words.first().is_some_and(|program| !program.is_empty()).then_some(Self(words))
    }

    fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Runs it; what it prints, less one line end, is the password. Blocks up to fifteen seconds.
    pub fn run(&self) -> Result<Password, SecretError> {
        self.run_within(COMMAND_LIMIT)
    }

    fn run_within(&self, limit: Duration) -> Result<Password, SecretError> {
        let failed = |reason: String| {
            let program = self.program().to_owned();
            SecretError::Command { program, reason }
        };
        let mut child = Command::new(self.program())
            .args(self.0.iter().skip(1))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // To be killed with its children.
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

/// What the child prints until it ends.
fn answer(child: &mut Child, limit: Duration) -> Result<Vec<u8>, String> {
    let too_long = || format!("did not end within {} s", limit.as_secs_f32());
    let deadline = Instant::now() + limit;
    let Some(stdout) = child.stdout.take() else { return Err("has no stdout".to_owned()) };
    let (send, printed) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes);
        // Nobody waits once the limit is over.
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
        // It may have ended by itself.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// What named the password, or would have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NamedBy {
    /// The connection string.
    Text,
    /// The service file.
    Service,
    /// `PGPASSWORD`.
    Environment,
    /// The password file, whether it has one or not; `None`: there is no home to have one in.
    PasswordFile(Option<PathBuf>),
}

/// Where user and password came from. `Debug` says only whether they can change.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SecretSource {
    pub(super) text: Text,
    /// What was asked of the environment, and its answers.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) command: Option<PasswordCommand>,
    pub(super) named_by: NamedBy,
    /// Whether a later look may find another secret.
    pub(super) can_change: bool,
}

/// The connection string.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Text {
    Typed(String),
    File(PathBuf),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretSource").field("can_change", &self.can_change).finish_non_exhaustive()
    }
}

impl ConnectInfo {
    /// The same, with the connection string read from this file again whenever it is needed.
    #[must_use]
    pub fn read_from(mut self, path: PathBuf) -> Self {
        self.secrets.text = Text::File(path);
        self.secrets.can_change = true;
        self
    }

    /// The same, with this command's output for a password.
    #[must_use]
    pub fn ask(mut self, command: PasswordCommand) -> Self {
        self.secrets.command = Some(command);
        self.secrets.can_change = true;
        self
    }

    /// What to do about a password that the server refuses: where it came from.
    pub fn wrong_password_hint(&self) -> String {
        let SecretSource { text, command, named_by, .. } = &self.secrets;
        let place = match (command, named_by, text) {
            (Some(command), ..) => format!("what the command `{}` prints", command.program()),
            (None, NamedBy::Text, Text::File(path)) => {
                format!("the connection string in {}", path.display())
            }
            (None, NamedBy::Text, Text::Typed(_)) => "the connection string".to_owned(),
            (None, NamedBy::Service, _) => "the service file".to_owned(),
            (None, NamedBy::Environment, _) => "PGPASSWORD".to_owned(),
            (None, NamedBy::PasswordFile(path), _) => format!(
                "the first line that fits in {}",
                path.as_deref()
                    .map_or("the password file".into(), std::path::Path::to_string_lossy)
            ),
        };
        format!(
            "the password is wrong, the role has none, or there is no such role; the password came from \
             {place}"
        )
    }

    /// What to do where the server asks for a password and there is none.
    pub fn missing_password_hint(&self) -> String {
        match &self.secrets.named_by {
            NamedBy::PasswordFile(Some(path)) => format!(
                "set PGPASSWORD, or add a line for user `{}` to {}",
                self.user,
                path.display()
            ),
            _ => "set PGPASSWORD".to_owned(),
        }
    }

    /// Whether the password comes from a file, a service or a command: one that is refused may be
    /// right at the next look.
    pub fn secret_can_change(&self) -> bool {
        self.secrets.can_change
    }

    /// Whether the role, too, comes from what may be another at the next look: the file that holds the
    /// connection string, or the service file.
    pub fn user_can_change(&self) -> bool {
        let SecretSource { text, named_by, can_change, .. } = &self.secrets;
        *can_change && (matches!(text, Text::File(_)) || *named_by == NamedBy::Service)
    }

    /// The same with the user and the passwords that hold now. Reads files and runs the command, so
    /// it blocks.
    pub fn renewed(&self) -> Result<Self, SecretError> {
        if !self.secrets.can_change {
            return Ok(self.clone());
        }
        let text = match &self.secrets.text {
            Text::Typed(text) => text.clone(),
            Text::File(path) => read_secret(path)?,
        };
        let environment = |name: &str| self.secrets.environment.get(name).cloned();
        let (now, _) = Self::resolve(&text, &environment)
            .map_err(|error| SecretError::Settings(error.to_string()))?;
        let mut info = Self { user: now.user, ..self.clone() };
        let asked = self.secrets.command.as_ref().map(PasswordCommand::run).transpose()?;
        for endpoint in &mut info.endpoints {
            let same = |other: &&super::Endpoint| {
                other.port == endpoint.port && has_same_name(&other.address, &endpoint.address)
            };
            let found = now.endpoints.iter().find(same).and_then(|it| it.password.clone());
            endpoint.password = asked.clone().or(found);
        }
        Ok(info)
    }
}

/// Whether a password is looked up for both under one name; their addresses may be resolved or not.
fn has_same_name(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Tcp { host: one, .. }, Address::Tcp { host: other, .. }) => one == other,
        (Address::Unix(one), Address::Unix(other)) => one == other,
        _ => false,
    }
}

/// Reads a file that holds a secret, less the line end.
pub fn read_secret(path: &std::path::Path) -> Result<String, SecretError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| SecretError::File { path: path.to_owned(), reason: error.to_string() })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

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
    fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! > {}; wait", pid.display());
        shell(&script).run_within(Duration::from_secs(1)).unwrap_err();
        let pid = fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let deadline = Instant::now() + Duration::from_secs(5);
        // Gone, or dead and not yet collected by init.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "{pid} lives");
            std::thread::sleep(TICK);
        }
    }

    #[test]
    fn files_are_read_again_and_what_was_typed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let password = |info: &ConnectInfo| info.endpoints[0].password.clone().unwrap();
        write("*:*:*:*:first");
        let text = format!("host=db user=u passfile={}", path.display());
        let (info, _) = ConnectInfo::resolve(&text, &|_| None).unwrap();
        write("*:*:*:*:second");
        assert!(info.secret_can_change());
        assert_eq!(password(&info.renewed().unwrap()).reveal(), "second");

        let (typed, _) = ConnectInfo::resolve(&format!("{text} password=x"), &|_| None).unwrap();
        assert!(!typed.secret_can_change());
        assert_eq!(password(&typed.renewed().unwrap()).reveal(), "x");
        let asked = typed.ask(shell("echo third")).renewed().unwrap();
        assert_eq!(password(&asked).reveal(), "third");

        write("postgres://other:fourth@db/shop\n");
        let info = info.read_from(path.clone()).renewed().unwrap();
        assert_eq!((info.user.as_str(), password(&info).reveal()), ("other", "fourth"));
        fs::remove_file(&path).unwrap();
        assert!(info.renewed().unwrap_err().to_string().contains("cannot be read"));
        assert!(!format!("{info:?}").contains("fourth"));
    }

    #[test]
    fn a_service_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service");
        fs::write(&path, "[shop]\nhost=db\npassword=first\n").unwrap();
        let file = path.display().to_string();
        let environment = move |name: &str| match name {
            "PGSERVICE" => Some("shop".to_owned()),
            "PGSERVICEFILE" => Some(file.clone()),
            "PGUSER" => Some("u".to_owned()),
            _ => None,
        };
        let (info, _) = ConnectInfo::resolve("", &environment).unwrap();
        fs::write(&path, "[shop]\nhost=db\npassword=second\n").unwrap();
        let info = info.renewed().unwrap();
        assert_eq!(info.endpoints[0].password.as_ref().unwrap().reveal(), "second");
    }
}
