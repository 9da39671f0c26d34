//! A temporary PostgreSQL cluster with logical decoding, for the demo, the benchmarks and the
//! tests.
//!
//! Invariant: a [`Cluster`] listens on loopback with a password, and on a unix socket in its own
//! folder, which no other account can enter. Dropping it or ending this process removes it with its
//! folder.

mod address;
mod options;
mod server;

pub use address::Address;
pub use options::{Options, Tls};

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::account::Account;
use super::password::RandomPassword;
use super::spawn::spawn;
use super::watchdog::{LastSignal, Watchdog};
use super::{SandboxError, binaries, port};
use server::{Server, log_tail};

const PORT_TRIES: u32 = 5;

/// How a cluster is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Ends sessions; walsenders wait for their clients (`pg_ctl stop -m fast`).
    Fast,
    /// Writes no shutdown checkpoint, so the next start recovers (`pg_ctl stop -m immediate`).
    Immediate,
    /// Kills the postmaster; its children end by themselves.
    Kill,
}

/// A temporary PostgreSQL cluster.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: first the server, last the folder.
    server: Option<Server>,
    watchdog: Watchdog,
    options: Options,
    password: RandomPassword,
    account: Account,
    binaries: PathBuf,
    port: u16,
    version: u32,
}

impl Cluster {
    /// Creates and starts a cluster in about a second.
    pub fn start(options: &Options) -> Result<Self, SandboxError> {
        let binaries = match &options.binaries {
            Some(folder) => folder.clone(),
            None => binaries::find()?,
        };
        let account = Account::unprivileged()?;
        let folder = account.make_folder("postrider-pg-")?;
        let watchdog = Watchdog::new(&folder)?;
        let mut cluster = Self {
            server: None,
            watchdog,
            options: options.clone(),
            password: RandomPassword::draw()?,
            account,
            binaries,
            port: 0,
            version: 0,
        };
        cluster.initialise()?;
        cluster.version = cluster.read_version()?;
        for attempt in 1.. {
            cluster.port = port::free()?;
            match cluster.start_again() {
                Err(SandboxError::Ended { log, .. })
                    if log.contains("could not bind") && attempt < PORT_TRIES => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        Ok(cluster)
    }

    /// URL of the superuser `postgres` over TCP. Keep its password off command lines.
    pub fn url(&self) -> String {
        self.address().url()
    }

    /// URL over the unix socket, without a password.
    pub fn unix_url(&self) -> String {
        self.address().unix_url()
    }

    /// Address for other URLs.
    pub fn address(&self) -> Address {
        Address {
            port: self.port,
            socket_folder: self.folder().to_path_buf(),
            user: "postgres".to_owned(),
            password: Some(self.password.as_str().to_owned()),
            database: "postgres".to_owned(),
        }
    }

    /// TCP port on 127.0.0.1, which restarts do not change.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Folder with the unix socket, `data` and `log`.
    pub fn folder(&self) -> &Path {
        self.watchdog.folder()
    }

    /// Major version, such as 15 or 18.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Folder of `pg_recvlogical` and other clients.
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Postmaster's process id, while it runs.
    pub fn process(&self) -> Option<u32> {
        self.server.as_ref().map(Server::process)
    }

    /// Last lines of the server's log.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log())
    }

    /// Stops a running cluster and waits until it has ended.
    pub fn stop(&mut self, how: Stop) -> Result<(), SandboxError> {
        self.begin_stop(how)?;
        self.wait_stopped(self.options.limit)
    }

    /// Asks the cluster to stop and returns at once.
    pub fn begin_stop(&mut self, how: Stop) -> Result<(), SandboxError> {
        match &self.server {
            Some(server) => server.signal(how),
            None => Ok(()),
        }
    }

    /// Waits for the end. Error: [`SandboxError::TimedOut`] while it is still running.
    pub fn wait_stopped(&mut self, limit: Duration) -> Result<(), SandboxError> {
        let Some(server) = &mut self.server else { return Ok(()) };
        server.wait(limit)?;
        let process = server.process();
        self.server = None;
        self.watchdog.free(process)
    }

    /// Restarts a stopped cluster on its port and data.
    pub fn start_again(&mut self) -> Result<(), SandboxError> {
        let deadline = Instant::now() + self.options.limit;
        loop {
            match self.try_start() {
                // After a kill -9 the old children take a moment to notice.
                Err(SandboxError::Ended { log, .. })
                    if log.contains("is still in use") && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                outcome => return outcome,
            }
        }
    }

    /// Stops and starts the cluster.
    pub fn restart(&mut self, how: Stop) -> Result<(), SandboxError> {
        self.stop(how)?;
        self.start_again()
    }

    fn try_start(&mut self) -> Result<(), SandboxError> {
        if self.server.is_some() {
            return Ok(());
        }
        let (data, log) = (self.data(), self.log());
        let mut command = self.command("postgres");
        command.arg("-D").arg(&data).args(["-p", &self.port.to_string()]);
        let mut server = Server::spawn(&mut command, &log)?;
        self.watchdog.hold(server.process(), LastSignal::Quit)?;
        match server.wait_ready(&data, self.options.limit) {
            Ok(()) => {
                self.server = Some(server);
                Ok(())
            }
            Err(error) => {
                let process = server.process();
                drop(server);
                self.watchdog.free(process)?;
                Err(error)
            }
        }
    }

    fn initialise(&self) -> Result<(), SandboxError> {
        let data = self.data();
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "--no-sync"]);
        initdb.args(["--no-instructions", "--locale=C", "--encoding", &self.options.encoding]);
        let password = self.folder().join("password");
        self.write(&password, self.password.as_str())?;
        initdb.arg("--pwfile").arg(&password);
        initdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = spawn(&mut initdb)
            .and_then(Child::wait_with_output)
            .map_err(|source| SandboxError::Spawn { program: "initdb".into(), source })?;
        if !output.status.success() {
            return Err(SandboxError::Ended {
                program: "initdb".to_owned(),
                status: output.status.to_string(),
                log: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        let conf = data.join("postgresql.conf");
        let written = fs::read_to_string(&conf).map_err(SandboxError::file("read", &conf))?;
        self.write(&conf, &(written + &self.options.postgresql_conf(self.folder())))?;
        self.write(&data.join("pg_hba.conf"), &self.options.pg_hba_conf())?;
        for (name, content) in self.options.tls_files() {
            self.write(&data.join(name), content)?;
        }
        Ok(())
    }

    fn write(&self, path: &Path, content: &str) -> Result<(), SandboxError> {
        fs::write(path, content).map_err(SandboxError::file("write", path))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(SandboxError::file("set the permissions of", path))?;
        self.account.own(path)
    }

    fn read_version(&self) -> Result<u32, SandboxError> {
        let path = self.data().join("PG_VERSION");
        let text = fs::read_to_string(&path).map_err(SandboxError::file("read", &path))?;
        // Every version with pgoutput prints a plain number.
        Ok(text.trim().parse().unwrap_or(0))
    }

    /// Runs under the cluster's account, outside this process's folder and without `PG*` variables.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.join(program));
        self.account.apply(&mut command);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        if let Some(libraries) = &self.options.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command.env("LC_ALL", "C").current_dir(self.folder());
        command
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder().join("log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    /// After a SIGKILL, children hold the listening socket until they notice.
    fn wait_until_refused(port: u16) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_ok() {
            assert!(Instant::now() < deadline, "something still listens on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_cluster_starts_restarts_on_its_port_and_leaves_nothing() {
        let mut cluster = Cluster::start(&Options::default()).unwrap();
        let (folder, port) = (cluster.folder().to_path_buf(), cluster.port());
        assert!(cluster.version() >= 12);
        for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
            TcpStream::connect(("127.0.0.1", port)).unwrap();
            UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).unwrap();
            cluster.stop(how).unwrap();
            assert_eq!(cluster.process(), None);
            wait_until_refused(port);
            cluster.start_again().unwrap();
        }
        drop(cluster);
        wait_until_refused(port);
        assert!(!folder.exists());
    }

    #[test]
    fn a_setting_the_server_refuses_is_reported_in_its_own_words() {
        let options = Options::default().with("wal_level", "often");
        let error = Cluster::start(&options).unwrap_err().to_string();
        assert!(error.contains("invalid value for parameter \"wal_level\""), "{error}");
    }
}
