//! Lists every effective value and its origin, without secrets, for `config show`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::layer::{Setting, SettingOrigin, Value, toml_text};
use super::model::Config;
use super::options::{OptionKind, property};
use super::rule_options::is_rules;
use super::table::{OPTIONS, option};
use postrider_postgres::libpq::{ConnectInfo, ParameterOrigin, SslMode};
use postrider_secrets::mask::{MASK, mask_connection_string, mask_text, shown};
use postrider_service::units::{format_duration, format_size};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub key: String,
    pub value: Shown,
    pub origin: SettingOrigin,
}

/// As typed: displays as TOML, serializes with its own type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// Text, or a time or size with its unit.
    Text(String),
    List(Vec<String>),
    Switch(bool),
    Count(u64),
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
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

/// In the order of the table, with `source.connect` after `source.url`; then librdkafka's
/// properties and the rules.
pub(super) fn list(config: &Config, settings: &BTreeMap<String, Setting>) -> Vec<Effective> {
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
            let origin = places(&config.source.connect, settings, setting);
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
            // Any text may hold a password, whatever the option's name.
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
        Value::Count(count) => Shown::Count(*count),
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

/// Origins of the parts of the connection, grouped by place.
fn places(
    connect: &ConnectInfo,
    settings: &BTreeMap<String, Setting>,
    url: &Setting,
) -> SettingOrigin {
    let asked = |key: &str| {
        let setting = settings.get(key).filter(|it| it.origin != SettingOrigin::Default)?;
        Some(format!("{key}, {}", setting.origin))
    };
    let place = |origin| match origin {
        ParameterOrigin::Text => url.origin.to_string(),
        ParameterOrigin::Service => "the service file".to_owned(),
        ParameterOrigin::Environment(variable) => format!("env {variable}"),
        ParameterOrigin::PasswordFile(path) => path.display().to_string(),
        ParameterOrigin::Asked => asked("source.password_command")
            .or_else(|| asked("source.login"))
            .unwrap_or_else(|| "issued at each connect".to_owned()),
        ParameterOrigin::Default => SettingOrigin::Default.to_string(),
    };
    let mut places: Vec<(String, String)> = Vec::new();
    for (part, origin) in connect.origins() {
        let place = place(origin);
        match places.iter_mut().find(|(_, known)| *known == place) {
            Some((parts, _)) => *parts = format!("{parts}, {part}"),
            None => places.push((part.to_owned(), place)),
        }
    }
    SettingOrigin::Parts(places)
}
