//! Does what a fix of `postrider doctor` says: each literal step as it is printed, with nothing filled in but what the
//! step itself names as a placeholder.

use std::net::TcpListener;
use std::process::Command;

use postrider::sandbox::postgres::{Cluster, Stop};
use serde_json::Value;

use super::Report;
use crate::stage::Stage;
use support::acl::{May, On, grant};
use support::kafka::Kafka;
use support::relay::{Relay, Running};
use support::sql::Sql;

/// A set-up, and what its steps are done with.
pub(crate) struct World<'a> {
    pub(crate) stage: Stage,
    pub(crate) relay: Relay,
    pub(crate) kafka: Option<&'a Kafka>,
    pub(crate) cluster: Option<&'a mut Cluster>,
    /// Sessions and relays that the set-up needs to be broken, or fixed.
    pub(crate) sessions: Vec<Sql>,
    pub(crate) running: Vec<Running>,
    pub(crate) ports: Vec<TcpListener>,
    pub(crate) folder: tempfile::TempDir,
    /// Of a test that ends and starts its brokers.
    pub(crate) own_kafka: Option<Kafka>,
    /// What is filled in where the set-up alone knows it.
    pub(crate) placeholders: Vec<(&'static str, String)>,
    /// Of `doctor`.
    pub(crate) arguments: Vec<String>,
}

impl World<'_> {
    /// With the relay of this stage.
    pub(crate) fn new(stage: Stage) -> Self {
        let relay = stage.relay();
        Self {
            stage,
            relay,
            kafka: None,
            cluster: None,
            sessions: Vec::new(),
            running: Vec::new(),
            ports: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            own_kafka: None,
            placeholders: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Every step of the fix of a check.
    pub(crate) fn fix(&mut self, report: &Report, id: &str) {
        let check = report.find(id);
        let steps = check["fix"]["steps"].as_array().unwrap();
        assert!(!steps.is_empty(), "no step: {check:#}");
        let sql = self.stage.sql();
        for step in steps {
            let text = step["text"].as_str().unwrap();
            let whole = check["fix"]["text"].as_str().unwrap();
            assert!(whole.contains(text), "the step is not in the text: {check:#}");
            match (step["kind"].as_str().unwrap(), step["where"].as_str().unwrap()) {
                ("sql", "database") => sql.run(&self.filled(step)),
                ("shell", place) => self.shell(place, &self.filled(step)),
                ("postrider", "relay") => self.command(text),
                ("config", "relay") => self.configure(text),
                other => panic!("nobody does {other:?}"),
            }
        }
    }

    /// The step's text with what it leaves open, which it names.
    fn filled(&self, step: &Value) -> String {
        let mut text = step["text"].as_str().unwrap().to_owned();
        for placeholder in step["placeholders"].as_array().unwrap() {
            let placeholder = placeholder.as_str().unwrap();
            let value = match placeholder {
                "BROKER" => self.stage.bootstrap().to_owned(),
                "DATA_DIRECTORY" => self.stage.sql().value("SHOW data_directory"),
                other => {
                    let known = self.placeholders.iter().find(|(name, _)| *name == other);
                    known.unwrap_or_else(|| panic!("nobody knows {other}")).1.clone()
                }
            };
            text = text.replace(placeholder, &value);
        }
        text
    }

    fn shell(&mut self, place: &str, command: &str) {
        let words = words(command);
        match (place, words[0].as_str()) {
            ("server", "pg_ctl") => {
                assert_eq!(words[1], "restart");
                self.sessions.clear();
                self.cluster.as_mut().unwrap().restart(Stop::Fast).unwrap();
            }
            ("kafka", "kafka-server-stop.sh") => self.own_kafka.as_mut().unwrap().kill_broker(0),
            ("kafka", "kafka-server-start.sh") => self.own_kafka.as_mut().unwrap().start_broker(0),
            ("server" | "kafka", "cp") => run_in_shell(command),
            ("kafka", tool) => {
                assert_eq!(words[1..3], ["--bootstrap-server", self.stage.bootstrap()]);
                let words: Vec<&str> = words.iter().skip(3).map(String::as_str).collect();
                match tool {
                    "kafka-configs.sh" => {
                        self.kafka.unwrap().tool("kafka.admin.ConfigCommand", &words);
                    }
                    "kafka-acls.sh" => self.allow(&words),
                    other => panic!("{other}"),
                }
            }
            ("relay", "ulimit") => self.relay = self.relay.clone().after(command),
            ("relay", _) => run_in_shell(command),
            other => panic!("nobody does {other:?}"),
        }
    }

    /// What `kafka-acls.sh` would send, which is not among the jars of the tests.
    fn allow(&self, words: &[&str]) {
        assert_eq!(words[0], "--add");
        let of = |option: &'static str| {
            let pairs = words[1..].chunks(2).filter(move |pair| pair[0] == option);
            pairs.map(|pair| pair[1])
        };
        let rights: Vec<May> = of("--operation")
            .map(|right| match right {
                "Read" => May::Read,
                "Write" => May::Write,
                "Describe" => May::Describe,
                "DescribeConfigs" => May::DescribeConfigs,
                other => panic!("{other}"),
            })
            .collect();
        let user = of("--allow-principal").next().unwrap().strip_prefix("User:").unwrap();
        for topic in of("--topic") {
            grant(self.stage.bootstrap(), user, On::Topic, topic, &rights);
        }
        for id in of("--transactional-id") {
            grant(self.stage.bootstrap(), user, On::TransactionalId, id, &rights);
        }
    }

    fn command(&mut self, text: &str) {
        let words = words(text);
        assert_eq!(words[0], "postrider");
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        if arguments == ["run"] {
            let mut running = self.relay.run();
            running.wait_for_log("streaming");
            self.running.push(running);
            return;
        }
        let outcome = self.relay.start(&arguments).outcome();
        assert!(outcome.status.success(), "{text}: {}", outcome.log.join("\n"));
    }

    fn configure(&mut self, line: &str) {
        let table: toml::Table = line.parse().unwrap();
        let (section, rest) = table.iter().next().unwrap();
        let (name, value) = rest.as_table().unwrap().iter().next().unwrap();
        let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
        let value = match value {
            toml::Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
            value => text(value),
        };
        self.relay = self.relay.clone().set(&format!("{section}.{name}"), &value);
    }

    /// Ends what was started.
    pub(crate) fn end(self) {
        for running in self.running {
            running.stop();
        }
    }
}

fn run_in_shell(command: &str) {
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
}

/// As a shell has them, with single quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for c in command.chars() {
        match c {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}
