//! Reads the TOML file into a `Layer`, with the position of every key and value for mistakes.
//! Settings of each `[[stream]]` are separate. `raw` also reads the defaults of options, which are
//! TOML.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::environment::contents;
use super::layer::{Layer, Raw, SettingOrigin, did_you_mean};
use super::mistake::{Mistake, MistakeKind, SourceFile, SourcePosition, Span};
use super::options::{OptionKind, PROPERTIES, property};
use super::rule_options::{RULES, is_rule};
use super::streams::{NAME, STREAM, StreamTable, check_name, wrong_name};
use super::table::{OPTIONS, option};

/// The layer holds all mistakes, or one if the text is not TOML.
pub(super) fn read(path: &Path, text: &str) -> (Layer, Vec<StreamTable>) {
    let file = Arc::new(SourceFile::new(path, text));
    let (mut layer, mut streams) = (Layer::default(), Vec::new());
    match DeTable::parse(text) {
        Ok(table) => {
            let streams = Some(&mut streams);
            Walk { file, layer: &mut layer, streams }.section("", table.get_ref());
        }
        Err(error) => {
            layer.mistakes.push(not_toml(file, text, &error));
        }
    }
    (layer, streams)
}

fn not_toml(file: Arc<SourceFile>, text: &str, error: &toml::de::Error) -> Mistake {
    let range = range_of(error);
    if let Some((what, help)) = other_language(text) {
        let kind = MistakeKind::Syntax(format!("this is {what}, and the configuration is TOML"));
        // Secrets can only be located in TOML, so the lines are not shown.
        let place = SourcePosition::Named(file.path().display().to_string());
        return Mistake { kind, place, help: Some(help.to_owned()) };
    }
    let place = |range| SourcePosition::File(Span { file, range, is_key: false }.excerpt());
    let said = error.message().replace('\n', ", ");
    let repeated = text.get(range.clone()).filter(|_| said == "duplicate key");
    if let Some(name) = repeated {
        let kind = MistakeKind::Syntax(format!("`{}` appears twice", name.trim()));
        let help = Some("remove one of the two".to_owned());
        return Mistake { kind, place: place(range), help };
    }
    if let Some(opened) = unclosed_quote(text, range.start) {
        let kind = MistakeKind::Syntax("a quote is opened here and not closed".to_owned());
        let help = Some("write a quote before and behind each text: [\"one\", \"two\"]".to_owned());
        return Mistake { kind, place: place(opened), help };
    }
    Mistake { kind: MistakeKind::Syntax(said), place: place(range), help: None }
}

fn other_language(text: &str) -> Option<(&'static str, &'static str)> {
    const EXAMPLE: &str =
        "`postrider config example` prints a file to begin with: [section], then name = value";
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next()?;
    if first.starts_with('{') {
        let is_connector = text.contains("\"connector.class\"");
        return Some(if is_connector {
            ("a connector's JSON", "`postrider import debezium FILE` translates it")
        } else {
            ("JSON", EXAMPLE)
        });
    }
    let name = first.split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
    };
    (first == "---" || name.is_some_and(|(name, _)| is_name(name))).then_some(("YAML", EXAMPLE))
}

/// Text without its closing quote, in the line of `at`.
fn unclosed_quote(text: &str, at: usize) -> Option<Range<usize>> {
    let at = at.min(text.len());
    // The parser may point behind a last line without a line end.
    let before = text.get(..at)?;
    let start = before.trim_end_matches(['\r', '\n']).rfind('\n').map_or(0, |line| line + 1);
    let line = text.get(start..)?.lines().next()?;
    let mut open: Option<(usize, char)> = None;
    let mut swallowed = None;
    let mut is_escaped = false;
    for (place, char) in line.char_indices() {
        match open {
            Some((from, quote)) if char == quote && !is_escaped => {
                let inside = line.get(from + 1..place).unwrap_or("");
                // The text contains a separator that belongs after the quote: `"a, "`.
                if inside.trim_end().ends_with([',', ']']) {
                    swallowed = swallowed.or(Some(from));
                }
                open = None;
            }
            Some((_, quote)) => is_escaped = quote == '"' && char == '\\' && !is_escaped,
            None if char == '#' => break,
            None if matches!(char, '"' | '\'') => open = Some((place, char)),
            None => {}
        }
    }
    let from = open.map(|(from, _)| swallowed.unwrap_or(from))?;
    Some(start + from..start + line.len())
}

fn range_of(error: &toml::de::Error) -> Range<usize> {
    error.span().unwrap_or(0..0)
}

struct Walk<'a> {
    file: Arc<SourceFile>,
    layer: &'a mut Layer,
    /// Target for streams; `None` within a stream.
    streams: Option<&'a mut Vec<StreamTable>>,
}

impl Walk<'_> {
    fn section(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let dot = if prefix.is_empty() { "" } else { "." };
            let key = format!("{prefix}{dot}{}", name.get_ref());
            let span = self.span(value.span());
            match value.get_ref() {
                DeValue::Table(inner) if is_section(&key) => self.section(&key, inner),
                DeValue::Array(rules) if key == RULES => self.rules(&key, rules),
                DeValue::Array(tables) if key == STREAM && self.streams.is_some() => {
                    for table in tables {
                        self.stream(table);
                    }
                }
                _ if key == STREAM && self.streams.is_some() => self.not_a_stream(&span),
                DeValue::String(_) if key == NAME && self.streams.is_none() => {}
                DeValue::String(of) if option(&key).is_none() && holds(&key).is_some() => {
                    let is_twice =
                        value_name(name.get_ref()).is_some_and(|it| table.contains_key(it));
                    self.contents(&key, of, &self.key_span(name.span()), is_twice);
                }
                other if option(&key).is_some() || property(&key).is_some() => {
                    let span =
                        if property(&key).is_some() { self.key_span(name.span()) } else { span };
                    let origin = SettingOrigin::File {
                        path: self.file.path().to_owned(),
                        line: span.line(),
                    };
                    let raw = raw(other, &|range| Some(self.span(range)));
                    self.layer.add(&key, raw, origin, Some(span));
                }
                _ if is_section(&key) => self.not_a_section(&key, &span),
                _ => {
                    let place = SourcePosition::File(self.key_span(name.span()).excerpt());
                    self.layer.refuse_unknown(&key, place);
                }
            }
        }
    }

    fn contents(&mut self, key: &str, of: &str, place: &Span, is_twice: bool) {
        let Some(option) = holds(key) else { return };
        let mut refuse = |kind, help| {
            let place = SourcePosition::File(place.excerpt());
            self.layer.mistakes.push(Mistake { kind, place, help });
        };
        if is_twice {
            let reason = format!("{option} and {key} both give its value");
            let kind = MistakeKind::Invalid { key: option.to_owned(), reason };
            return refuse(kind, Some("leave one of them out".to_owned()));
        }
        match contents(option, of) {
            Ok(text) => {
                let origin = SettingOrigin::FileContents {
                    path: self.file.path().to_owned(),
                    line: place.line(),
                    of: of.into(),
                };
                self.layer.add(option, Raw::Text(text), origin, Some(place.clone()));
            }
            Err((kind, help)) => refuse(kind, Some(help)),
        }
    }

    fn rules(&mut self, key: &str, rules: &[toml::Spanned<DeValue<'_>>]) {
        for (number, rule) in rules.iter().enumerate() {
            let key = format!("{key}.{number}");
            match rule.get_ref() {
                DeValue::Table(rule) => self.section(&key, rule),
                _ => self.not_a_section(&key, &self.span(rule.span())),
            }
        }
    }

    fn stream(&mut self, table: &toml::Spanned<DeValue<'_>>) {
        let DeValue::Table(inner) = table.get_ref() else {
            return self.not_a_stream(&self.span(table.span()));
        };
        let mut layer = Layer::default();
        Walk { file: Arc::clone(&self.file), layer: &mut layer, streams: None }.section("", inner);
        let name = inner.get(NAME);
        let place = self.span(name.map_or_else(|| table.span(), toml::Spanned::span));
        match check_name(name.and_then(|name| name.get_ref().as_str())) {
            Ok(name) => {
                let stream = StreamTable { name, place, layer };
                self.streams.iter_mut().for_each(|streams| streams.push(stream.clone()));
            }
            Err(reason) => {
                self.layer.mistakes.push(wrong_name(reason, &place));
                self.layer.mistakes.extend(layer.mistakes);
            }
        }
    }

    fn not_a_stream(&mut self, span: &Span) {
        let kind = MistakeKind::WrongType {
            key: STREAM.to_owned(),
            expected: "a list of tables",
            found: "something else",
        };
        let place = SourcePosition::File(span.excerpt());
        let help = Some("begin each stream with [[stream]], in two pairs of brackets".to_owned());
        self.layer.mistakes.push(Mistake { kind, place, help });
    }

    fn not_a_section(&mut self, key: &str, span: &Span) {
        let kind = MistakeKind::WrongType {
            key: key.to_owned(),
            expected: "a section",
            found: "a single value",
        };
        let place = SourcePosition::File(span.excerpt());
        let help = Some(did_you_mean(&format!("{key}.")));
        self.layer.mistakes.push(Mistake { kind, place, help });
    }

    fn span(&self, range: Range<usize>) -> Span {
        Span { file: Arc::clone(&self.file), range, is_key: false }
    }

    fn key_span(&self, range: Range<usize>) -> Span {
        Span { is_key: true, ..self.span(range) }
    }
}

pub(super) fn raw(value: &DeValue<'_>, span: &dyn Fn(Range<usize>) -> Option<Span>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => Raw::Number(number.to_string()),
        DeValue::Float(number) => Raw::Number(number.to_string()),
        DeValue::Boolean(on) => Raw::Switch(*on),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a section"),
        DeValue::Array(items) => Raw::List(
            items.iter().map(|item| (raw(item.get_ref(), span), span(item.span()))).collect(),
        ),
    }
}

fn value_name(name: &str) -> Option<&str> {
    name.strip_suffix("_file")
}

/// The option that this key names a file for. Any text option allows a file, because it may be
/// secret.
fn holds(key: &str) -> Option<&str> {
    let holds = value_name(key)?;
    let is_text = |kind| matches!(kind, OptionKind::Text | OptionKind::Connection);
    let is_option = option(holds).is_some_and(|option| is_text(option.kind));
    (is_option || property(holds).is_some_and(|name| !name.is_empty())).then_some(holds)
}

/// `source`, `kafka.properties`, or the beginning of a dotted name.
fn is_section(key: &str) -> bool {
    property(key).is_some()
        || key == PROPERTIES
        || key == RULES
        || is_rule(key)
        || OPTIONS.iter().any(|option| option.section() == key)
}
