//! Reads settings from environment variables, from `--set`, and from flags. Unknown names are
//! mistakes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use super::FlagValue;
use super::layer::{Layer, Raw, SettingOrigin};
use super::mistake::{Mistake, MistakeKind, SourcePosition, to_read};
use super::options::{ENV_PREFIX, OptionSpec, PROPERTIES, env_name, property};
use super::table::{OPTIONS, option};
use postrider_secrets::{SecretError, read_secret, shown};

/// Reads `POSTRIDER_A__B` and `POSTRIDER_A__B_FILE`. Other names are ignored (a Kubernetes service
/// called postrider sets `POSTRIDER_PORT`), unless only the underscores of an option are wrong.
pub(super) fn environment(variables: &[(String, String)]) -> Layer {
    let mut layer = Layer::default();
    for (name, value) in variables {
        let Some(path) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let place = || SourcePosition::Named(format!("environment variable {name}"));
        if let Some(key) = key_of(path) {
            layer.add(&key, Raw::Loose(value.clone()), SettingOrigin::Env(name.clone()), None);
        } else if let Some(key) = path.strip_suffix("_FILE").and_then(key_of) {
            layer.mistakes.extend(set_twice(name, &key, variables));
            match contents(&key, value) {
                Ok(text) => {
                    layer.add(&key, Raw::Loose(text), SettingOrigin::EnvFile(name.clone()), None);
                }
                Err((kind, help)) => {
                    layer.mistakes.push(Mistake { kind, place: place(), help: Some(help) });
                }
            }
        } else if path.contains("__") {
            let key = path.to_ascii_lowercase().replace("__", ".");
            layer.refuse_unknown(&key, place());
            if let Some(mistake) = layer.mistakes.last_mut() {
                mistake.help = mistake.help.take().map(|help| as_env(&help));
            }
        } else if let Some(option) = misspelled(name) {
            let kind = MistakeKind::UnknownKey { key: path.to_ascii_lowercase() };
            let help = Some(format!("did you mean `{}`, with two underscores?", option.env()));
            layer.mistakes.push(Mistake { kind, place: place(), help });
        }
    }
    layer
}

pub(super) fn contents(key: &str, path: &str) -> Result<String, (MistakeKind, String)> {
    read_secret(Path::new(path)).map_err(|error| {
        let reason = match error {
            SecretError::File { reason, .. } => reason,
            other => other.to_string(),
        };
        let found = std::fs::metadata(path);
        let mut help = found.err().and_then(|error| to_read(error.kind())).unwrap_or_else(|| {
            "write the value into it, alone, and make it readable for the user that runs this"
                .to_owned()
        });
        if Path::new(path).is_relative()
            && let Ok(folder) = std::env::current_dir()
        {
            let folder = folder.display();
            help = format!("{help}\nthis path is relative to the working directory, {folder}");
        }
        (MistakeKind::UnreadableFile { path: path_or_mask(key, path), reason }, help)
    })
}

/// Refuses both, because neither the value nor the file takes precedence.
fn set_twice(file_name: &str, key: &str, variables: &[(String, String)]) -> Option<Mistake> {
    let value_name = file_name.strip_suffix("_FILE")?;
    variables.iter().any(|(name, _)| name == value_name).then(|| Mistake {
        kind: MistakeKind::Invalid {
            key: key.to_owned(),
            reason: format!("{value_name} and {file_name} both give its value"),
        },
        place: SourcePosition::Named(format!("environment variable {file_name}")),
        help: Some(format!("unset one of them: `env -u {value_name}`, say")),
    })
}

pub(super) fn set(assignments: &[String]) -> Layer {
    let mut layer = Layer::default();
    for assignment in assignments {
        let Some((key, value)) = assignment.split_once('=') else {
            layer.mistakes.push(Mistake {
                kind: MistakeKind::Syntax("--set takes `section.name=value`".to_owned()),
                place: SourcePosition::Named("--set".to_owned()),
                help: Some("for example: --set kafka.compression=zstd".to_owned()),
            });
            continue;
        };
        let key = key.trim();
        if option(key).is_some() || property(key).is_some_and(|name| !name.is_empty()) {
            layer.add(key, Raw::Loose(value.to_owned()), SettingOrigin::Set, None);
        } else {
            layer.refuse_unknown(key, SourcePosition::Named("--set".to_owned()));
        }
    }
    layer
}

/// Later flags win.
pub(super) fn flags(flags: &[FlagValue]) -> Layer {
    let mut layer = Layer::default();
    for FlagValue { key, value, flag } in flags {
        layer.add(key, Raw::Loose(value.clone()), SettingOrigin::Flag((*flag).to_owned()), None);
    }
    layer
}

fn key_of(path: &str) -> Option<String> {
    let properties = env_name(PROPERTIES);
    let properties = properties.strip_prefix(ENV_PREFIX).unwrap_or("");
    if let Some(name) = path.strip_prefix(properties).and_then(|rest| rest.strip_prefix("__")) {
        // `SASL_PASSWORD_FILE` names the file that holds `sasl.password`.
        let is_plain = !name.is_empty() && !name.ends_with("_FILE");
        let name = name.to_ascii_lowercase().replace('_', ".");
        return is_plain.then(|| format!("{PROPERTIES}.{name}"));
    }
    let key = path.to_ascii_lowercase().replace("__", ".");
    // A rule's key in the table has a letter instead of the number.
    option(&key).is_some().then_some(key)
}

fn as_env(help: &str) -> String {
    let found = OPTIONS.iter().find(|option| help.contains(&format!("`{}`", option.key)));
    found.map_or_else(|| help.to_owned(), |option| format!("did you mean `{}`?", option.env()))
}

/// Masks the value unless it is a path, because it may be the secret itself.
fn path_or_mask(key: &str, value: &str) -> String {
    let is_path = ["/", "./", "../", "~"].iter().any(|start| value.starts_with(start));
    if is_path { value.to_owned() } else { shown(key, value).into_owned() }
}

/// The option whose variable differs only in underscores.
fn misspelled(name: &str) -> Option<&'static OptionSpec> {
    static PLAIN: LazyLock<BTreeMap<String, &OptionSpec>> =
        LazyLock::new(|| OPTIONS.iter().map(|option| (plain(&option.env()), option)).collect());
    PLAIN.get(&plain(name)).copied()
}

fn plain(name: &str) -> String {
    name.replace('_', "")
}
