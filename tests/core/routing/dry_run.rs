//! `postrider route --debezium`: a configuration and lines in, an answer for each line out.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

/// What came of a line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// The line that was printed.
    Line(Value),
    /// The configuration was refused with this exit code, and nothing was printed.
    Exit(i32),
}

/// The connector whose options a case or a recorded line adds to.
pub(crate) fn connector(options: &Map<String, Value>) -> Value {
    let string = "org.apache.kafka.connect.storage.StringConverter";
    let mut all = json!({
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "topic.prefix": "p",
        "table.include.list": "public.outbox",
        "key.converter": string,
        "value.converter": string,
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    });
    all.as_object_mut().unwrap().extend(options.clone());
    all
}

/// Runs the lines through one process, whose configuration is `connector`.
pub(crate) fn answers(connector: &Value, lines: &[String]) -> Vec<Answer> {
    let mut file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    file.write_all(connector.to_string().as_bytes()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["route", "--debezium"])
        .arg(file.path())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A refused configuration leaves without reading.
        scope.spawn(move || lines.iter().try_for_each(|line| writeln!(stdin, "{line}")));
        child.wait_with_output().unwrap()
    });
    let printed: Vec<Answer> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| Answer::Line(serde_json::from_slice(line).unwrap()))
        .collect();
    let code = output.status.code().unwrap_or(-1);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if printed.is_empty() && code != 0 {
        assert_eq!(code, 78, "{connector}: {stderr}");
        return vec![Answer::Exit(code); lines.len().max(1)];
    }
    assert_eq!(printed.len(), lines.len(), "{connector}: {stderr}");
    printed
}

impl Answer {
    /// The record, if it is one.
    pub(crate) fn record(&self) -> Option<&Value> {
        match self {
            Self::Line(line) if line.get("topic").is_some() => Some(line),
            _ => None,
        }
    }

    /// Whether a member of the line is true.
    pub(crate) fn is(&self, member: &str) -> bool {
        matches!(self, Self::Line(line) if line.get(member) == Some(&Value::Bool(true)))
    }

    /// As `deliberate.json` has it: a rejection without its words, an exit as text.
    pub(crate) fn to_listed(&self) -> Value {
        match self {
            Self::Exit(code) => format!("exit {code}").into(),
            Self::Line(line) if self.is("rejected") => {
                json!({ "rejected": true, "code": line["code"] })
            }
            Self::Line(line) => line.clone(),
        }
    }
}

/// What `postrider route` prints for lines, with these arguments before it.
pub(crate) fn printed(arguments: &[&str], lines: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(arguments)
        .arg("route")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A few lines, fewer than a pipe holds.
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}
