//! What was found, in numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use super::claims;
use super::dry_run::Answer;
use super::listed::Listed;

/// What became of the cases or lines of one file.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    identical: usize,
    /// Debezium stops, and here there is a record.
    delivered: usize,
    /// Debezium stops, and here there is a rejection.
    rejected: usize,
    /// Names of deliberate differences, by reason.
    deliberate: BTreeMap<String, BTreeSet<String>>,
    /// All names.
    names: BTreeSet<String>,
    /// What must not be, in words.
    pub(crate) different: Vec<String>,
}

/// How an answer compares to Debezium's, before the list is asked.
pub(crate) enum Outcome {
    Same,
    /// Debezium stops, which is to be bettered.
    Stops,
    /// In these respects.
    Differs(Vec<&'static str>),
}

impl Tally {
    /// Counts one comparison. `expected` is Debezium's answer.
    pub(crate) fn count(
        &mut self,
        name: &str,
        expected: &Value,
        compared: (Outcome, &Answer),
        listed: &Listed,
    ) {
        assert!(self.names.insert(name.to_owned()), "the name `{name}` is there twice");
        let (outcome, answer) = compared;
        match (outcome, listed.find(name)) {
            (Outcome::Same, None) => self.identical += 1,
            (Outcome::Stops, None) if answer.record().is_some() => self.delivered += 1,
            (Outcome::Stops, None) if answer.is("rejected") => self.rejected += 1,
            (Outcome::Differs(_), Some(is)) if is.answer == answer.to_listed() => {
                if !claims::holds(&is.why, expected, answer) {
                    self.differs(name, &is.why, expected, answer);
                }
                self.deliberate.entry(is.why.clone()).or_default().insert(name.to_owned());
            }
            (Outcome::Same | Outcome::Stops, Some(_)) => {
                self.different
                    .push(format!("{name}: is listed as deliberate, and does not differ"));
            }
            (Outcome::Differs(what), _) => {
                self.differs(name, &what.join(", "), expected, answer);
            }
            (Outcome::Stops, None) => self.differs(name, "no answer", expected, answer),
        }
    }

    fn differs(&mut self, name: &str, what: &str, expected: &Value, answer: &Answer) {
        let answer = answer.to_listed();
        self.different.push(format!("{name}: {what}\n  debezium: {expected}\n  here: {answer}"));
    }

    /// Adds another file's.
    pub(crate) fn add(&mut self, other: Self) {
        self.identical += other.identical;
        self.delivered += other.delivered;
        self.rejected += other.rejected;
        for (why, names) in other.deliberate {
            self.deliberate.entry(why).or_default().extend(names);
        }
        self.names.extend(other.names);
        self.different.extend(other.different);
    }

    /// The names that were met.
    pub(crate) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// How many differences each reason has.
    pub(crate) fn reasons(&self) -> String {
        let line = |(why, names): (&String, &BTreeSet<String>)| format!("{:>5} {why}", names.len());
        self.deliberate.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deliberate: usize = self.deliberate.values().map(BTreeSet::len).sum();
        write!(
            f,
            "{} identical, {} delivered and {} rejected where Debezium stops, {deliberate} deliberate, {} different",
            self.identical,
            self.delivered,
            self.rejected,
            self.different.len()
        )
    }
}
