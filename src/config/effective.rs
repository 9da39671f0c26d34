//! Lists every effective value and where it came from, without secrets, for `postrider config show`.
//!
//! Input: the configuration, the merged settings, the environment. Output: one `Effective` per option, in
//! the order of the option table, then librdkafka's properties and the routing rules; and `source.connect`,
//! the servers that the connection string and libpq's variables come to. `Shown` is a value as an operator
//! would type it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::layer::{Setting, SettingOrigin, Value, toml_text};
use super::model::Config;
use super::options::{OptionKind, property};
use super::rule_options::is_rules;
use super::table::{OPTIONS, option};
use postrider_postgres::libpq::SslMode;
use postrider_secrets::mask::{MASK, mask_connection_string, mask_text, shown};
use postrider_service::units::{format_duration, format_size};

/// One line of `config show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// The option.
    pub key: String,
    /// The value, masked where it is secret.
    pub value: Shown,
    /// Where it came from.
    pub origin: SettingOrigin,
}

/// A value as an operator would type it. Displays as TOML, serializes as what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// Text; a time or a size with its unit, for a bare number would not say of what.
    Text(String),
    /// A list of strings.
    List(Vec<String>),
    /// On or off.
    Switch(bool),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&toml_text(text)),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| toml_text(item)).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Switch(on) => write!(f, "{on}"),
        }
    }
}

/// Libpq's variables that decide where and as whom we connect.
const LIBPQ: [&str; 12] = [
    "PGSERVICE",
    "PGSERVICEFILE",
    "PGHOST",
    "PGHOSTADDR",
    "PGPORT",
    "PGDATABASE",
    "PGUSER",
    "PGPASSWORD",
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
];

/// In the order of the table; `source.connect`, what the connection string comes to, after it; then
/// librdkafka's properties and the rules.
pub(super) fn list(
    config: &Config,
    settings: &BTreeMap<String, Setting>,
    variables: &[(String, String)],
) -> Vec<Effective> {
    let line = |key: &str, setting: &Setting| Effective {
        key: key.to_owned(),
        value: show(key, setting),
        origin: setting.origin.clone(),
    };
    let mut lines = Vec::new();
    for option in OPTIONS {
        let Some(setting) = settings.get(option.key) else { continue };
        lines.push(line(option.key, setting));
        if option.kind == OptionKind::Connection {
            let origin = libpq(variables).unwrap_or_else(|| setting.origin.clone());
            let value = Shown::Text(connection(config));
            lines.push(Effective { key: "source.connect".to_owned(), value, origin });
        }
    }
    let numbered = settings.iter().filter(|(key, _)| is_rules(key) || property(key).is_some());
    lines.extend(numbered.map(|(key, setting)| line(key, setting)));
    lines
}

fn show(key: &str, setting: &Setting) -> Shown {
    match &setting.value {
        Value::Text(text) => Shown::Text(match option(key).map(|option| option.kind) {
            Some(OptionKind::Connection) => mask_connection_string(text),
            // Names of options say nothing of passwords; values may.
            Some(_) => mask_text(text).into_owned(),
            None => shown(key, text).into_owned(),
        }),
        Value::List(items) => {
            let mut shown: Vec<_> =
                items.iter().map(|item| mask_text(&item.text).into_owned()).collect();
            let has_names = option(key).is_some_and(|option| option.kind == OptionKind::Names);
            match (has_names, shown.len()) {
                (true, 0 | 1) => Shown::Text(shown.pop().unwrap_or_default()),
                _ => Shown::List(shown),
            }
        }
        Value::Switch(on) => Shown::Switch(*on),
        Value::Duration(duration) => Shown::Text(format_duration(*duration)),
        Value::Size(bytes) => Shown::Text(format_size(*bytes)),
    }
}

fn connection(config: &Config) -> String {
    let connect = &config.source.connect;
    let servers: Vec<String> = connect.endpoints.iter().map(ToString::to_string).collect();
    let password = connect.endpoints.iter().any(|endpoint| endpoint.password.is_some());
    format!(
        "server={} user={} dbname={} sslmode={}{}",
        servers.join(","),
        connect.user,
        connect.database,
        sslmode(connect.tls.mode),
        if password { format!(" password={MASK}") } else { String::new() }
    )
}

const fn sslmode(mode: SslMode) -> &'static str {
    match mode {
        SslMode::Disable => "disable",
        SslMode::Prefer => "prefer",
        SslMode::Require => "require",
        SslMode::VerifyCa => "verify-ca",
        SslMode::VerifyFull => "verify-full",
    }
}

fn libpq(variables: &[(String, String)]) -> Option<SettingOrigin> {
    let is_set =
        |name: &&str| variables.iter().any(|(set, value)| set == name && !value.is_empty());
    let names: Vec<&str> = LIBPQ.iter().copied().filter(|name| is_set(name)).collect();
    (!names.is_empty()).then(|| SettingOrigin::Libpq(names.join(", ")))
}
