//! Regular expressions like `java.util.regex`, for Debezium's routing settings.
//!
//! The pattern is rewritten where the engine differs: `\d`, `\w`, `\s` and the POSIX classes are
//! ASCII, `.` stops at five line terminators, `\Q..\E` quotes.

use fancy_regex::{Regex, RegexBuilder};

use super::spec::RouteSpecError;

/// A match that needs too many steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the regular expression needs too many steps")]
pub struct Undecided;

pub(super) type Captures<'t> = fancy_regex::Captures<'t, str>;

/// A few milliseconds.
const STEPS_MAX: usize = 100_000;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub struct Matcher {
    whole: Regex,
    search: Regex,
}

impl Matcher {
    /// Compiles a pattern.
    pub fn compile(pattern: &str) -> Result<Self, RouteSpecError> {
        for flag in ['x', 'U', 'd', 'c'] {
            if has_flag(pattern, flag) {
                let reason = format!("the flag `{flag}` is not understood");
                return Err(RouteSpecError::Regex { reason });
            }
        }
        let translated = Translated::new(pattern);
        let compile = |text: &str| {
            let builder = RegexBuilder::new(text).backtrack_limit(STEPS_MAX).build();
            builder.map_err(|error| RouteSpecError::Regex {
                reason: translated.reason(pattern, &error),
            })
        };
        let search = compile(&translated.text)?;
        let whole = compile(&format!(r"\A(?:{})\z", translated.text))?;
        Ok(Self { whole, search })
    }

    pub(super) fn groups(&self) -> Vec<Option<String>> {
        self.search.capture_names().map(|name| name.map(str::to_owned)).collect()
    }

    /// True if the whole text matches.
    pub fn matches(&self, text: &str) -> Result<bool, Undecided> {
        self.whole.is_match(text).map_err(|_| Undecided)
    }

    pub(super) fn first_of_whole<'t>(
        &self,
        text: &'t str,
    ) -> Result<Option<Captures<'t>>, Undecided> {
        if !self.matches(text)? {
            return Ok(None);
        }
        self.search.captures(text).map_err(|_| Undecided)
    }
}

struct Translated {
    text: String,
    /// Starts of each piece in `text` and in Java's pattern.
    pieces: Vec<(usize, usize)>,
}

impl Translated {
    fn new(pattern: &str) -> Self {
        let mut pieces = Vec::new();
        let text = translate(pattern, &mut |at| pieces.push(at));
        Self { text, pieces }
    }

    fn reason(&self, pattern: &str, error: &fancy_regex::Error) -> String {
        let fancy_regex::Error::ParseError(at, problem) = error else {
            // The last line has the reason.
            let text = error.to_string();
            return text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
        };
        let before = self.pieces.partition_point(|(place, _)| place <= at);
        let piece = before.checked_sub(1).and_then(|before| self.pieces.get(before));
        let byte = if *at >= self.text.len() { pattern.len() } else { piece.map_or(0, |it| it.1) };
        let character = pattern.get(..byte).unwrap_or("").chars().count() + 1;
        format!("{problem} (at character {character})")
    }
}

fn translate(pattern: &str, begins: &mut dyn FnMut((usize, usize))) -> String {
    let is_dot_all = has_flag(pattern, 's');
    let mut out = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    let mut classes = 0_usize;
    loop {
        begins((out.len(), pattern.len() - characters.as_str().len()));
        let Some(character) = characters.next() else { break };
        match character {
            '\\' => escape(&mut characters, &mut out),
            '.' if classes == 0 && !is_dot_all => {
                out.push_str(r"[^\n\r\x{85}\x{2028}\x{2029}]");
            }
            '[' => {
                classes += 1;
                out.push('[');
                open_class(&mut characters, &mut out);
            }
            // A doubled character would be a set operation, which Java lacks.
            '-' if classes > 0 && characters.as_str().starts_with('-') => {
                characters.next();
                out.push_str(r"-\-");
            }
            '~' if classes > 0 => out.push_str(r"\~"),
            ']' => {
                classes = classes.saturating_sub(1);
                out.push(']');
            }
            other => out.push(other),
        }
    }
    out
}

/// A first bracket or hyphen is literal, and a colon does not start a POSIX class.
fn open_class(characters: &mut std::str::Chars<'_>, out: &mut String) {
    if let Some(rest) = characters.as_str().strip_prefix('^') {
        out.push('^');
        *characters = rest.chars();
    }
    for (first, escaped) in [(']', r"\]"), (':', ":-:"), ('-', r"\-")] {
        if let Some(rest) = characters.as_str().strip_prefix(first) {
            out.push_str(escaped);
            *characters = rest.chars();
            return;
        }
    }
}

fn escape(characters: &mut std::str::Chars<'_>, out: &mut String) {
    let rest = characters.as_str();
    let Some(escaped) = characters.next() else { return out.push('\\') };
    match escaped {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str(r"[ \t\n\x0B\f\r]"),
        'S' => out.push_str(r"[^ \t\n\x0B\f\r]"),
        'h' => out.push_str(HORIZONTAL),
        'H' => out.push_str(&HORIZONTAL.replacen('[', "[^", 1)),
        'v' => out.push_str(VERTICAL),
        'V' => out.push_str(&VERTICAL.replacen('[', "[^", 1)),
        'Q' => {
            let quoted = characters.as_str();
            let (literal, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            out.push_str(&fancy_regex::escape(literal));
            *characters = after.chars();
        }
        'p' | 'P' => {
            let named = rest.get(1..).and_then(|rest| rest.strip_prefix('{')?.split_once('}'));
            let class = named.and_then(|(name, after)| Some((posix(name)?, after)));
            let Some((class, after)) = class else {
                out.push('\\');
                return out.push(escaped);
            };
            out.push_str(if escaped == 'p' { "[" } else { "[^" });
            out.push_str(class);
            out.push(']');
            *characters = after.chars();
        }
        other => {
            out.push('\\');
            out.push(other);
        }
    }
}

const HORIZONTAL: &str = r"[ \t\x{A0}\x{1680}\x{180E}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}]";
const VERTICAL: &str = r"[\n\x0B\f\r\x{85}\x{2028}\x{2029}]";

fn posix(name: &str) -> Option<&'static str> {
    Some(match name {
        "Lower" => "a-z",
        "Upper" => "A-Z",
        "ASCII" => r"\x00-\x7F",
        "Alpha" => "A-Za-z",
        "Digit" => "0-9",
        "Alnum" => "0-9A-Za-z",
        "Punct" => r"!-/:-@\[-`{-~",
        "Graph" => "!-~",
        "Print" => " -~",
        "Blank" => r" \t",
        "Cntrl" => r"\x00-\x1F\x7F",
        "XDigit" => "0-9A-Fa-f",
        "Space" => r" \t\n\x0B\f\r",
        _ => return None,
    })
}

/// A flag group is, for example, `(?is)` or `(?s:`.
fn has_flag(pattern: &str, flag: char) -> bool {
    pattern.match_indices("(?").any(|(at, opening)| {
        let rest = pattern.get(at + opening.len()..).unwrap_or_default();
        let flags: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
        let ends = rest.get(flags.len()..).is_some_and(|rest| rest.starts_with([')', ':', '-']));
        ends && flags.contains(flag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Matcher::compile(pattern).unwrap().matches(text).unwrap()
    }

    #[test]
    fn classes_are_ascii() {
        assert!(matches(r"\w+", "a_9") && !matches(r"\w+", "é"));
        assert!(matches(r"[\w.-]+", "a.b-c") && !matches(r"[^\W]", "é"));
        assert!(matches(r"\p{Alpha}\p{Punct}\P{Digit}", "a!x") && !matches(r"\d", "٣"));
        assert!(matches(r"\p{Lu}\p{L}*", "Été"));
    }

    #[test]
    fn quoting_dots_and_flags() {
        assert!(matches(r"\Qa.b\E+", "a.bbb") && !matches(r"\Qa.b\E", "axb"));
        assert!(!matches(".", "\u{2028}") && matches("(?s).", "\n") && matches(r"\.", "."));
        assert!(matches("(?i)ORDER", "Order") && matches("[.]", "."));
    }

    #[test]
    fn classes_are_read_as_by_java() {
        assert!(matches("[^].]*", "ab") && !matches("[^].]*", "a.b") && matches("[].]", "]"));
        assert!(matches("[+--]+", "+,-") && matches("[--a]", "A") && matches("[-a]", "-"));
        assert!(matches("[~~]", "~") && matches("[[:alpha:]]+", ":a") && !matches("[:a]", "b"));
        assert!(matches(r"a\hb\v", "a\u{2003}b\n") && matches(r"\H\V", "ab"));
        for flags in ["(?x)a b", "(?U)a", "(?i:x)(?ix)y"] {
            assert!(Matcher::compile(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn what_only_backtracking_can_do() {
        assert!(matches(r"(?=a)(.*)", "ab") && matches(r"(a)\1", "aa"));
        assert!(matches("(x++)(.*)", "xxx") && !matches("x++x", "xxx"));
        assert!(matches("[a-c&&[^b]]+", "ac") && !matches("[a-c&&[^b]]+", "b"));
    }

    #[test]
    fn a_match_that_takes_too_long_is_undecided() {
        let evil = Matcher::compile(r"(?=x)(x+x+)+\1y").unwrap();
        assert_eq!(evil.matches(&"x".repeat(60)), Err(Undecided));
    }
}
