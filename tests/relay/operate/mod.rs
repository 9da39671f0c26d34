//! What operators do to a relay that runs: reload, pause, drain, log level.

mod control;
mod pause;
mod refused;
mod reload;

use std::path::{Path, PathBuf};

use serde_json::Value;
use support::relay::Relay;

/// A folder with a configuration file and a control socket.
pub(crate) struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A relay that can be controlled here.
    pub(crate) fn controlled(&self, relay: Relay) -> Relay {
        relay.set("http.control.socket", self.path("control").to_str().unwrap())
    }

    /// Replaces the configuration file as editors do: another file gets its name.
    pub(crate) fn write(&self, text: &str) {
        let new = self.path("postrider.toml.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, self.file()).unwrap();
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.path("postrider.toml")
    }
}

/// The arguments of a relay with this configuration file.
pub(crate) fn with_file(file: &Path) -> [&str; 3] {
    ["-c", file.to_str().unwrap(), "run"]
}

/// `postrider ctl` with this relay's configuration: exit code, and what it printed as JSON.
pub(crate) fn ctl(relay: &Relay, words: &[&str]) -> (i32, Value) {
    let arguments = [&["ctl"], words, &["--output", "json"]].concat();
    let outcome = relay.start(&arguments).outcome();
    let code = outcome.status.code().unwrap();
    let answer = serde_json::from_str(outcome.stdout.lines().next().unwrap_or("null")).unwrap();
    (code, answer)
}
