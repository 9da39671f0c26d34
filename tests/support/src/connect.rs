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
use postrider::sandbox::account::Account;
use postrider::sandbox::password::RandomPassword;
use postrider::sandbox::port;
use postrider::sandbox::watchdog::{LastSignal, Watchdog};
use serde_json::Value;

use support::java;

/// Heap of the worker, in MiB: a dozen connectors with small queues.
const HEAP_MIB: u32 = 512;

/// What asks for a login.
const EXTENSION: &str =
    "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension";

/// Who may ask it.
const USER: &str = "compare";

/// What is believed of that user: the file beside it.
const LOGIN: &str = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule";

/// How long the worker may take to answer one question about itself.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// Lines of a failure that are worth showing: the exceptions, not their stacks.
const CAUSES: usize = 3;

/// A started worker.
#[derive(Debug)]
pub(crate) struct Connect {
    child: Child,
    port: u16,
    password: RandomPassword,
    watchdog: Watchdog,
}

impl Connect {
    /// Starts a worker with these connectors, each as it would be posted to Connect.
    pub(crate) fn start(jars: &Path, bootstrap: &str, connectors: &[(&str, &str)]) -> Self {
        let account = Account::unprivileged().unwrap();
        let home = account.make_folder("postrider-connect-").unwrap();
        let mut watchdog = Watchdog::new(&home).unwrap();
        let port = port::free().unwrap();
        let worker = home.join("worker.properties");
        fs::write(&worker, properties(bootstrap, port, &home)).unwrap();
        let files = connectors.iter().map(|(name, text)| {
            let file = home.join(format!("{name}.json"));
            fs::write(&file, text).unwrap();
            file
        });
        let files: Vec<PathBuf> = files.collect();
        let password = RandomPassword::draw().unwrap();
        let login = demand_login(&home, &password);
        let log = File::create(home.join("log")).unwrap();
        let child = java::command(java::Purpose::Test, account, &home, jars, HEAP_MIB)
            .arg(format!("-Djava.security.auth.login.config={}", login.display()))
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(&worker)
            .args(&files)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        watchdog.hold(child.id(), LastSignal::Kill).unwrap();
        Self { child, port, password, watchdog }
    }

    /// Why the worker, or one of its connectors, does not run any more.
    pub(crate) fn failure(&mut self) -> Option<String> {
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
    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(self.watchdog.folder().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Whether its REST interface, which must be up, turns away who has no login, or a wrong one.
    pub(crate) fn is_closed(&self) -> bool {
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
fn demand_login(home: &Path, password: &RandomPassword) -> PathBuf {
    let (users, login) = (home.join("users"), home.join("login"));
    fs::write(&users, format!("{USER}={}\n", password.as_str())).unwrap();
    let rule = format!("KafkaConnect {{\n{LOGIN} required file=\"{}\";\n}};\n", users.display());
    fs::write(&login, rule).unwrap();
    login
}

fn properties(bootstrap: &str, port: u16, home: &Path) -> String {
    let mut text = String::new();
    let offsets = home.join("offsets").display().to_string();
    let listener = format!("http://127.0.0.1:{port}");
    for (name, value) in [
        ("bootstrap.servers", bootstrap),
        ("listeners", &listener),
        ("rest.extension.classes", EXTENSION),
        ("offset.storage.file.filename", &offsets),
        ("offset.flush.interval.ms", "1000"),
        // Every plug-in is on the class path and names itself there, so nothing need be scanned.
        ("plugin.discovery", "service_load"),
        // For connectors that do not say theirs; all of them do.
        ("key.converter", "org.apache.kafka.connect.json.JsonConverter"),
        ("value.converter", "org.apache.kafka.connect.json.JsonConverter"),
    ] {
        writeln!(text, "{name}={value}").unwrap();
    }
    text
}

fn causes(trace: &str) -> String {
    let lines = trace.lines().filter(|line| !line.trim_start().starts_with("at "));
    lines.take(CAUSES).collect::<Vec<_>>().join(" / ")
}
