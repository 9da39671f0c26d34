//! Formats one `tracing` event as a log line: time, level, message, then its fields. Control
//! characters are escaped in text.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::target;

use postrider_config::LogFormat;
use postrider_secrets::mask::mask_sentence;

const OF_ONE_ROW: [&str; 2] = ["id", "position"];

pub(super) struct LogLine {
    level: Level,
    target: &'static str,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl LogLine {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut line = Self {
            level: *metadata.level(),
            target: metadata.target(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut line);
        line
    }

    pub(super) fn warning(message: &str) -> Self {
        Self {
            level: Level::WARN,
            target: "postrider",
            message: message.to_owned(),
            fields: Vec::new(),
        }
    }

    pub(super) fn in_format(&self, format: LogFormat, color: bool) -> String {
        match format {
            LogFormat::Text => self.to_text(color) + "\n",
            LogFormat::Json => format!("{}\n", self.to_json()),
        }
    }

    pub(super) fn push(&mut self, name: &'static str, value: Value) {
        self.fields.push((name, value));
    }

    /// Without numbers and row-specific fields. Lines with equal gist report the same situation.
    pub(super) fn gist(&self) -> String {
        let mut gist = format!("{} {} {}", self.level, self.target, blur(&self.message));
        for (name, value) in self.fields.iter().filter(|(name, _)| !OF_ONE_ROW.contains(name)) {
            let text = match value {
                // The name of a stream may be a number.
                Value::String(text) if *name == super::STREAM => text.clone(),
                Value::String(text) => blur(text),
                _ => "#".to_owned(),
            };
            let _ = write!(gist, " {name}={text}");
        }
        gist
    }

    pub(super) fn to_text(&self, color: bool) -> String {
        let style = match self.level {
            Level::ERROR => "1;31",
            Level::WARN => "33",
            Level::INFO => "32",
            _ => "2",
        };
        let level = format!("{:>5}", self.level.as_str());
        let mut out = if color {
            format!("\x1b[2m{}\x1b[0m \x1b[{style}m{level}\x1b[0m ", now())
        } else {
            format!("{} {level} ", now())
        };
        if !self.target.starts_with("postrider") {
            let _ = write!(out, "{}: ", self.target);
        }
        out.push_str(&visible(&self.message));
        for (name, value) in &self.fields {
            let text = match value {
                Value::String(text) => quoted_if_needed(text),
                other => other.to_string(),
            };
            let _ = write!(out, " {name}={text}");
        }
        out
    }

    pub(super) fn to_json(&self) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), now().into());
        object.insert("level".to_owned(), self.level.as_str().into());
        object.insert("target".to_owned(), target::shown(self.target).into());
        object.insert("message".to_owned(), self.message.as_str().into());
        for (name, value) in &self.fields {
            object.entry(*name).or_insert_with(|| value.clone());
        }
        Value::Object(object).to_string()
    }

    /// The text may repeat a setting, such as a URL with its password.
    fn text(&mut self, field: &Field, text: String) {
        let text = match mask_sentence(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(masked) => masked,
        };
        match field.name() {
            "message" => self.message = text,
            // Fields from the bridge to the `log` crate.
            name if name.starts_with("log.") => {}
            name => self.push(name, text.into()),
        }
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field.name(), value.into());
    }
}

fn blur(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let token = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | '-');
        let end = rest.find(|c| !token(c)).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        if run.is_empty() {
            out.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or("");
        } else {
            out.push_str(if run.contains(|c: char| c.is_ascii_digit()) { "#" } else { run });
            rest = tail;
        }
    }
    out
}

fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

fn quoted_if_needed(text: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=';
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("{text:?}") }
}

pub(crate) fn now() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    match text.split_once('.') {
        Some((seconds, fraction)) => {
            format!("{seconds}.{}Z", fraction.get(..3).unwrap_or("000"))
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_identifiers_are_blurred() {
        assert_eq!(blur("10.0.0.1:9092 after 5.2s"), "#:# after #s");
        assert_eq!(blur("id 3fa85f64-5717-4562-b3fc-2c963f66afa6"), "id #");
        assert_eq!(blur("a bad face"), "a bad face");
    }

    #[test]
    fn the_time_is_utc_in_milliseconds() {
        let now = now();
        assert_eq!(now.len(), "2025-01-01T00:00:00.000Z".len(), "{now}");
    }
}
