//! Defines [`OptionSpec`], with constructors for the option tables.

use std::time::Duration;

type Text = &'static str;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// Text that is checked when the configuration is assembled.
    Text,
    /// Connection string, shown without its password.
    Connection,
    /// List of strings, separated by commas in the environment.
    List,
    /// Name, or alternative names.
    Names,
    Switch,
    Choice(&'static [&'static str]),
    /// Duration between these bounds, inclusive.
    Duration(Duration, Duration),
    /// Size in bytes between these bounds, inclusive.
    Size(u64, u64),
    Count(u64, u64),
}

impl OptionKind {
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
            Self::Count(..) => "a whole number",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Section and name: `source.slot`.
    pub key: &'static str,
    pub kind: OptionKind,
    /// Default as TOML.
    pub default: &'static str,
    pub doc: &'static str,
}

impl OptionSpec {
    /// Environment variable, such as `POSTRIDER_SOURCE__SLOT`.
    pub fn env(&self) -> String {
        env_name(self.key)
    }

    pub fn section(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }

    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }
}

pub(super) const ENV_PREFIX: &str = "POSTRIDER_";

/// Section whose keys are librdkafka's.
pub const PROPERTIES: &str = "kafka.properties";

pub(super) fn property(key: &str) -> Option<&str> {
    key.strip_prefix(PROPERTIES)?.strip_prefix('.')
}

pub fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

pub(super) const fn text(key: Text, default: Text, doc: Text) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::Text, default, doc }
}

pub(super) const fn list(key: Text, default: Text, doc: Text) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::List, default, doc }
}

pub(super) const fn names(key: Text, default: Text, doc: Text) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::Names, default, doc }
}

pub(super) const fn switch(key: Text, default: Text, doc: Text) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::Switch, default, doc }
}

pub(super) const fn choice(
    key: Text,
    words: &'static [Text],
    default: Text,
    doc: Text,
) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::Choice(words), default, doc }
}

pub(super) const fn duration(
    key: Text,
    (min_ms, max_ms): (u64, u64),
    default: Text,
    doc: Text,
) -> OptionSpec {
    let kind = OptionKind::Duration(Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    OptionSpec { key, kind, default, doc }
}

pub(super) const fn size(
    key: Text,
    (min, max): (u64, u64),
    default: Text,
    doc: Text,
) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::Size(min, max), default, doc }
}

pub(super) const fn count(
    key: Text,
    (min, max): (u64, u64),
    default: Text,
    doc: Text,
) -> OptionSpec {
    OptionSpec { key, kind: OptionKind::Count(min, max), default, doc }
}

#[cfg(test)]
mod tests {
    use crate::table::option;

    #[test]
    fn environment_names() {
        let brokers = option("kafka.brokers").unwrap();
        assert_eq!(brokers.env(), "POSTRIDER_KAFKA__BROKERS");
        assert_eq!((brokers.section(), brokers.name()), ("kafka", "brokers"));
    }
}
