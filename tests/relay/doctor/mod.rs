//! `postrider doctor` before set-ups that are really broken: each has its own finding, and passes once the fix that
//! is printed was applied.

mod applied;
mod brokers;
mod certificates;
mod failover;
mod machine;
mod running;
mod server;
mod setups;
mod source;
pub(crate) mod steps;

use serde_json::Value;
use support::relay::{Outcome, Relay};

/// What it said.
pub(crate) struct Report {
    checks: Vec<Value>,
    exit: Option<i32>,
}

impl Report {
    /// Asks with what this relay is configured with.
    pub(crate) fn of(relay: &Relay) -> Self {
        Self::asked(relay, &[])
    }

    /// The same with further arguments.
    pub(crate) fn asked(relay: &Relay, arguments: &[&str]) -> Self {
        let arguments = [&["doctor", "--output", "json"], arguments].concat();
        let Outcome { status, stdout, log } = relay.start(&arguments).outcome();
        let value: Value = serde_json::from_str(&stdout)
            .unwrap_or_else(|error| panic!("{error}: {stdout}\n{}", log.join("\n")));
        let Value::Array(checks) = value["checks"].clone() else { panic!("{stdout}") };
        Self { checks, exit: status.code() }
    }

    fn find(&self, id: &str) -> &Value {
        let found = self.checks.iter().find(|check| check["id"] == id);
        found.unwrap_or_else(|| panic!("no check `{id}` in {:#?}", self.checks))
    }

    /// Such as `pass`; of several of this id that of the first.
    pub(crate) fn status(&self, id: &str) -> &str {
        self.find(id)["status"].as_str().unwrap()
    }

    /// What was found.
    pub(crate) fn finding(&self, id: &str) -> &str {
        self.find(id)["finding"].as_str().unwrap()
    }

    /// The code of the error that `run` would end with.
    pub(crate) fn code(&self, id: &str) -> &str {
        self.find(id)["code"].as_str().unwrap_or_default()
    }

    /// How the command ended.
    pub(crate) const fn exit(&self) -> Option<i32> {
        self.exit
    }

    /// The same of a check that may not be there.
    pub(crate) fn status_or_none(&self, id: &str) -> Option<&str> {
        let found = self.checks.iter().find(|check| check["id"] == id)?;
        found["status"].as_str()
    }

    /// Whether there are checks of this id, and all of them pass.
    pub(crate) fn all_pass(&self, id: &str) -> bool {
        let mut of_id = self.checks.iter().filter(|check| check["id"] == id).peekable();
        of_id.peek().is_some() && of_id.all(|check| check["status"] == "pass")
    }

    /// What is to be done.
    pub(crate) fn fix(&self, id: &str) -> &str {
        self.find(id)["fix"]["text"].as_str().unwrap_or_else(|| panic!("no fix: {}", self.find(id)))
    }

    /// The literal steps of the fix.
    pub(crate) fn steps(&self, id: &str) -> &[Value] {
        self.find(id)["fix"]["steps"].as_array().unwrap()
    }

    /// Everything that is not as it should be, by id.
    pub(crate) fn wrong(&self) -> Vec<&str> {
        let is_wrong = |check: &&Value| check["status"] == "fail" || check["status"] == "warn";
        self.checks.iter().filter(is_wrong).map(|check| check["id"].as_str().unwrap()).collect()
    }

    /// Demands that this check failed or warned, with this in its fix.
    #[track_caller]
    pub(crate) fn demands(&self, id: &str, status: &str, fix: &str) {
        assert_eq!(self.status(id), status, "{:#}", self.find(id));
        assert!(self.fix(id).contains(fix), "`{fix}` is not in {:#}", self.find(id));
        assert!(status != "fail" || self.exit == Some(1), "{:?}", self.exit);
    }
}
