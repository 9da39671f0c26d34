//! Mistakes in a configuration: what is wrong, where it was typed, and how to fix it.
//!
//! Input: a situation (`MistakeKind`) and a place; `Span` turns a range of the file into its line and
//! column. Output: a `ConfigError` with every mistake, not just the first, or with the reason why the file
//! cannot be read. Invariant: it contains no secret; in lines of the file that are shown, values that may
//! be secret are masked or cut.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postrider_secrets::mask::{mask_line, mask_text, scrub};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that was asked for cannot be read.
    #[error("cannot read `{}`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration was read and is wrong; at least one mistake, in order of discovery.
    #[error("{}", Mistakes(.0))]
    Mistakes(Vec<Mistake>),
    /// One stream is meant, and the file has several.
    #[error("the configuration has {} streams: {}", names.len(), names.join(", "))]
    SeveralStreams {
        /// In the order of the file.
        names: Vec<String>,
    },
    /// The stream that is meant is not there.
    #[error("the configuration has no stream `{name}`")]
    UnknownStream {
        /// As typed.
        name: String,
        /// Those that are there.
        names: Vec<String>,
    },
}

impl ConfigError {
    /// What to do about it, where there is one answer.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => Some(
                    "`postrider config example > postrider.toml` writes a file to begin with"
                        .to_owned(),
                ),
                kind => to_read(kind),
            },
            Self::Mistakes(mistakes) => mistakes.first().and_then(|first| first.help.clone()),
            Self::SeveralStreams { .. } => {
                Some("name the one that is meant: --stream NAME".to_owned())
            }
            Self::UnknownStream { names, .. } if names.is_empty() => {
                Some("there is no [[stream]] in the file: leave --stream out".to_owned())
            }
            Self::UnknownStream { names, .. } => {
                Some(format!("its streams are {}", names.join(", ")))
            }
        }
    }
}

/// What to do about a file that cannot be read.
pub fn to_read(kind: std::io::ErrorKind) -> Option<String> {
    let help = match kind {
        std::io::ErrorKind::NotFound => "check its path",
        std::io::ErrorKind::InvalidData => "save it as UTF-8",
        std::io::ErrorKind::PermissionDenied => "make it readable for the user that runs this",
        std::io::ErrorKind::IsADirectory => "name a file, not a directory",
        _ => return None,
    };
    Some(help.to_owned())
}

struct Mistakes<'a>(&'a [Mistake]);

impl fmt::Display for Mistakes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// What kind.
    pub kind: MistakeKind,
    /// Where it was typed.
    pub place: SourcePosition,
    /// What to do about it.
    pub help: Option<String>,
}

impl Mistake {
    /// The same without what it may repeat of a secret that was typed where none belongs.
    /// `secrets` are those that are known, in the order of [`postrider_secrets::mask::for_scrubbing`].
    pub(super) fn masked(self, secrets: &[String]) -> Self {
        let masked = |text: String| scrub(&mask_text(&text), secrets);
        let kind = match self.kind {
            MistakeKind::Syntax(reason) => MistakeKind::Syntax(masked(reason)),
            MistakeKind::UnknownKey { key } => MistakeKind::UnknownKey { key: masked(key) },
            MistakeKind::Invalid { key, reason } => {
                MistakeKind::Invalid { key, reason: masked(reason) }
            }
            kind => kind,
        };
        // It may show how the text would be right.
        Self { kind, help: self.help.map(masked), ..self }
    }

    /// The line it is on; what is in no file comes last.
    pub(super) fn line(&self) -> usize {
        match &self.place {
            SourcePosition::File(excerpt) => excerpt.line,
            SourcePosition::Named(_) | SourcePosition::Nowhere => usize::MAX,
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            SourcePosition::File(excerpt) => {
                write!(f, "{}:{}: {}", excerpt.path.display(), excerpt.line, self.kind)
            }
            SourcePosition::Named(name) => write!(f, "{name}: {}", self.kind),
            SourcePosition::Nowhere => write!(f, "{}", self.kind),
        }
    }
}

/// The situations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MistakeKind {
    /// Not TOML, or not `key=value`.
    #[error("not readable: {0}")]
    Syntax(String),
    /// No option or section of that name.
    #[error("there is no setting `{key}`")]
    UnknownKey {
        /// As typed, with its section.
        key: String,
    },
    /// A number where text is due, and the like.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The option.
        key: String,
        /// The kind of value it takes.
        expected: &'static str,
        /// The kind of value that was typed.
        found: &'static str,
    },
    /// The right type, but not a possible value.
    #[error("`{key}`: {reason}")]
    Invalid {
        /// The option.
        key: String,
        /// A fragment; names the value unless it may be secret.
        reason: String,
    },
    /// A possible value that this release does not do.
    #[error("`{key}`: {reason}")]
    Unsupported {
        /// The option.
        key: String,
        /// What is not done.
        reason: String,
    },
    /// A librdkafka property that a guarantee rests on.
    #[error("`kafka.properties.{key}` cannot be set: {reason}")]
    RefusedProperty {
        /// librdkafka's name.
        key: String,
        /// Why.
        reason: String,
    },
    /// `<VAR>_FILE`, or `<name>_file` in the configuration, names a file that cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    UnreadableFile {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
}

/// Where a mistake was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePosition {
    /// In a file.
    File(SourceLine),
    /// In an environment variable, `--set` or another flag: its name.
    Named(String),
    /// Nowhere in particular.
    Nowhere,
}

/// A line of a file and the part of it that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line, without secrets.
    pub text: String,
    /// How many characters from `column` on are meant; at least 1.
    pub width: usize,
}

/// A configuration file as it was read.
#[derive(Debug, Clone)]
pub(super) struct SourceFile {
    path: PathBuf,
    text: String,
    /// Where its lines end. Every setting's place is asked for.
    line_ends: Vec<usize>,
}

impl SourceFile {
    pub(super) fn new(path: &Path, text: &str) -> Self {
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { path: path.to_owned(), text: text.to_owned(), line_ends }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A stretch of a file.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) file: Arc<SourceFile>,
    pub(super) range: Range<usize>,
    /// A key, behind which may stand a secret although its name does not say so: it may be
    /// misspelled, or be the Kafka client's. Its value is not shown.
    pub(super) is_key: bool,
}

impl Span {
    /// The line of it, without what may be secret.
    pub(super) fn excerpt(&self) -> SourceLine {
        let text = &self.file.text;
        let start = self.range.start.min(text.len());
        let before = text.get(..start).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = text.get(line_start..).unwrap_or("").lines().next().unwrap_or("");
        let from = start.saturating_sub(line_start).min(line.len());
        let to = self.range.end.max(start).saturating_sub(line_start).min(line.len());
        let part = |range: Range<usize>| line.get(range).unwrap_or("");
        let (before, meant, after) = (part(0..from), part(from..to), part(to..line.len()));
        let shown = self.shown(before, meant, after);
        let column = before.chars().count();
        // Masking may have shortened the line: the caret never points past it.
        let room = (shown.chars().count() + 1).saturating_sub(column).max(1);
        SourceLine {
            path: self.file.path.clone(),
            line: self.line(),
            column: column + 1,
            text: shown,
            width: meant.chars().count().clamp(1, room),
        }
    }

    /// Other settings on the same line (inline tables) are blanked, since any may be a secret.
    fn shown(&self, before: &str, meant: &str, after: &str) -> String {
        let others = usize::from(!self.is_key);
        let before = match before.split_once('=') {
            Some((name, values)) if before.matches('=').count() > others => {
                format!("{name}={}", ".".repeat(values.chars().count()))
            }
            _ => before.to_owned(),
        };
        let line = match (self.is_key && after.contains('='), after.contains('=')) {
            (true, _) => format!("{before}{meant} = ..."),
            (_, true) => mask_line(&format!("{before}{meant} ...")),
            _ => mask_line(&format!("{before}{meant}{after}")),
        };
        line.replace('\t', " ").trim_end().to_owned()
    }

    /// The line's number, from 1.
    pub(super) fn line(&self) -> usize {
        self.file.line_ends.partition_point(|&end| end < self.range.start) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(text: &str, range: Range<usize>, is_key: bool) -> SourceLine {
        let file = SourceFile::new(Path::new("a.toml"), text);
        Span { file: Arc::new(file), range, is_key }.excerpt()
    }

    #[test]
    fn excerpts_point_at_their_part_of_the_line() {
        let found = excerpt("[source]\nslot = 5\n", 16..17, false);
        assert_eq!((found.line, found.column, found.width), (2, 8, 1));
        assert_eq!(found.text, "slot = 5");
    }

    #[test]
    fn any_range_gives_an_excerpt() {
        for start in 0..12 {
            for end in 0..14 {
                let found = excerpt("a = \"ä\"\r\nb", start..end, false);
                assert!(found.width >= 1 && found.line >= 1);
            }
        }
    }

    #[test]
    fn values_of_unknown_keys_are_not_shown() {
        let found = excerpt("passwrod = \"hunter2\"", 0..8, true);
        assert_eq!(found.text, "passwrod = ...");
    }

    #[test]
    fn other_settings_of_the_line_are_not_shown() {
        let line = "kafka = { a = \"hunter2\", linger = 5, b = \"hunter2\" }";
        let at = line.find('5').unwrap();
        let found = excerpt(line, at..at + 1, false);
        assert!(!found.text.contains("hunter2"), "{}", found.text);
        assert_eq!(found.text.chars().nth(found.column - 1), Some('5'));
        let at = line.find("linger").unwrap();
        assert!(!excerpt(line, at..at + 6, true).text.contains("hunter2"));
    }
}
