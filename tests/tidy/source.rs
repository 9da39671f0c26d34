//! A source file as the rules see it.
//!
//! Input: a path and its text, as rustfmt writes it. Output: [`Source`]: the text, its functions, and
//! the lines of code that ship.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

/// The line that a function begins with.
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^( *)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe) )*fn (\w+)")
        .expect("a pattern")
});

/// A rule broken in a place.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the package.
    pub path: String,
    /// From 1; 0 is the file as a whole.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A function, with a body or declared only.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub first_line: usize,
    pub last_line: usize,
}

/// A Rust file.
#[derive(Debug)]
pub struct Source {
    /// Relative to the package, with forward slashes.
    pub path: String,
    pub text: String,
    pub functions: Vec<Function>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), functions: functions(text) }
    }

    pub fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Lines that are not comments, with their numbers.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// Those of them that ship. Unit tests are the end of their file, or files named so.
    pub fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = !self.path.starts_with("src/")
            || self.path.ends_with("tests.rs")
            || self.path.contains("/tests/");
        let shipped = self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let count = if is_test { 0 } else { shipped.lines().count() };
        self.code_lines().take_while(move |&(line, _)| line <= count)
    }
}

/// A function ends on its line, or at the first `}` below that is indented as it is.
fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let function = |(index, line): (usize, &&str)| {
        let found = line.contains("fn ").then(|| FUNCTION.captures(line))??;
        let ends = |line: &&str| {
            let rest = line.strip_prefix(&found[1]).unwrap_or_default();
            rest == "}" || (rest.starts_with([')', '-']) && rest.ends_with(';'))
        };
        let is_one_line = line.ends_with(['}', ';']);
        let below = || lines.iter().skip(index).position(&ends);
        let length = if is_one_line { 0 } else { below().unwrap_or(lines.len() - 1 - index) };
        Some(Function {
            name: found[2].to_owned(),
            first_line: index + 1,
            last_line: index + 1 + length,
        })
    };
    lines.iter().enumerate().filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_lines() {
        let text = "trait T {\n    fn no(\n        &self,\n    ) -> u8;\n    fn one() {}\n}\n\
                    pub(super) const fn two(\n    a: u8,\n) -> u8\nwhere\n    A: B,\n{\n    \
                    if a {\n        b\n    }\n}\n// fn none() {}\n";
        let found = functions(text).into_iter().map(|f| (f.name, f.first_line, f.last_line));
        let expected = [("no", 2, 4), ("one", 5, 5), ("two", 7, 16)];
        assert!(found.eq(expected.map(|(name, first, last)| (name.to_owned(), first, last))));
    }

    #[test]
    fn test_code_and_comments_do_not_ship() {
        let text = "// a\nfn b() {}\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\n";
        let shipped = |path: &str| Source::new(path, text).shipped_lines().count();
        assert_eq!(shipped("src/x.rs"), 1);
        for path in ["tests/x.rs", "src/x/tests.rs", "src/x/tests/y.rs"] {
            assert_eq!(shipped(path), 0, "{path}");
        }
    }
}
