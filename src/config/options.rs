//! What an option is: a name, a kind, a default, a unit and a meaning.
//!
//! Enters: a key. Leaves: its [`OptionSpec`], out of the table in `table.rs` or, for a key of a
//! rule such as `route.rules.0.glob`, out of that in `rules.rs`. What always holds: what is in
//! neither is no option.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use super::rules;
pub use super::table::OPTIONS;

/// What an option's value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text; what it must be is checked when the configuration is assembled.
    Text,
    /// A connection string, shown without its password.
    Connection,
    /// A list of strings; in the environment separated by commas.
    List,
    /// A name, or a list of names for the same thing.
    Names,
    /// `true` or `false`.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A duration between these bounds, both included.
    Duration(Duration, Duration),
    /// A size in bytes between these bounds, both included.
    Size(u64, u64),
}

impl Kind {
    /// What the value must be, for a reader.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Connection => "a connection string",
            Self::List => "a list of strings",
            Self::Names => "a name, or a list of names",
            Self::Switch => "true or false",
            Self::Choice(_) => "one of a few words",
            Self::Duration(..) => "a duration such as \"1s\"",
            Self::Size(..) => "a size such as \"32MiB\"",
        }
    }
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Section and name: `source.slot`.
    pub key: &'static str,
    /// What it looks like.
    pub kind: Kind,
    /// The default, as TOML.
    pub default: &'static str,
    /// The unit of the value, or "-".
    pub unit: &'static str,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
}

impl OptionSpec {
    /// The environment variable that sets it: `POSTRIDER_SOURCE__SLOT`.
    pub fn env(&self) -> String {
        env_name(self.key)
    }

    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.key.split_once('.').map_or("", |(section, _)| section)
    }

    /// The part after the last dot.
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }
}

/// What every variable of ours begins with.
pub(super) const ENV_PREFIX: &str = "POSTRIDER_";

/// The section whose keys are librdkafka's, not ours.
pub(super) const PROPERTIES: &str = "kafka.properties";

/// The environment variable for a key of the table.
pub(super) fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// The option of that key.
pub(super) fn option(key: &str) -> Option<&'static OptionSpec> {
    static BY_KEY: LazyLock<BTreeMap<&str, &OptionSpec>> =
        LazyLock::new(|| OPTIONS.iter().map(|option| (option.key, option)).collect());
    BY_KEY.get(key).copied().or_else(|| rules::option(key))
}

pub(super) const fn text(
    key: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, kind: Kind::Text, default, unit: "-", doc }
}

pub(super) const fn list(
    key: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, kind: Kind::List, default, unit: "-", doc }
}

pub(super) const fn names(
    key: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, kind: Kind::Names, default, unit: "-", doc }
}

pub(super) const fn switch(
    key: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, kind: Kind::Switch, default, unit: "-", doc }
}

pub(super) const fn choice(
    key: &'static str,
    words: &'static [&'static str],
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, kind: Kind::Choice(words), default, unit: "-", doc }
}

pub(super) const fn duration(
    key: &'static str,
    (min_ms, max_ms): (u64, u64),
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    let kind = Kind::Duration(Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    OptionSpec { key, kind, default, unit: "time", doc }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_have_one_dot() {
        for (index, option) in OPTIONS.iter().enumerate() {
            assert_eq!(option.key.matches('.').count(), 1, "{}", option.key);
            assert!(!OPTIONS[index + 1..].iter().any(|other| other.key == option.key));
            assert!(option.doc.ends_with('.'), "{}", option.key);
        }
    }

    #[test]
    fn environment_names() {
        let brokers = option("kafka.brokers").unwrap();
        assert_eq!(brokers.env(), "POSTRIDER_KAFKA__BROKERS");
        assert_eq!((brokers.section(), brokers.name()), ("kafka", "brokers"));
    }
}
