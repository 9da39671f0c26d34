//! The differences that are meant.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

/// `deliberate.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// Words, each with the sentence that explains it.
    reasons: BTreeMap<String, String>,
    /// By the name of a case or a recorded line.
    answers: BTreeMap<String, Deliberate>,
}

/// A difference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deliberate {
    /// One of the words.
    pub(crate) why: String,
    /// What is answered instead.
    pub(crate) answer: Value,
}

impl Listed {
    /// Reads the list; every word has its sentence, and every sentence a use.
    pub(crate) fn read(text: &str) -> Self {
        let listed: Self = serde_json::from_str(text).unwrap();
        let used: BTreeSet<_> = listed.answers.values().map(|answer| &answer.why).collect();
        let known: BTreeSet<_> = listed.reasons.keys().collect();
        assert_eq!(used, known, "the reasons that are used, and those that are explained");
        listed
    }

    /// Whether and why this may differ.
    pub(crate) fn find(&self, name: &str) -> Option<&Deliberate> {
        self.answers.get(name)
    }

    /// What is listed, but not among these.
    pub(crate) fn not_among(&self, names: &BTreeSet<String>) -> Vec<&String> {
        self.answers.keys().filter(|name| !names.contains(*name)).collect()
    }
}
