//! A private PgBouncer before a Postgres of the tests, with the settings that it has by itself.
//!
//! Output: a running pooler on a free port of 127.0.0.1. Invariant: it runs as an unprivileged account, lets in those
//! alone who know the password of the server behind it, and ends when it is dropped or this process ends; where the
//! program is missing, the suite says so and is left out.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postrider_sandbox::account::Account;
use postrider_sandbox::port;
use postrider_sandbox::postgres::Address;
use postrider_sandbox::spawn::spawn;
use postrider_sandbox::watchdog::{LastSignal, Watchdog};

use super::skip;
use super::wait::within;

/// On Debian it is not on everybody's search path.
const PROGRAMS: [&str; 2] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
/// A start takes some 20 ms.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Ports that somebody else was quicker to take, before giving up.
const ATTEMPTS: u32 = 5;

/// A started pooler.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    port: u16,
    _watchdog: Watchdog,
}

impl PgBouncer {
    /// One before the server of this address, which lets in its role. `None` after
    /// saying why not.
    pub fn start(server: &Address, pool_mode: &str) -> Option<Self> {
        let program = PROGRAMS.iter().map(Path::new).find(|program| program.exists());
        let Some(program) = program else {
            skip::skip("PgBouncer", "pgbouncer is not installed");
            return None;
        };
        let attempt = || Self::attempt(program, server, pool_mode);
        let started = (0..ATTEMPTS).find_map(|_| attempt());
        Some(started.expect("a pooler on a free port"))
    }

    fn attempt(program: &Path, server: &Address, pool_mode: &str) -> Option<Self> {
        let account = Account::unprivileged().unwrap();
        let home = account.make_folder("postrider-pgbouncer-").unwrap();
        let mut watchdog = Watchdog::new(&home).unwrap();
        let port = port::free().unwrap();
        let write = |name: &str, text: String| {
            let file = home.join(name);
            fs::write(&file, text).unwrap();
            account.own(&file).unwrap();
            file
        };
        let password = server.password.as_deref().unwrap();
        let users = write("users", format!("\"{}\" \"{password}\"\n", server.user));
        let settings = write(
            "pgbouncer.ini",
            format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\n\
                 pool_mode = {pool_mode}\n",
                server.port,
                users.display()
            ),
        );
        let log = File::create(home.join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg(settings).current_dir(&home).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        account.apply(&mut command);
        let mut child = spawn(&mut command).unwrap();
        watchdog.hold(child.id(), LastSignal::Kill).unwrap();
        let is_up = || {
            let has_ended = child.try_wait().unwrap().is_some();
            let answers = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
            (has_ended || answers).then_some(!has_ended)
        };
        let is_up = within(START_LIMIT, is_up).unwrap_or(false);
        let pooler = Self { child, port, _watchdog: watchdog };
        is_up.then_some(pooler)
    }

    /// Where it stands for the server of this address.
    pub fn address(&self, server: &Address) -> Address {
        Address { port: self.port, ..server.clone() }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // It has ended already where this fails, which is what is wanted.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}
