//! A temporary Redis server for tests: on loopback only, with a random password, in memory only.

use std::fs::{File, read_to_string, write};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::account::Account;
use super::password::RandomPassword;
use super::watchdog::{LastSignal, Watchdog};
use super::{SandboxError, port};

const PROGRAM: &str = "redis-server";
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
const ATTEMPTS: u32 = 5;

/// A Redis server, ended on drop with its data.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    port: u16,
    role: Role,
    account: Account,
    watchdog: Watchdog,
}

#[derive(Debug, Clone)]
pub(super) struct Role {
    password: RandomPassword,
    kind: Kind,
    program: PathBuf,
}

impl Role {
    pub(super) fn new(password: &RandomPassword, kind: Kind) -> Self {
        Self { password: password.clone(), kind, program: PROGRAM.into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Alone,
    /// Port of the master.
    ReplicaOf(u16),
    ClusterNode {
        node_timeout: Duration,
    },
    /// `master` is a port.
    Sentinel {
        master: u16,
        down_after: Duration,
    },
}

impl Redis {
    /// Starts a server without persistence.
    pub fn start() -> Result<Self, SandboxError> {
        Self::start_program(Path::new(PROGRAM))
    }

    /// Starts a program with Redis's protocol and settings, such as Valkey.
    pub fn start_program(program: &Path) -> Result<Self, SandboxError> {
        let password = RandomPassword::draw()?;
        Self::start_as(&Role { program: program.into(), ..Role::new(&password, Kind::Alone) })
    }

    pub(super) fn start_as(role: &Role) -> Result<Self, SandboxError> {
        let account = Account::unprivileged()?;
        let folder = account.make_folder("postrider-redis-")?;
        let mut watchdog = Watchdog::new(&folder)?;
        let mut attempt = 1;
        loop {
            let port = port::free()?;
            match spawn(account, &watchdog, port, role) {
                Ok(child) => {
                    watchdog.hold(child.id(), LastSignal::Kill)?;
                    return Ok(Self { child, port, role: role.clone(), account, watchdog });
                }
                Err(SandboxError::Ended { .. }) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// `redis://:PASSWORD@127.0.0.1:PORT`. Keep it off command lines.
    pub fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}", self.role.password.as_str(), self.port)
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the server as a crash would. Its data is lost.
    pub fn kill(&mut self) -> Result<(), SandboxError> {
        let failed = |error| SandboxError::file("end the server in", self.watchdog.folder())(error);
        self.child.kill().and_then(|()| self.child.wait().map(drop)).map_err(failed)?;
        self.watchdog.free(self.child.id())
    }

    /// Restarts a killed server on its port, empty.
    pub fn restart(&mut self) -> Result<(), SandboxError> {
        self.child = spawn(self.account, &self.watchdog, self.port, &self.role)?;
        self.watchdog.hold(self.child.id(), LastSignal::Kill)
    }

    pub(super) fn stop(&self) -> Result<(), SandboxError> {
        let failed = SandboxError::file("stop the server in", self.watchdog.folder());
        kill_process(Pid::from_child(&self.child), Signal::STOP)
            .map_err(|error| failed(error.into()))
    }

    pub(super) fn cli(&self, words: &[&str]) -> Result<String, SandboxError> {
        const CLI: &str = "redis-cli";
        let mut command = Command::new(CLI);
        command
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(words)
            .env("REDISCLI_AUTH", self.role.password.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = super::spawn::spawn(&mut command)
            .and_then(Child::wait_with_output)
            .map_err(|source| SandboxError::Spawn { program: CLI.into(), source })?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let (program, status) = (CLI.to_owned(), output.status.to_string());
        let log = said + &String::from_utf8_lossy(&output.stderr);
        Err(SandboxError::Ended { program, status, log })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // An error means that the server has already ended.
        let _ = self.kill();
    }
}

fn spawn(
    account: Account,
    watchdog: &Watchdog,
    port: u16,
    role: &Role,
) -> Result<Child, SandboxError> {
    let log = watchdog.folder().join("log");
    let output = File::create(&log).map_err(SandboxError::file("write", &log))?;
    let text = configuration(port, role)?;
    let mut command = Command::new(&role.program);
    command
        .current_dir(watchdog.folder())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::null());
    if let Kind::Sentinel { .. } = role.kind {
        // A Sentinel writes its state into its configuration, which must be a file.
        let file = watchdog.folder().join("sentinel.conf");
        write(&file, &text).map_err(SandboxError::file("write", &file))?;
        account.own(&file)?;
        command.arg(file).arg("--sentinel");
    } else {
        command.arg("-");
    }
    account.apply(&mut command);
    let mut child = super::spawn::spawn(&mut command)
        .map_err(|source| SandboxError::Spawn { program: role.program.clone(), source })?;
    // Other users of the machine could read a command line.
    let told = child.stdin.take().is_some_and(|mut input| input.write_all(text.as_bytes()).is_ok());
    if !told && !matches!(role.kind, Kind::Sentinel { .. }) {
        // A server without its whole configuration must not run.
        child.kill().map_err(SandboxError::file("end the server of", &log))?;
    }
    await_ready(child, port, &log)
}

fn await_ready(mut child: Child, port: u16, log: &Path) -> Result<Child, SandboxError> {
    let deadline = Instant::now() + LIMIT;
    let said = || read_to_string(log).unwrap_or_default();
    loop {
        let ended = child.try_wait().map_err(SandboxError::file("wait for the server of", log))?;
        if let Some(status) = ended {
            let (program, status) = (PROGRAM.to_owned(), status.to_string());
            return Err(SandboxError::Ended { program, status, log: said() });
        }
        // Another server may listen on the port, so the own output is checked. The second text is a
        // Sentinel's.
        let words = said();
        let is_ready = words.contains("Ready to accept connections") || words.contains("+monitor");
        if is_ready && TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(child);
        }
        if Instant::now() > deadline {
            let _ = child.kill().and_then(|()| child.wait());
            let (program, what) = (PROGRAM.to_owned(), "become ready");
            return Err(SandboxError::TimedOut { program, what, limit: LIMIT, log: words });
        }
        std::thread::sleep(POLL);
    }
}

/// Unnamed settings keep Redis's defaults.
fn configuration(port: u16, role: &Role) -> Result<String, SandboxError> {
    let password = role.password.as_str();
    let common = format!("requirepass {password}\nbind 127.0.0.1\nport {port}\n");
    let memory_only = format!("{common}masterauth {password}\nsave \"\"\nappendonly no\n");
    Ok(match role.kind {
        // A server serves many tests, each with its own database.
        Kind::Alone => format!("{memory_only}databases 1000\n"),
        Kind::ReplicaOf(master) => format!("{memory_only}replicaof 127.0.0.1 {master}\n"),
        Kind::ClusterNode { node_timeout } => {
            // Another process may use the default bus port.
            let bus = port::free()?;
            format!(
                "{memory_only}cluster-enabled yes\ncluster-port {bus}\n\
                 cluster-node-timeout {}\n",
                node_timeout.as_millis()
            )
        }
        Kind::Sentinel { master, down_after } => format!(
            "{common}sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 2\n\
             sentinel auth-pass {MASTER_NAME} {password}\nsentinel sentinel-pass {password}\n\
             sentinel down-after-milliseconds {MASTER_NAME} {}\n",
            down_after.as_millis()
        ),
    })
}

pub(super) const MASTER_NAME: &str = "guard";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_server_comes_back_on_its_port_and_a_dropped_one_does_not() {
        let mut redis = Redis::start().unwrap();
        let answers = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let port = redis.port;
        redis.kill().unwrap();
        assert!(!answers(port));
        redis.restart().unwrap();
        assert!(answers(port));
        drop(redis);
        assert!(!answers(port));
    }
}
