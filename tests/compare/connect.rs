//! A Kafka Connect worker with Debezium, without Docker: the jars that `docker/debezium/fetch`
//! copied, in standalone mode, all connectors in one process.
//!
//! Always holds: the worker runs as an unprivileged account, and ends with the `Connect` value or
//! with this process, whichever is first.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use postrider::sandbox::account::Account;
use postrider::sandbox::port;
use postrider::sandbox::tether::{LastSignal, Tether};
use serde_json::Value;

use crate::support::java;

/// Heap of the worker, in MiB: a dozen connectors with small queues.
const HEAP_MIB: u32 = 512;

/// How long the worker may take to answer one question about itself.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// Lines of a failure that are worth showing: the exceptions, not their stacks.
const CAUSES: usize = 3;

/// A started worker.
#[derive(Debug)]
pub(crate) struct Connect {
    child: Child,
    port: u16,
    tether: Tether,
}

impl Connect {
    /// Starts a worker with these connectors, each as it would be posted to Connect.
    pub(crate) fn start(jars: &Path, bootstrap: &str, connectors: &[(&str, &str)]) -> Self {
        let account = Account::unprivileged().unwrap();
        let home = account.make_folder("postrider-connect-").unwrap();
        let mut tether = Tether::new(&home).unwrap();
        let port = port::free().unwrap();
        let worker = home.join("worker.properties");
        fs::write(&worker, properties(bootstrap, port, &home)).unwrap();
        let files = connectors.iter().map(|(name, text)| {
            let file = home.join(format!("{name}.json"));
            fs::write(&file, text).unwrap();
            file
        });
        let files: Vec<PathBuf> = files.collect();
        let log = File::create(home.join("log")).unwrap();
        let child = java::command(java::Purpose::Test, account, &home, jars, HEAP_MIB)
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(&worker)
            .args(&files)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        tether.hold(child.id(), LastSignal::Kill).unwrap();
        Self { child, port, tether }
    }

    /// Why the worker, or one of its connectors, does not run any more.
    pub(crate) fn failure(&mut self) -> Option<String> {
        if let Some(status) = self.child.try_wait().unwrap() {
            return Some(format!("the worker ended, {status}: {}", self.log()));
        }
        let status = self.ask("/connectors?expand=status")?;
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
        let text = fs::read_to_string(self.tether.folder().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// What its REST interface says, or nothing as long as it is not up.
    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(ASK_LIMIT)).unwrap();
        // HTTP/1.0: the answer ends with the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }
}

impl Drop for Connect {
    fn drop(&mut self) {
        // Killing fails only for a worker that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn properties(bootstrap: &str, port: u16, home: &Path) -> String {
    let mut text = String::new();
    let offsets = home.join("offsets").display().to_string();
    let listener = format!("http://127.0.0.1:{port}");
    for (name, value) in [
        ("bootstrap.servers", bootstrap),
        ("listeners", &listener),
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
