//! The draft's settings → commented TOML.
//!
//! Sections and settings are in the order of the option table. What always holds: a comment is one
//! that TOML allows, whatever the options of the file were called.

use std::fmt::Write as _;

use super::draft::{Draft, Setting, text};
use crate::config::options::{OPTIONS, PROPERTIES};
use crate::config::reference::wrap;

const HEAD: &str = "\
# Imported from a Debezium configuration by `postrider import debezium`.
# Each setting says which option it was; `postrider config example` explains all there are.
";

/// Columns that a comment may fill, `# ` not counted.
const WIDTH: usize = 96;

/// Writes all settings.
pub(super) fn render(draft: &Draft) -> String {
    let mut settings: Vec<&Setting> = draft.settings().iter().collect();
    settings.sort_by_key(|setting| place(&setting.key));
    let mut out = HEAD.to_owned();
    let mut current = "";
    for setting in settings {
        let (section, name) = split(&setting.key);
        if section != current {
            let _ = writeln!(out, "\n[{section}]");
            current = section;
        }
        for line in wrap(&plain(&setting.comment), WIDTH) {
            let _ = writeln!(out, "# {line}");
        }
        let _ = writeln!(out, "{name} = {}", setting.value);
    }
    out
}

/// The place of the section, then of the setting in it. Properties come last, since TOML has no way
/// back into [kafka].
fn place(key: &str) -> (usize, usize) {
    let section = key.split_once('.').map_or("", |(section, _)| section);
    let of = |found: Option<usize>| found.unwrap_or(OPTIONS.len());
    if key.starts_with(PROPERTIES) {
        return (OPTIONS.len(), 0);
    }
    (
        of(OPTIONS.iter().position(|option| option.section() == section)),
        of(OPTIONS.iter().position(|option| option.key == key)),
    )
}

/// Names of properties have dots in them, so they are quoted.
fn split(key: &str) -> (&str, String) {
    match key.strip_prefix(PROPERTIES).and_then(|rest| rest.strip_prefix('.')) {
        Some(property) => (PROPERTIES, text(property)),
        None => key
            .split_once('.')
            .map_or(("", key.to_owned()), |(section, name)| (section, name.to_owned())),
    }
}

/// Control characters are not allowed in comments.
fn plain(comment: &str) -> String {
    comment.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}
