//! The error output of a command, on stderr: text for people, one JSON object, or JSON log lines.
//!
//! Invariant: each diagnostic states what failed, a stable code, and reason and remedy if known;
//! secrets typed on the command line are masked.

use std::error::Error;
use std::fmt::Write as _;

use serde_json::json;

use super::codes::ErrorCode;
use super::exit::ExitCode;
use crate::mask_arguments::{typed_words, without_typed_secrets};
use postrider_config::SourceLine;
use postrider_secrets::mask::mask_sentence;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFailure {
    pub exit: ExitCode,
    /// All known problems. If empty, nothing is printed.
    pub findings: Vec<Diagnostic>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text {
        /// Whether to use ANSI colours.
        color: bool,
    },
    /// JSON object with all findings, for `--output json`.
    Object,
    /// JSON line per finding, like the lines of a JSON log.
    LogLines,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable: `PR-C` configuration, `PR-P` Postgres, `PR-K` Kafka, `PR-R` routing, `PR-D` dead
    /// letters, `PR-V` verify, `PR-H` HTTP, `PR-X` the rest.
    pub code: ErrorCode,
    pub what: String,
    pub why: Option<String>,
    pub excerpt: Option<SourceLine>,
    /// The exact command, SQL or setting that fixes it.
    pub help: Option<String>,
}

impl CommandFailure {
    pub fn new(exit: ExitCode, code: ErrorCode, what: impl Into<String>) -> Self {
        let finding = Diagnostic { code, what: what.into(), why: None, excerpt: None, help: None };
        Self { exit, findings: vec![finding] }
    }

    /// The error's text becomes `what`, its sources become `why`.
    pub fn of(
        exit: ExitCode,
        code: ErrorCode,
        error: &(dyn Error + 'static),
        hint: Option<String>,
    ) -> Self {
        let what = error.to_string();
        let mut reasons: Vec<String> = Vec::new();
        let mut source = error.source();
        while let Some(error) = source {
            let reason = error.to_string();
            // Libraries often repeat their source in their own text.
            let is_new = !what.contains(&reason) && !reasons.iter().any(|r| r.contains(&reason));
            if is_new {
                reasons.push(reason);
            }
            source = error.source();
        }
        let why = (!reasons.is_empty()).then(|| reasons.join(": "));
        let finding = Diagnostic { code, what, why, excerpt: None, help: hint };
        Self { exit, findings: vec![finding] }
    }

    /// Prints nothing, because the reader of stdout went away.
    pub const fn silent(exit: ExitCode) -> Self {
        Self { exit, findings: Vec::new() }
    }

    pub fn is(&self, code: ErrorCode) -> bool {
        self.findings.last().is_some_and(|finding| finding.code == code)
    }

    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        if let Some(finding) = self.findings.last_mut() {
            finding.why = Some(why.into());
        }
        self
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        if let Some(finding) = self.findings.last_mut() {
            finding.help = Some(help.into());
        }
        self
    }

    pub fn to_text(&self, color: bool) -> String {
        let mut out = String::new();
        for finding in &self.findings {
            finding.write_text(&mut out, color);
        }
        out
    }

    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    pub fn to_value(&self) -> serde_json::Value {
        let errors: Vec<_> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "code": finding.code.as_str(),
                    "what": finding.what,
                    "why": finding.why,
                    "place": finding.place(),
                    "help": finding.help,
                })
            })
            .collect();
        json!({ "exit_code": self.exit.number(), "errors": errors })
    }

    pub fn to_log_lines(&self) -> String {
        let line = |finding: &Diagnostic| {
            let line = json!({
                "time": super::logs::now(),
                "level": "ERROR",
                "target": "postrider",
                "message": finding.what,
                "code": finding.code.as_str(),
                "why": finding.why,
                "place": finding.place(),
                "help": finding.help,
                "exit_code": self.exit.number(),
            });
            line.to_string() + "\n"
        };
        self.findings.iter().map(line).collect()
    }

    /// Names one of several streams in the commands of the help.
    #[must_use]
    pub(crate) fn of_stream(mut self, name: &str) -> Self {
        for finding in &mut self.findings {
            finding.help = finding.help.as_ref().map(|help| naming_stream(help, name));
        }
        self
    }

    pub(crate) fn masked(&self) -> Self {
        Self { exit: self.exit, findings: self.findings.iter().map(fit).collect() }
    }

    /// Ends the log and prints the failure after it.
    pub fn print(&self, form: Form) {
        let fit = self.masked();
        let text = match form {
            _ if fit.findings.is_empty() => return,
            Form::Object => fit.to_json() + "\n",
            Form::LogLines => fit.to_log_lines(),
            Form::Text { color } => fit.to_text(color),
        };
        super::logs::end(&text);
    }
}

/// Adds `--stream NAME` to `postrider` commands between backticks, except `run`, which delivers all
/// streams.
fn naming_stream(text: &str, name: &str) -> String {
    let named = |(number, part): (usize, &str)| {
        let is_command = number % 2 == 1 && part.starts_with("postrider ");
        if is_command && part != "postrider run" && !part.contains("--stream") {
            format!("{part} --stream {name}")
        } else {
            part.to_owned()
        }
    };
    text.split('`').enumerate().map(named).collect::<Vec<_>>().join("`")
}

/// Masks typed secrets, which an error may repeat as a file name, and texts that look like a
/// secret.
fn fit(finding: &Diagnostic) -> Diagnostic {
    let fit =
        |text: &String| mask_sentence(&without_typed_secrets(text, typed_words())).into_owned();
    Diagnostic {
        what: fit(&finding.what),
        why: finding.why.as_ref().map(fit),
        help: finding.help.as_ref().map(fit),
        ..finding.clone()
    }
}

impl Diagnostic {
    fn place(&self) -> Option<serde_json::Value> {
        self.excerpt.as_ref().map(|excerpt| {
            json!({
                "file": excerpt.path.display().to_string(),
                "line": excerpt.line,
                "column": excerpt.column,
            })
        })
    }

    fn write_text(&self, out: &mut String, color: bool) {
        let paint = |style: &str, text: &str| {
            if color { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
        };
        let head = paint("1;31", &format!("error[{}]", self.code.as_str()));
        let _ = writeln!(out, "{head}: {}", printable(&self.what));
        if let Some(excerpt) = &self.excerpt {
            let gutter = " ".repeat(excerpt.line.to_string().len());
            let bar = paint("34", "|");
            let arrow = paint("34", "-->");
            let place = format!("{}:{}:{}", excerpt.path.display(), excerpt.line, excerpt.column);
            let _ = writeln!(out, "{gutter}{arrow} {place}");
            let _ = writeln!(out, "{gutter} {bar}");
            let _ = writeln!(out, "{} {bar} {}", excerpt.line, printable(&excerpt.text));
            let indent = " ".repeat(excerpt.column.saturating_sub(1));
            let caret = paint("1;31", &"^".repeat(excerpt.width));
            let _ = writeln!(out, "{gutter} {bar} {indent}{caret}");
        }
        if let Some(why) = &self.why {
            let _ = writeln!(out, "  why: {}", printable(why).replace('\n', "\n       "));
        }
        if let Some(help) = &self.help {
            let label = paint("1;32", "help:");
            let _ = writeln!(out, "  {label} {}", printable(help).replace('\n', "\n        "));
        }
    }
}

/// Replaces control characters, so that a server's text cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_why_and_help() {
        let failure =
            CommandFailure::new(ExitCode::Config, ErrorCode::P003, "logical decoding is off")
                .why("wal_level is replica")
                .help("ALTER SYSTEM SET wal_level = logical;\nthen restart Postgres");
        assert_eq!(
            failure.to_text(false),
            "error[PR-P003]: logical decoding is off\n  why: wal_level is replica\n  \
             help: ALTER SYSTEM SET wal_level = logical;\n        then restart Postgres\n"
        );
        assert!(failure.to_text(true).contains("\x1b[1;31m"));
    }

    #[test]
    fn excerpts_have_their_caret_below_the_word() {
        let mut failure =
            CommandFailure::new(ExitCode::Config, ErrorCode::C003, "there is no setting `x.slto`");
        failure.findings[0].excerpt = Some(SourceLine {
            path: "p.toml".into(),
            line: 12,
            column: 3,
            text: "  slto = ...".into(),
            width: 4,
        });
        assert_eq!(
            failure.to_text(false),
            "error[PR-C003]: there is no setting `x.slto`\n  --> p.toml:12:3\n   |\n12 |   slto = \
             ...\n   |   ^^^^\n"
        );
    }

    #[test]
    fn sources_become_the_why_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read `x`")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("disk on fire"));
        let failure = CommandFailure::of(ExitCode::CheckFailed, ErrorCode::X001, &error, None);
        assert_eq!(failure.findings[0].why.as_deref(), Some("disk on fire"));
    }

    #[test]
    fn json_is_one_line_with_the_exit_code() {
        let line =
            CommandFailure::new(ExitCode::Held, ErrorCode::P010, "held\nby\x1b[2J pid 5").to_json();
        assert!(!line.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["exit_code"], 75);
        assert_eq!(value["errors"][0]["code"], "PR-P010");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let failure = CommandFailure::new(ExitCode::CheckFailed, ErrorCode::X001, "a\x1b[2Jb");
        assert!(!failure.to_text(false).contains('\x1b'));
    }

    #[test]
    fn commands_in_a_remedy_name_the_stream() {
        let help = "`postrider repair --execute` sends them\nthen `postrider run`; `postrider ctl resume --stream b`; `SELECT 1`";
        let failure = CommandFailure::new(ExitCode::Position, ErrorCode::P100, "x").help(help);
        assert_eq!(
            failure.of_stream("a").findings[0].help.as_deref(),
            Some(
                "`postrider repair --execute --stream a` sends them\nthen `postrider run`; `postrider ctl resume --stream b`; `SELECT 1`"
            )
        );
    }
}
