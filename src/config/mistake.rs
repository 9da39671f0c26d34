//! Mistakes in a configuration: what is wrong, where it was typed, and how to fix it. Errors
//! contain no secret; in quoted lines, values that may be secret are masked or cut.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postrider_secrets::mask::{mask_line, mask_text, scrub};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read `{}`", path.display())]
    Unreadable {
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// At least one mistake, in order of discovery.
    #[error("{}", Mistakes(.0))]
    Mistakes(Vec<Mistake>),
    /// The command needs a single stream.
    #[error("the configuration has {} streams: {}", names.len(), names.join(", "))]
    SeveralStreams {
        /// Names in the order of the file.
        names: Vec<String>,
    },
    #[error("the configuration has no stream `{name}`")]
    UnknownStream {
        name: String,
        /// Names of the existing streams.
        names: Vec<String>,
    },
}

impl ConfigError {
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub kind: MistakeKind,
    pub place: SourcePosition,
    pub help: Option<String>,
}

impl Mistake {
    /// Masks secrets that were typed in a wrong place. `secrets` are in the order of
    /// [`postrider_secrets::mask::for_scrubbing`].
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
        // The help may repeat the typed text.
        Self { kind, help: self.help.map(masked), ..self }
    }

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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MistakeKind {
    /// Neither TOML nor `key=value`.
    #[error("not readable: {0}")]
    Syntax(String),
    #[error("there is no setting `{key}`")]
    UnknownKey {
        /// Key as typed, with its section.
        key: String,
    },
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        key: String,
        /// Kind of value, such as "a list of strings".
        expected: &'static str,
        found: &'static str,
    },
    /// A value of the right type that is not allowed.
    #[error("`{key}`: {reason}")]
    Invalid {
        key: String,
        /// A fragment; names the value unless it may be secret.
        reason: String,
    },
    /// A valid value that this release does not support.
    #[error("`{key}`: {reason}")]
    Unsupported {
        key: String,
        /// A fragment.
        reason: String,
    },
    /// A librdkafka property that a guarantee depends on.
    #[error("`kafka.properties.{key}` cannot be set: {reason}")]
    RefusedProperty {
        /// librdkafka's name of the property.
        key: String,
        reason: String,
    },
    /// `<VAR>_FILE` or `<name>_file` names an unreadable file.
    #[error("cannot read `{path}`: {reason}")]
    UnreadableFile {
        path: String,
        /// A fragment from the system's error.
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePosition {
    File(SourceLine),
    /// Name of an environment variable or a flag.
    Named(String),
    Nowhere,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// The line, without secrets.
    pub text: String,
    /// Number of marked characters from `column`; at least 1.
    pub width: usize,
}

#[derive(Debug, Clone)]
pub(super) struct SourceFile {
    path: PathBuf,
    text: String,
    /// Offsets of line ends, computed once because every setting's line is looked up.
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

#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) file: Arc<SourceFile>,
    pub(super) range: Range<usize>,
    /// Whether this is a key whose value is hidden. A misspelled key, or one of the Kafka client,
    /// may have a secret although its name does not say so.
    pub(super) is_key: bool,
}

impl Span {
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
        // Masking may have shortened the line; the caret must not point past it.
        let room = (shown.chars().count() + 1).saturating_sub(column).max(1);
        SourceLine {
            path: self.file.path.clone(),
            line: self.line(),
            column: column + 1,
            text: shown,
            width: meant.chars().count().clamp(1, room),
        }
    }

    /// Blanks other settings of an inline table, because any may be a secret.
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
