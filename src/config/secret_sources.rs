//! Reads the settings that may hold secrets, with their files and commands, so that a running relay
//! can read them again after a rotation. No command is run here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::checks;
use super::layer::{Setting, SettingOrigin, Value};
use super::options::{PROPERTIES, env_name, property};
use super::reader::SettingsReader;
use super::values::{ConnectionString, Property};
use postrider_postgres::libpq::{ConnectInfo, PasswordCommand};
use postrider_secrets::mask::is_secret_name;
use postrider_service::units::InvalidValue;

/// The variable's name may be a part of a password.
const NOT_REPLACED: &str =
    "has a variable in it, as a shell or Kubernetes writes it, and nothing replaces variables here";

impl SettingsReader<'_> {
    pub(super) fn connect(&mut self, url: &ConnectionString) -> Option<ConnectInfo> {
        if checks::has_variable(url.expose()) {
            let help = "leave the password out of the URL, and set PGPASSWORD in the environment\n\
                        or set the whole URL in the environment: POSTRIDER_SOURCE__URL\n\
                        or name a file that holds the whole URL: url_file = \"PATH\", POSTRIDER_SOURCE__URL_FILE\n\
                        (of a password that has these characters, % and two digits stand for each: %24 is $)";
            return self.refuse("source.url", InvalidValue::new(NOT_REPLACED).help(help));
        }
        match ConnectInfo::resolve(url.expose(), self.env) {
            Ok((mut connect, warnings)) => {
                self.warnings.extend(warnings);
                if let Some(path) = self.file_of("source.url") {
                    connect = connect.read_from(path);
                }
                let connect = match self.password_command("source.password_command")? {
                    Some(command) => connect.ask(command),
                    None => connect,
                };
                self.logged_in(connect)
            }
            Err(error) => {
                let refusal = InvalidValue { reason: error.to_string(), help: error.hint() };
                self.refuse("source.url", refusal)
            }
        }
    }

    /// Variables would be sent unreplaced. A file with only a secret may contain any text.
    pub(super) fn variables(&mut self) {
        let settings = self.settings;
        for (key, setting) in settings {
            let Value::Text(text) = &setting.value else { continue };
            let is_file = matches!(
                setting.origin,
                SettingOrigin::EnvFile(_) | SettingOrigin::FileContents { .. }
            );
            let of_client = property(key);
            let is_meant = of_client.is_some() || is_secret_name(key);
            if !is_meant || is_file || !checks::has_variable(text) {
                continue;
            }
            let (variable, name) = match of_client {
                Some(name) => {
                    let end = name.to_ascii_uppercase().replace(['.', '-'], "_");
                    (format!("{}__{end}", env_name(PROPERTIES)), name)
                }
                None => (env_name(key), key.rsplit('.').next().unwrap_or(key)),
            };
            let help = format!(
                "set {variable} in the environment\nor name a file that holds the value by \
                 {variable}_FILE, or by `{name}_file` instead of `{name}`"
            );
            self.refuse::<()>(key, InvalidValue::new(NOT_REPLACED).help(help));
        }
    }

    /// Properties that are passed unchanged to librdkafka.
    pub(super) fn properties(&mut self) -> Vec<Property> {
        let named = |(key, setting): (&String, &Setting)| match (property(key), &setting.value) {
            (Some(name), Value::Text(value)) => {
                Some(Property { name: name.to_owned(), value: value.clone() })
            }
            _ => None,
        };
        self.settings.iter().filter_map(named).collect()
    }

    pub(super) fn files_of(&self, properties: &[Property]) -> BTreeMap<String, PathBuf> {
        let file = |property: &Property| {
            let name = &property.name;
            Some((name.clone(), self.file_of(&format!("{PROPERTIES}.{name}"))?))
        };
        properties.iter().filter_map(file).collect()
    }

    /// File of a setting, named by a `_FILE` variable or a `_file` setting.
    pub(super) fn file_of(&self, key: &str) -> Option<PathBuf> {
        match &self.settings.get(key)?.origin {
            SettingOrigin::EnvFile(variable) => (self.env)(variable).map(PathBuf::from),
            SettingOrigin::FileContents { of, .. } => Some(of.clone()),
            _ => None,
        }
    }

    /// The outer option means "no mistake", the inner one "there is such a command".
    #[expect(clippy::option_option, reason = "two questions, two answers")]
    pub(super) fn password_command(&mut self, key: &str) -> Option<Option<PasswordCommand>> {
        let words = self.items(key, |word| Ok(word.to_owned()))?;
        match (words.is_empty(), PasswordCommand::new(words)) {
            (false, None) => self.refuse(key, InvalidValue::new("names no program")),
            (_, command) => Some(command),
        }
    }
}
