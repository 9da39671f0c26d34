//! A Kafka Connect worker with Debezium, without Docker: the jars that `docker/debezium/fetch`
//! copied, in standalone mode, all connectors in one process.
//!
//! Invariant: the worker runs as an unprivileged account, and ends with the `Connect` value or
//! with this process, whichever is first. Its REST interface, which shows the passwords of connectors
//! and runs what it is given, asks for a login that is drawn.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use postrider_sandbox::account::Account;
use postrider_sandbox::password::RandomPassword;
use postrider_sandbox::port;
use postrider_sandbox::spawn::spawn;
use postrider_sandbox::watchdog::{LastSignal, Watchdog};
use serde_json::Value;

use super::java;

/// Heap of a worker of tests, in MiB: a dozen connectors with small queues.
const HEAP_MIB: u32 = 512;

/// What asks for a login.
const EXTENSION: &str =
    "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension";

/// Who may ask it.
const USER: &str = "compare";

/// What is believed of that user: the file beside it.
const LOGIN: &str = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule";

/// In the worker's home: its settings, and how who asks it logs in.
const WORKER_FILE: &str = "worker.properties";
const LOGIN_FILE: &str = "login";

/// How long the worker may take to answer one question about itself.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// Lines of a failure that are worth showing: the exceptions, not their stacks.
const CAUSES: usize = 3;

/// What a worker is started with.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub jars: &'a Path,
    pub bootstrap: &'a str,
    pub purpose: java::Purpose,
    pub heap_mib: u32,
    /// Further settings; the later of one name holds.
    pub settings: &'a [(&'a str, &'a str)],
}

impl<'a> Worker<'a> {
    /// One for tests, which notes soon how far it is.
    pub fn of_tests(jars: &'a Path, bootstrap: &'a str) -> Self {
        let settings = &[("offset.flush.interval.ms", "1000")];
        Self { jars, bootstrap, purpose: java::Purpose::Test, heap_mib: HEAP_MIB, settings }
    }

    fn properties(&self, port: u16, home: &Path) -> String {
        let mut text = String::new();
        let offsets = home.join("offsets").display().to_string();
        let listener = format!("http://127.0.0.1:{port}");
        let usual = [
            ("bootstrap.servers", self.bootstrap),
            ("listeners", &listener),
            ("rest.extension.classes", EXTENSION),
            ("offset.storage.file.filename", &offsets),
            // Every plug-in is on the class path and names itself there, so nothing need be scanned.
            ("plugin.discovery", "service_load"),
            // For connectors that do not say theirs; all of them do.
            ("key.converter", "org.apache.kafka.connect.json.JsonConverter"),
            ("value.converter", "org.apache.kafka.connect.json.JsonConverter"),
        ];
        for (name, value) in usual.iter().chain(self.settings) {
            writeln!(text, "{name}={value}").unwrap();
        }
        text
    }
}

/// A started worker.
#[derive(Debug)]
pub struct Connect {
    child: Child,
    port: u16,
    password: RandomPassword,
    watchdog: Watchdog,
    launch: Launch,
}

/// How its process is started, again if need be.
#[derive(Debug)]
struct Launch {
    account: Account,
    home: PathBuf,
    jars: PathBuf,
    purpose: java::Purpose,
    heap_mib: u32,
    connectors: Vec<PathBuf>,
}

impl Launch {
    fn start(&self) -> Child {
        let Self { account, home, jars, purpose, heap_mib, connectors } = self;
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let login =
            format!("-Djava.security.auth.login.config={}", home.join(LOGIN_FILE).display());
        let mut command = java::command(*purpose, *account, home, jars, *heap_mib);
        command
            .arg(login)
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(home.join(WORKER_FILE))
            .args(connectors)
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        spawn(&mut command).unwrap()
    }
}

impl Connect {
    /// Starts a worker with these connectors, each as it would be posted to Connect.
    pub fn start(worker: &Worker<'_>, connectors: &[(&str, &str)]) -> Self {
        let account = Account::unprivileged().unwrap();
        let home = account.make_folder("postrider-connect-").unwrap();
        let mut watchdog = Watchdog::new(&home).unwrap();
        let port = port::free().unwrap();
        fs::write(home.join(WORKER_FILE), worker.properties(port, &home)).unwrap();
        let files = connectors.iter().map(|(name, text)| {
            let file = home.join(format!("{name}.json"));
            fs::write(&file, text).unwrap();
            file
        });
        let connectors = files.collect();
        let password = RandomPassword::draw().unwrap();
        demand_login(&home, &password);
        let Worker { jars, purpose, heap_mib, .. } = *worker;
        let jars = jars.to_path_buf();
        let launch = Launch { account, home, jars, purpose, heap_mib, connectors };
        let child = launch.start();
        watchdog.hold(child.id(), LastSignal::Kill).unwrap();
        Self { child, port, password, watchdog, launch }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and a start at once on what it noted until then.
    pub fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.watchdog.free(self.child.id()).unwrap();
        self.child = self.launch.start();
        self.watchdog.hold(self.child.id(), LastSignal::Kill).unwrap();
    }

    /// Why the worker, or one of its connectors, does not run any more.
    pub fn failure(&mut self) -> Option<String> {
        if let Some(status) = self.child.try_wait().unwrap() {
            return Some(format!("the worker ended, {status}: {}", self.log()));
        }
        let (_, body) = self.ask("/connectors?expand=status", Some(&self.password))?;
        let status: Value = serde_json::from_str(&body).ok()?;
        for (name, connector) in status.as_object()? {
            let connector = &connector["status"];
            let tasks = connector["tasks"].as_array().into_iter().flatten();
            for part in tasks.chain(std::iter::once(&connector["connector"])) {
                if part["state"] == "FAILED" {
                    return Some(format!("{name}: {}", causes(part["trace"].as_str()?)));
                }
            }
        }
        None
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.watchdog.folder().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Whether its REST interface, which must be up, turns away who has no login, or a wrong one.
    pub fn is_closed(&self) -> bool {
        let wrong = RandomPassword::draw().unwrap();
        [None, Some(&wrong)].into_iter().all(|password| {
            let (head, body) = self.ask("/connectors?expand=info", password).unwrap();
            head.contains(" 401 ") && !body.contains("database.")
        })
    }

    /// Head and body of what its REST interface says, or nothing as long as it is not up.
    fn ask(&self, path: &str, password: Option<&RandomPassword>) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(ASK_LIMIT)).unwrap();
        // HTTP/1.0: the answer ends with the connection.
        let login = password.map_or_else(String::new, |password| {
            let login = BASE64_STANDARD.encode(format!("{USER}:{}", password.as_str()));
            format!("Authorization: Basic {login}\r\n")
        });
        stream.write_all(format!("GET {path} HTTP/1.0\r\n{login}\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    }
}

impl Drop for Connect {
    fn drop(&mut self) {
        // Killing fails only for a worker that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes who may ask, and the file that tells the worker so.
fn demand_login(home: &Path, password: &RandomPassword) {
    let users = home.join("users");
    fs::write(&users, format!("{USER}={}\n", password.as_str())).unwrap();
    let rule = format!("KafkaConnect {{\n{LOGIN} required file=\"{}\";\n}};\n", users.display());
    fs::write(home.join(LOGIN_FILE), rule).unwrap();
}

fn causes(trace: &str) -> String {
    let lines = trace.lines().filter(|line| !line.trim_start().starts_with("at "));
    lines.take(CAUSES).collect::<Vec<_>>().join(" / ")
}
