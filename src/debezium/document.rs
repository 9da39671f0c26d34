//! Writes the imported settings as commented TOML, in the order of the option table. Comments are
//! valid TOML, whatever names the options have.

use std::fmt::Write as _;

use super::draft::{Draft, DraftSetting, text};
use postrider_config::{OPTIONS, PROPERTIES, env_name, wrap};
use postrider_secrets::mask::is_secret_name;

const HEAD: &str = "\
# Imported from a Debezium configuration by `postrider import debezium`.
# Each setting says which option it was; `postrider config example` explains all there are.
";

const INCOMPLETE: &str = "\
#
# INCOMPLETE: these options are not translated, and records may differ without them.
";

/// Section whose setting names reveal secrets. The source's password is in its URL.
const KAFKA: &str = "kafka.";

const WIDTH: usize = 96;

pub(super) fn render(draft: &Draft) -> String {
    write(draft, &|_, setting| Some(setting.value.clone()))
}

pub(super) fn render_without_secrets(draft: &Draft) -> String {
    write(draft, &|draft, setting| {
        let value = setting.without_secrets.as_ref().unwrap_or(&setting.value);
        let is_secret = setting.key.starts_with(KAFKA) && is_secret_name(&setting.key);
        (!is_secret && draft.without_secrets(value) == *value).then(|| value.clone())
    })
}

fn write(draft: &Draft, value: &dyn Fn(&Draft, &DraftSetting) -> Option<String>) -> String {
    let mut settings: Vec<&DraftSetting> = draft.settings().iter().collect();
    settings.sort_by_cached_key(|setting| place(&setting.key));
    let mut out = HEAD.to_owned();
    if draft.refused().next().is_some() {
        out.push_str(INCOMPLETE);
    }
    for finding in draft.refused() {
        let text = draft.without_secrets(&format!("{}: {}", finding.option, finding.note));
        for (index, line) in wrap(&plain(&text), WIDTH - 2).iter().enumerate() {
            let _ = writeln!(out, "# {} {line}", if index == 0 { "-" } else { " " });
        }
    }
    let mut current = "";
    for setting in settings {
        let (section, name) = split(&setting.key);
        if section != current {
            let _ = writeln!(out, "\n[{section}]");
            current = section;
        }
        let value = value(draft, setting);
        let left_out = || {
            let variable = variable(&setting.key);
            format!("{name} is secret and left out here: set {variable} or {variable}_FILE")
        };
        let left_out = if value.is_none() { left_out() } else { String::new() };
        let comment = draft.without_secrets(&setting.comment);
        for text in [comment, left_out].iter().filter(|text| !text.is_empty()) {
            for line in wrap(&plain(text), WIDTH) {
                let _ = writeln!(out, "# {line}");
            }
        }
        if let Some(value) = value {
            let hash = if setting.is_required { "# " } else { "" };
            let _ = writeln!(out, "{hash}{name} = {value}");
        }
    }
    out
}

/// Properties are last, because TOML cannot return to [kafka].
fn place(key: &str) -> (usize, usize) {
    let section = key.rsplit_once('.').map_or("", |(section, _)| section);
    let of = |found: Option<usize>| found.unwrap_or(OPTIONS.len());
    if key.starts_with(PROPERTIES) {
        return (OPTIONS.len(), 0);
    }
    (
        of(OPTIONS.iter().position(|option| option.section() == section)),
        of(OPTIONS.iter().position(|option| option.key == key)),
    )
}

/// Names of properties contain dots, so they are quoted.
fn split(key: &str) -> (&str, String) {
    match key.strip_prefix(PROPERTIES).and_then(|rest| rest.strip_prefix('.')) {
        Some(property) => (PROPERTIES, text(property)),
        None => key
            .rsplit_once('.')
            .map_or(("", key.to_owned()), |(section, name)| (section, name.to_owned())),
    }
}

fn variable(key: &str) -> String {
    match key.strip_prefix(PROPERTIES).and_then(|rest| rest.strip_prefix('.')) {
        Some(name) => {
            let name = name.to_ascii_uppercase().replace('.', "_");
            format!("{}__{name}", env_name(PROPERTIES))
        }
        None => env_name(key),
    }
}

/// TOML comments must not contain control characters.
fn plain(comment: &str) -> String {
    comment.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}
