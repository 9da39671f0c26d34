//! `postrider doctor --fix`: creates missing objects, and lists what is left for a person.
//!
//! Invariant: the code of `setup` and `prune --ahead` creates missing objects. The only alteration
//! adds a table to a publication. No slot is created if an earlier one delivered rows, or rows
//! would be left behind. A repeated run completes an interrupted one.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::check::{Check, Lack, Outcome};
use super::pruning;
use crate::failure::CommandFailure;
use crate::setup::{complete, missing};
use postrider_config::SourceMode;
use postrider_kafka::{Purpose, WantedTopic, topic_names};
use postrider_relay::Plan;

#[derive(Debug, Default)]
pub(super) struct FixPlan {
    pub(super) creates: Vec<String>,
    pub(super) refused: Vec<String>,
    with_source: bool,
    with_days: bool,
    topics: Vec<WantedTopic>,
}

impl FixPlan {
    pub(super) fn of(relay: &Plan, checks: &[Check], runtime: &Runtime) -> Self {
        let mut plan = Self::default();
        let lacks = || checks.iter().flat_map(|check| &check.lacks);
        if lacks().any(|lack| *lack == Lack::Source) {
            plan.look_at_source(relay, checks, runtime);
        }
        if lacks().any(|lack| *lack == Lack::Days) {
            match runtime.block_on(pruning::missing(relay)) {
                Ok(days) => {
                    plan.with_days = true;
                    plan.creates.extend(days);
                }
                Err(failure) => plan.refused.push(told(&failure)),
            }
        }
        for lack in lacks() {
            if let Lack::Topic(topic) = lack {
                plan.creates.push(format!("topic `{}`", topic.name));
                plan.topics.push(topic.clone());
            }
        }
        plan
    }

    fn look_at_source(&mut self, relay: &Plan, checks: &[Check], runtime: &Runtime) {
        let failed = |id: &str| checks.iter().any(|it| it.id == id && it.outcome == Outcome::Fail);
        if relay.config.source.mode == SourceMode::Poll {
            self.refused
                .push("the table of rows that are polled: run `postrider setup`".to_owned());
        } else if relay.keeps_progress() && failed("kafka.reachable") {
            let why = "a slot: the brokers were not reached, which know whether an earlier one delivered rows";
            self.refused.push(why.to_owned());
        } else if failed("progress.position") {
            let why = "a slot: an earlier one delivered rows; `postrider repair` sends what is missing, and makes it";
            self.refused.push(why.to_owned());
        } else {
            match missing(relay, runtime) {
                Ok(objects) => {
                    self.with_source = true;
                    self.creates.extend(objects);
                    self.look_at_progress_topic(relay);
                }
                Err(failure) => self.refused.push(told(&failure)),
            }
        }
    }

    /// Plans the progress topic before the slot, whose beginning is recorded there.
    fn look_at_progress_topic(&mut self, relay: &Plan) {
        let name = &relay.config.progress.topic;
        let is_there = |there: BTreeSet<String>| there.contains(name);
        if relay.keeps_progress() && !topic_names(&relay.kafka).is_ok_and(is_there) {
            self.creates.push(format!("topic `{name}`"));
            self.topics.push(WantedTopic::new(name, Purpose::Progress));
        }
    }

    fn covers(&self, check: &Check) -> bool {
        let creates = |lack: &Lack| match lack {
            Lack::Source => self.with_source,
            Lack::Days => self.with_days,
            Lack::Topic(_) => true,
        };
        !check.lacks.is_empty() && check.lacks.iter().all(creates)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.creates.is_empty()
    }

    /// Creates the objects. Returns those created even after a failure.
    pub(super) fn execute(
        &self,
        relay: &Plan,
        runtime: &Runtime,
    ) -> (Vec<String>, Result<(), CommandFailure>) {
        let (mut created, made) = complete(relay, runtime, self.with_source, &self.topics);
        let days = if self.with_days {
            runtime.block_on(pruning::add(relay, &mut created))
        } else {
            Ok(())
        };
        (created, made.and(days))
    }

    /// `created`: `None` without `--execute`.
    pub(super) fn to_json(&self, left: &[&str], created: Option<&[String]>) -> Value {
        json!({
            "creates": self.creates, "refused": self.refused, "left": left,
            "executed": created.is_some(), "created": created.unwrap_or_default(),
        })
    }
}

fn told(failure: &CommandFailure) -> String {
    let told = failure.findings.iter().map(|finding| {
        let help = finding.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
        format!("{}{help}", finding.what)
    });
    told.collect::<Vec<_>>().join("; ")
}

pub(super) fn left(checks: &[Check], planned: Option<&FixPlan>) -> Vec<&'static str> {
    let is_wrong = |check: &&Check| check.outcome >= Outcome::Warn && !check.is_allowed;
    let is_left = |check: &&Check| !planned.is_some_and(|plan| plan.covers(check));
    let mut ids: Vec<_> =
        checks.iter().filter(is_wrong).filter(is_left).map(|check| check.id).collect();
    ids.dedup();
    ids
}
