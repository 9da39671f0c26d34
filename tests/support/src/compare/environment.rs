//! Where and with what it was measured.
//!
//! Input: the machine, the servers, the repository. Output: an [`Environment`], as pairs of words. What cannot be found
//! out is `unknown`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value};

use super::contestants::Stage;
use crate::root;
use crate::sql::Sql;

/// Pairs of words, in a reader's order.
#[derive(Debug)]
pub(super) struct Environment(Vec<(&'static str, String)>);

impl Environment {
    pub(super) fn gather(stage: &Stage, sql: &Sql, build: &str) -> Self {
        let (major, minor) = stage.kafka.version();
        let java = said(Command::new("java").arg("-version"));
        let git =
            |arguments: &[&str]| said(Command::new("git").current_dir(root()).args(arguments));
        let status = git(&["status", "--porcelain", "--untracked-files=no"]);
        // Of a clean tree git says nothing.
        let changed = if status == UNKNOWN { "" } else { " with changes" };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self(vec![
            (
                "date",
                sql.value("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI \"UTC\"')"),
            ),
            ("commit", format!("{}{changed}", git(&["rev-parse", "--short=12", "HEAD"]))),
            ("processor", format!("{cores} cores, {}", line_of("/proc/cpuinfo", "model name"))),
            ("memory", line_of("/proc/meminfo", "MemTotal")),
            ("kernel", said(Command::new("uname").arg("-sr"))),
            ("load before", line_of("/proc/loadavg", "")),
            ("postrider", said(Command::new(&stage.postrider).arg("--version"))),
            ("build", build.to_owned()),
            ("postgresql", sql.value("SHOW server_version")),
            ("kafka", format!("{major}.{minor}, one broker")),
            ("debezium", version(&stage.debezium, "debezium-connector-postgres-")),
            ("kafka connect", version(&stage.debezium, "connect-runtime-")),
            ("java", java),
        ])
    }

    pub(super) fn pairs(&self) -> &[(&'static str, String)] {
        &self.0
    }

    pub(super) fn json(&self) -> Value {
        let pairs =
            self.0.iter().map(|(name, value)| (name.replace(' ', "_"), value.clone().into()));
        pairs.collect::<Map<String, Value>>().into()
    }
}

const UNKNOWN: &str = "unknown";

/// The first line of what a command says, on either stream.
fn said(command: &mut Command) -> String {
    let output = command.output().ok().filter(|output| output.status.success());
    let words = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    words.lines().next().map_or_else(|| UNKNOWN.to_owned(), |line| line.trim().to_owned())
}

/// What follows the colon in the line that begins so.
fn line_of(path: &str, begin: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(begin));
    let value = line.map(|line| line.split_once(':').map_or(line, |(_, value)| value).trim());
    value.map_or_else(|| UNKNOWN.to_owned(), str::to_owned)
}

/// That in the name of a jar.
fn version(jars: &Path, name: &str) -> String {
    let files = fs::read_dir(jars).into_iter().flatten().flatten();
    let mut names = files.filter_map(|file| file.file_name().into_string().ok());
    let version =
        names.find_map(|file| Some(file.strip_prefix(name)?.strip_suffix(".jar")?.to_owned()));
    version.unwrap_or_else(|| UNKNOWN.to_owned())
}
