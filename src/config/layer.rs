//! Settings from one place (file, environment, `--set`, flags or defaults), converted to their
//! options' types.
//!
//! Invariant: every key in a layer is an option, a rule's option or below `kafka.properties`, and
//! its value has that option's kind.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::kafka::BROKERS;
use super::mistake::{Mistake, MistakeKind, SourcePosition, Span};
use super::options::{OptionKind, OptionSpec};
use super::rule_options::{RULE_OPTIONS, RULES, is_rules};
use super::table::{OPTIONS, option};
use super::typo;
use postrider_secrets::mask::MASK;
use postrider_service::units::{format_duration, format_size, parse_size, read_duration};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    Default,
    /// Several places: each part with the place it came from.
    Parts(Vec<(String, String)>),
    File {
        path: PathBuf,
        line: usize,
    },
    /// A file that a configuration file names.
    FileContents {
        /// The configuration file.
        path: PathBuf,
        line: usize,
        /// The file that holds the value.
        of: PathBuf,
    },
    Env(String),
    /// Variable that names a file with the value.
    EnvFile(String),
    Set,
    Flag(String),
}

impl std::fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Parts(places) => {
                let named = |(parts, place): &(String, String)| format!("{parts}: {place}");
                f.write_str(&places.iter().map(named).collect::<Vec<_>>().join("; "))
            }
            Self::Env(name) | Self::EnvFile(name) => write!(f, "env {name}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::FileContents { path, line, of } => {
                write!(f, "{}:{line}, contents of {}", path.display(), of.display())
            }
            Self::Set => f.write_str("--set"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Raw {
    Text(String),
    /// Text from the environment or a flag, perhaps a list or a switch.
    Loose(String),
    Switch(bool),
    /// Number as written.
    Number(String),
    List(Vec<(Raw, Option<Span>)>),
    /// Name of an unsupported TOML type.
    Other(&'static str),
}

impl Raw {
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Loose(_) => "text",
            Self::Switch(_) => "true or false",
            Self::Number(_) => "a number",
            Self::List(_) => "a list",
            Self::Other(name) => name,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) text: String,
    pub(super) span: Option<Span>,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    List(Vec<Item>),
    Switch(bool),
    Duration(Duration),
    Size(u64),
    Count(u64),
}

#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) value: Value,
    pub(super) origin: SettingOrigin,
    pub(super) span: Option<Span>,
}

impl Setting {
    pub(super) fn place(&self) -> SourcePosition {
        place_of(&self.origin, self.span.as_ref())
    }
}

pub(super) fn place_of(origin: &SettingOrigin, span: Option<&Span>) -> SourcePosition {
    match (span, origin) {
        (Some(span), _) => SourcePosition::File(span.excerpt()),
        (None, SettingOrigin::Env(name) | SettingOrigin::EnvFile(name)) => {
            SourcePosition::Named(format!("environment variable {name}"))
        }
        (None, SettingOrigin::Set) => SourcePosition::Named("--set".to_owned()),
        (None, SettingOrigin::Flag(name)) => SourcePosition::Named(name.clone()),
        (
            None,
            SettingOrigin::Default
            | SettingOrigin::Parts(_)
            | SettingOrigin::File { .. }
            | SettingOrigin::FileContents { .. },
        ) => SourcePosition::Nowhere,
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    pub(super) settings: BTreeMap<String, Setting>,
    pub(super) mistakes: Vec<Mistake>,
}

impl Layer {
    /// A wrong value is left out and becomes a mistake.
    pub(super) fn add(&mut self, key: &str, raw: Raw, origin: SettingOrigin, span: Option<Span>) {
        let read = match option(key) {
            Some(option) => read_option(key, option, raw),
            None => read_property(key, raw),
        };
        match read {
            Ok(value) => {
                self.settings.insert(key.to_owned(), Setting { value, origin, span });
            }
            Err((kind, help)) => {
                let place = place_of(&origin, span.as_ref());
                self.mistakes.push(Mistake { kind, place, help });
            }
        }
    }

    pub(super) fn refuse_unknown(&mut self, key: &str, place: SourcePosition) {
        let kind = MistakeKind::UnknownKey { key: key.to_owned() };
        self.mistakes.push(Mistake { kind, place, help: Some(did_you_mean(key)) });
    }
}

/// Parts of the connection that users write as options.
const IN_URL: [(&[&str], &str); 2] = [
    (
        &["password", "passwd", "pass", "pgpassword"],
        "set PGPASSWORD in the environment, or name a password file in source.url: \
         url = \"postgresql://USER@HOST:5432/DATABASE?passfile=PATH\"",
    ),
    (
        &[
            "host",
            "hostname",
            "port",
            "user",
            "username",
            "dbname",
            "database",
            "sslmode",
            "sslrootcert",
        ],
        "put it into source.url: url = \"postgresql://USER@HOST:5432/DATABASE?sslmode=verify-full\"",
    ),
];

pub(super) fn did_you_mean(key: &str) -> String {
    if key.starts_with("stream.") {
        // A suggestion would be an option at the top level, which applies to every stream.
        return "an option of one stream belongs in its [[stream]] in the file, a secret as \
                `url_file = \"PATH\"`"
            .to_owned();
    }
    if is_rules(key) {
        let names: Vec<&str> = RULE_OPTIONS.iter().map(OptionSpec::name).collect();
        return format!(
            "a [[{RULES}]] has {}; outside of a file it has a number, as in `{RULES}.0.glob`",
            names.join(", ")
        );
    }
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let known_section = OPTIONS.iter().any(|option| option.section() == section);
    if (section == "source" || !known_section)
        && let Some((_, help)) = IN_URL.iter().find(|(names, _)| names.contains(&name))
    {
        return (*help).to_owned();
    }
    let elsewhere = OPTIONS.iter().find(|option| option.name() == name);
    if let (true, Some(option)) = (!known_section || section.is_empty(), elsewhere) {
        return format!("did you mean `{}`?", option.key);
    }
    // At most a third of the letters may be wrong in a typo.
    let most = (name.chars().count().max(3) / 3).max(1) + usize::from(!known_section) * 2;
    let nearest = OPTIONS
        .iter()
        .filter_map(|option| Some((typo::distance(option.key, key, most)?, option)))
        .min_by_key(|(distance, option)| (*distance, option.section() != section));
    if let Some((_, option)) = nearest {
        return format!("did you mean `{}`?", option.key);
    }
    if let Some(option) = elsewhere {
        return format!("did you mean `{}`?", option.key);
    }
    if known_section {
        let names: Vec<&str> = OPTIONS
            .iter()
            .filter(|option| option.section() == section)
            .map(OptionSpec::name)
            .collect();
        let properties = if section == "kafka" { ", [kafka.properties]" } else { "" };
        return format!("[{section}] has {}{properties}", names.join(", "));
    }
    let mut sections: Vec<&str> = OPTIONS.iter().map(OptionSpec::section).collect();
    sections.dedup();
    let all = sections.join(", ");
    let typed = if section.is_empty() { name } else { section };
    let most = (typed.chars().count() / 3).max(1);
    let near = sections.iter().filter_map(|one| Some((typo::distance(one, typed, most)?, one)));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((_, one)) => format!("did you mean [{one}]? The sections are {all}"),
        None => format!("the sections are {all}"),
    }
}

type Wrong = (MistakeKind, Option<String>);

fn read_option(key: &str, option: &OptionSpec, raw: Raw) -> Result<Value, Wrong> {
    let invalid = |refusal: postrider_service::units::InvalidValue| {
        let key = key.to_owned();
        (MistakeKind::Invalid { key, reason: refusal.reason }, refusal.help)
    };
    match (option.kind, raw) {
        (OptionKind::Text | OptionKind::Connection, Raw::Text(text) | Raw::Loose(text)) => {
            Ok(Value::Text(text))
        }
        (OptionKind::Choice(words), Raw::Text(text) | Raw::Loose(text)) => {
            check_choice(key, words, &text)?;
            Ok(Value::Text(text))
        }
        (OptionKind::Switch, Raw::Switch(on)) => Ok(Value::Switch(on)),
        (OptionKind::Switch, Raw::Loose(text)) => match text.as_str() {
            "true" => Ok(Value::Switch(true)),
            "false" => Ok(Value::Switch(false)),
            _ => Err(wrong_type(key, option, "other text", None)),
        },
        (OptionKind::Duration(min, max), Raw::Text(text) | Raw::Loose(text)) => {
            let duration = read_duration(&text).map_err(invalid)?;
            let shown = (format_duration(min), format_duration(max));
            check_range(key, (min..=max).contains(&duration), shown)?;
            Ok(Value::Duration(duration))
        }
        (OptionKind::Size(min, max), Raw::Text(text) | Raw::Loose(text)) => {
            let bytes = parse_size(&text).map_err(invalid)?;
            let shown = (format_size(min), format_size(max));
            check_range(key, (min..=max).contains(&bytes), shown)?;
            Ok(Value::Size(bytes))
        }
        (OptionKind::Count(min, max), Raw::Number(text) | Raw::Text(text) | Raw::Loose(text)) => {
            let count = read_count(key, &text)?;
            check_range(key, (min..=max).contains(&count), (min.to_string(), max.to_string()))?;
            Ok(Value::Count(count))
        }
        // No address contains a comma, and Kafka's own clients write lists like this.
        (OptionKind::List, Raw::Text(text)) if key == BROKERS.key => {
            Ok(loose_list(separated(&text)))
        }
        (OptionKind::Names, Raw::Text(text)) => Ok(Value::List(vec![Item { text, span: None }])),
        (OptionKind::List | OptionKind::Names, Raw::Loose(text)) => {
            items(&text).map(loose_list).ok_or_else(|| broken_list(key, option, &text))
        }
        (OptionKind::List | OptionKind::Names, Raw::List(items)) => read_list(key, option, items),
        (_, raw) => Err(wrong_kind(key, option, &raw)),
    }
}

fn wrong_kind(key: &str, option: &OptionSpec, raw: &Raw) -> Wrong {
    let help = match (option.kind, raw) {
        (OptionKind::Duration(..), Raw::Number(number)) => {
            Some(format!("say the unit: \"{number}s\" or \"{number}ms\""))
        }
        (OptionKind::Size(..), Raw::Number(number)) => {
            Some(format!("say the unit: \"{number}B\" or \"{number}MiB\""))
        }
        (OptionKind::List, Raw::Text(text)) => Some(in_brackets(option, text)),
        _ => Some(format!("for example: {} = {}", option.name(), option.default)),
    };
    wrong_type(key, option, raw.describe(), help)
}

/// Mistake for a list with unmatched brackets or quotes. Words of a command may be secret.
fn broken_list(key: &str, option: &OptionSpec, text: &str) -> Wrong {
    let is_command = option.name().ends_with("command");
    let shown = if is_command { MASK } else { text };
    let reason = format!("`{shown}` is not a list: its brackets or quotes do not match");
    let help = if is_command {
        "write [\"PROGRAM\", \"ARGUMENT\"]".to_owned()
    } else {
        let bare = separated(&text.replace(['[', ']', '"', '\''], ""));
        let items: Vec<String> = bare.iter().map(|item| toml_text(item)).collect();
        format!("write {}, or [{}]", bare.join(","), items.join(", "))
    };
    (MistakeKind::Invalid { key: key.to_owned(), reason }, Some(help))
}

/// Items of a list outside of a file: names between commas, in brackets or not, or a TOML list as
/// in hints and the manual.
fn items(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    let is_quoted = text.contains(['"', '\'']);
    let is_list = text.starts_with('[') && (is_quoted || text.ends_with(']')) && !is_address(text);
    if is_list && is_quoted {
        let parsed = toml::de::DeValue::parse(text).ok()?;
        let items = parsed.get_ref().as_array()?;
        return items.iter().map(|item| Some(item.get_ref().as_str()?.to_owned())).collect();
    }
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let items = separated(inner.filter(|_| is_list).unwrap_or(text));
    items.iter().all(|item| is_item(item)).then_some(items)
}

/// Whether a text is an item, and not part of a list with unmatched brackets or quotes. Globs and
/// commands may contain brackets.
fn is_item(text: &str) -> bool {
    let (opens, closes) = (text.starts_with('['), text.ends_with(']'));
    let is_bare = !opens && !closes || is_address(text);
    let is_even = |char| text.matches(char).count() % 2 == 0;
    let is_closed = ['"', '\''].into_iter().all(|quote| !text.starts_with(quote) || is_even(quote));
    let is_balanced = text.matches('[').count() == text.matches(']').count();
    is_closed && (is_bare || is_balanced && !(opens && closes))
}

fn separated(text: &str) -> Vec<String> {
    let items = text.split(',').map(|item| item.trim().to_owned());
    items.filter(|item| !item.is_empty()).collect()
}

/// Whether a text begins with a broker's address in brackets: `[::1]:9092`.
fn is_address(text: &str) -> bool {
    let host = text.strip_prefix('[').and_then(|text| text.split_once(']'));
    host.is_some_and(|(host, _)| host.parse::<Ipv6Addr>().is_ok())
}

fn loose_list(items: Vec<String>) -> Value {
    Value::List(items.into_iter().map(|text| Item { text, span: None }).collect())
}

/// TOML list for the words of a command, or for names between commas.
fn in_brackets(option: &OptionSpec, text: &str) -> String {
    let items = if option.name().ends_with("command") {
        text.split_whitespace().map(str::to_owned).collect()
    } else {
        separated(text)
    };
    let items: Vec<String> = items.iter().map(|item| toml_text(item)).collect();
    format!("put it in brackets: [{}]", items.join(", "))
}

fn read_count(key: &str, text: &str) -> Result<u64, Wrong> {
    text.trim().parse().map_err(|_| {
        let reason = format!("`{text}` is not a whole number from 0 on");
        (MistakeKind::Invalid { key: key.to_owned(), reason }, None)
    })
}

fn read_list(
    key: &str,
    option: &OptionSpec,
    raw: Vec<(Raw, Option<Span>)>,
) -> Result<Value, Wrong> {
    let mut items = Vec::with_capacity(raw.len());
    for (raw, span) in raw {
        match raw {
            Raw::Text(text) => items.push(Item { text, span }),
            _ => return Err(wrong_type(key, option, "a list with something else in it", None)),
        }
    }
    Ok(Value::List(items))
}

fn read_property(key: &str, raw: Raw) -> Result<Value, Wrong> {
    match raw {
        Raw::Text(text) | Raw::Loose(text) | Raw::Number(text) => Ok(Value::Text(text)),
        Raw::Switch(on) => Ok(Value::Text(on.to_string())),
        Raw::List(_) | Raw::Other(_) => {
            let found = raw.describe();
            let expected = "text, a number, true or false";
            Err((MistakeKind::WrongType { key: key.to_owned(), expected, found }, None))
        }
    }
}

fn check_choice(key: &str, words: &[&str], text: &str) -> Result<(), Wrong> {
    if words.contains(&text) {
        return Ok(());
    }
    // Beyond half of a short word, another word is meant.
    let most = |word: &str| (word.len() / 2).min(3);
    let near =
        words.iter().filter_map(|word| Some((typo::distance(word, text, most(word))?, word)));
    let near = near.min_by_key(|(distance, _)| *distance);
    let all = words.join(", ");
    let help = match near {
        Some((_, word)) => format!("did you mean \"{word}\"? The choices are {all}"),
        None => format!("the choices are {all}"),
    };
    let reason = format!("`{text}` is not one of its choices");
    Err((MistakeKind::Invalid { key: key.to_owned(), reason }, Some(help)))
}

fn check_range(key: &str, inside: bool, (min, max): (String, String)) -> Result<(), Wrong> {
    if inside {
        return Ok(());
    }
    let reason = format!("must be between {min} and {max}");
    Err((MistakeKind::Invalid { key: key.to_owned(), reason }, None))
}

fn wrong_type(key: &str, option: &OptionSpec, found: &'static str, help: Option<String>) -> Wrong {
    let expected = option.kind.describe();
    (MistakeKind::WrongType { key: key.to_owned(), expected, found }, help)
}

pub fn toml_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
