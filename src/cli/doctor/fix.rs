//! The fix of a finding of `postrider doctor`: text for people, and its literal steps.
//!
//! Invariant: the text contains every step literally. A step is one statement, command or line.
//! Steps run in order, SQL in one session. If a person must choose, there are no steps, or the
//! steps of the choice that loses nothing.

use postrider_secrets::mask::mask_sentence;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    Sql,
    Shell,
    Postrider,
    /// A line of postrider.toml with the full name of the option.
    Config,
}

impl StepKind {
    const fn word(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::Shell => "shell",
            Self::Postrider => "postrider",
            Self::Config => "config",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The database of `source.url`, with a role that has the rights.
    Database,
    Replication,
    Server,
    /// A standby: its database `postgres`, or its machine.
    Standby,
    Kafka,
    Relay,
}

impl Place {
    const fn word(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Replication => "replication",
            Self::Server => "server",
            Self::Standby => "standby",
            Self::Kafka => "kafka",
            Self::Relay => "relay",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FixStep {
    pub(super) kind: StepKind,
    pub(super) place: Place,
    pub(super) text: String,
}

/// Placeholders for values that only the operator knows.
const PLACEHOLDERS: [&str; 13] = [
    "BROKER",
    "DATA_DIRECTORY",
    "NAME",
    "SLOT_OF_THE_STANDBY",
    "SCHEMA.TABLE",
    "DIRECTORY",
    "NEW_CERTIFICATE",
    "NEW_KEY",
    "NEW_KEYSTORE",
    "CERTIFICATE_FILE",
    "KEY_FILE",
    "KEYSTORE_FILE",
    "PRIMARY_CONNINFO",
];

const RESTART: &str = "pg_ctl restart -m fast -D DATA_DIRECTORY";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Fix {
    text: String,
    steps: Vec<FixStep>,
}

impl From<&str> for Fix {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Fix {
    fn from(text: String) -> Self {
        Self { text, steps: Vec::new() }
    }
}

impl Fix {
    pub(super) fn sql(statements: impl Into<String>) -> Self {
        let text = statements.into();
        let steps = split(&text).into_iter().map(|text| FixStep {
            kind: StepKind::Sql,
            place: Place::Database,
            text,
        });
        Self { steps: steps.collect(), text }
    }

    pub(super) fn standby(statements: &str, restart: bool) -> Self {
        let begun = Self::from(format!("at the standby: {statements}"));
        let add = |fix: Self, text| fix.then(StepKind::Sql, Place::Standby, text);
        let fix = split(statements).into_iter().fold(begun, add);
        if restart {
            let restarted = fix.say(" then restart it: ");
            return restarted.then(StepKind::Shell, Place::Standby, RESTART);
        }
        fix
    }

    pub(super) fn postrider(command: impl Into<String>) -> Self {
        Self::default().then(StepKind::Postrider, Place::Relay, command)
    }

    pub(super) fn config(line: impl Into<String>) -> Self {
        Self::default().then(StepKind::Config, Place::Relay, line)
    }

    /// The text is extended unless it already names the step.
    #[must_use]
    pub(super) fn then(mut self, kind: StepKind, place: Place, text: impl Into<String>) -> Self {
        let text = text.into();
        if !self.text.contains(&text) {
            let is_begun = self.text.is_empty() || self.text.ends_with(": ");
            let separator = if is_begun { "" } else { "; " };
            self.text = format!("{}{separator}{text}", self.text);
        }
        self.steps.push(FixStep { kind, place, text });
        self
    }

    #[must_use]
    pub(super) fn and(mut self, other: Self) -> Self {
        for FixStep { kind, place, text } in other.steps {
            self = self.then(kind, place, text);
        }
        self
    }

    #[must_use]
    pub(super) fn then_restart(self) -> Self {
        self.say(" then restart the server: ").then(StepKind::Shell, Place::Server, RESTART)
    }

    #[must_use]
    pub(super) fn say(mut self, words: &str) -> Self {
        self.text.push_str(words);
        self
    }

    /// Replaces the words around the steps, and must name each step.
    #[must_use]
    pub(super) fn told_as(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        let steps = std::mem::take(&mut self.steps);
        let add = |fix: Self, step: FixStep| fix.then(step.kind, step.place, step.text);
        steps.into_iter().fold(self, add)
    }

    pub(super) fn filled(mut self, name: &str, value: &str) -> Self {
        self.text = self.text.replace(name, value);
        for step in &mut self.steps {
            step.text = step.text.replace(name, value);
        }
        self
    }

    pub(super) fn masked(mut self) -> Self {
        self.text = mask_sentence(&self.text).into_owned();
        for step in &mut self.steps {
            step.text = mask_sentence(&step.text).into_owned();
        }
        self
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn to_json(&self) -> Value {
        let step = |step: &FixStep| {
            let is_meant = |word: &&&str| has_word(&step.text, word);
            json!({
                "kind": step.kind.word(),
                "where": step.place.word(),
                "text": step.text,
                "placeholders": PLACEHOLDERS.iter().filter(is_meant).collect::<Vec<_>>(),
            })
        };
        json!({ "text": self.text, "steps": self.steps.iter().map(step).collect::<Vec<_>>() })
    }
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Statements with their semicolons. Comments and a rest without semicolon are words.
fn split(sql: &str) -> Vec<String> {
    let (mut statements, mut begin, mut quote) = (Vec::new(), 0, None);
    for (at, c) in sql.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, ';') => {
                statements.push(sql[begin..=at].trim().to_owned());
                begin = at + 1;
            }
            (None, '-') if sql[at..].starts_with("--") => break,
            _ => {}
        }
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(fix: &Fix) -> Vec<&str> {
        fix.steps.iter().map(|step| step.text.as_str()).collect()
    }

    #[test]
    fn each_statement_is_a_step() {
        let two = Fix::sql("ALTER SYSTEM SET a = 'x;y'; SELECT pg_reload_conf(); -- no; more");
        assert_eq!(texts(&two), ["ALTER SYSTEM SET a = 'x;y';", "SELECT pg_reload_conf();"]);
        assert!(two.text().ends_with("no; more"));
        let again = two.clone().told_as("do SELECT pg_reload_conf(); at last");
        assert_eq!(texts(&again), texts(&two));
        let text = "do SELECT pg_reload_conf(); at last; ALTER SYSTEM SET a = 'x;y';";
        assert_eq!(again.text(), text, "what the words leave out is added");
    }

    #[test]
    fn a_step_says_what_it_is_where_it_is_done_and_what_is_to_be_filled_in() {
        let value = Fix::sql("ALTER SYSTEM SET a = 1;").then_restart().to_json();
        assert_eq!(
            value["text"],
            "ALTER SYSTEM SET a = 1; then restart the server: pg_ctl restart -m fast -D DATA_DIRECTORY"
        );
        assert_eq!(value["steps"][0]["placeholders"], json!([]));
        assert_eq!(
            value["steps"][1],
            json!({
                "kind": "shell", "where": "server", "text": RESTART,
                "placeholders": ["DATA_DIRECTORY"],
            })
        );
        assert_eq!(Fix::from("words").to_json()["steps"], json!([]));
        assert!(!has_word("USERNAME=1", "NAME") && has_word("User:NAME", "NAME"));
    }
}
