//! A temporary Redis server for tests: on loopback only, with a random password, in memory only.
//!
//! Output: a running server and its URL; it can be killed and restarted empty on the same port. The password
//! goes to it through stdin, not on a command line. Invariant: the server ends when [`Redis`] is dropped or
//! this process ends.

use std::fs::{File, read_to_string};
use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::account::Account;
use super::password::RandomPassword;
use super::watchdog::{LastSignal, Watchdog};
use super::{SandboxError, port};

const PROGRAM: &str = "redis-server";
/// A start takes some 20 ms.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
/// Ports that somebody else was quicker to take, before giving up.
const ATTEMPTS: u32 = 5;

/// A server, ended and forgotten on drop.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    port: u16,
    password: RandomPassword,
    account: Account,
    watchdog: Watchdog,
}

impl Redis {
    /// Starts one that forgets everything when it ends.
    pub fn start() -> Result<Self, SandboxError> {
        let account = Account::unprivileged()?;
        let folder = account.make_folder("postrider-redis-")?;
        let mut watchdog = Watchdog::new(&folder)?;
        let password = RandomPassword::draw()?;
        let mut attempt = 1;
        loop {
            let port = port::free()?;
            match spawn(account, &watchdog, port, &password) {
                Ok(child) => {
                    watchdog.hold(child.id(), LastSignal::Kill)?;
                    return Ok(Self { child, port, password, account, watchdog });
                }
                Err(SandboxError::Ended { .. }) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Where clients connect, `redis://:PASSWORD@127.0.0.1:PORT`. Not for a command line.
    pub fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}", self.password.as_str(), self.port)
    }

    /// Ends it as a crash would; whatever it knew is gone.
    pub fn kill(&mut self) -> Result<(), SandboxError> {
        let failed = |error| SandboxError::file("end the server in", self.watchdog.folder())(error);
        self.child.kill().and_then(|()| self.child.wait().map(drop)).map_err(failed)?;
        self.watchdog.free(self.child.id())
    }

    /// Starts it again on the same port, empty. It must have been killed.
    pub fn restart(&mut self) -> Result<(), SandboxError> {
        self.child = spawn(self.account, &self.watchdog, self.port, &self.password)?;
        self.watchdog.hold(self.child.id(), LastSignal::Kill)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It has ended already where this fails, which is what is wanted.
        let _ = self.kill();
    }
}

fn spawn(
    account: Account,
    watchdog: &Watchdog,
    port: u16,
    password: &RandomPassword,
) -> Result<Child, SandboxError> {
    let log = watchdog.folder().join("log");
    let output = File::create(&log).map_err(SandboxError::file("write", &log))?;
    let mut command = Command::new(PROGRAM);
    command
        .arg("-")
        .current_dir(watchdog.folder())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::null());
    account.apply(&mut command);
    let mut child = super::spawn::spawn(&mut command)
        .map_err(|source| SandboxError::Spawn { program: PROGRAM.into(), source })?;
    if configure(&mut child, port, password).is_err() {
        // One that is not told everything must not serve; why it was not told, its words say below.
        child.kill().map_err(SandboxError::file("end the server of", &log))?;
    }
    let deadline = Instant::now() + LIMIT;
    let said = || read_to_string(&log).unwrap_or_default();
    loop {
        let ended = child.try_wait().map_err(SandboxError::file("wait for the server of", &log))?;
        if let Some(status) = ended {
            let (program, status) = (PROGRAM.to_owned(), status.to_string());
            return Err(SandboxError::Ended { program, status, log: said() });
        }
        // Its own words, lest another server on the port is taken for it.
        if said().contains("Ready to accept connections")
            && TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        {
            return Ok(child);
        }
        if Instant::now() > deadline {
            let _ = child.kill().and_then(|()| child.wait());
            let (program, what) = (PROGRAM.to_owned(), "become ready");
            return Err(SandboxError::TimedOut { program, what, limit: LIMIT, log: said() });
        }
        std::thread::sleep(POLL);
    }
}

/// Tells it by its standard input what every user of the machine could read on a command line. The
/// input ends with that.
fn configure(child: &mut Child, port: u16, password: &RandomPassword) -> io::Result<()> {
    let Some(mut input) = child.stdin.take() else { return Err(ErrorKind::BrokenPipe.into()) };
    let password = password.as_str();
    let text =
        format!("requirepass {password}\nbind 127.0.0.1\nport {port}\nsave \"\"\nappendonly no\n");
    input.write_all(text.as_bytes())
}

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
