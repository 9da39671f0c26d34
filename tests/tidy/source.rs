//! A source file as the rules see it.
//!
//! Enters: a path and its text. Leaves: [`Source`]: the text, the code without comments and string
//! contents, its tokens, its functions, and which lines are test code. What always holds: lines keep
//! their numbers.

use std::fmt;

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

/// A word or a piece of punctuation of the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub line: usize,
    /// How many braces are open around it.
    pub depth: usize,
}

/// A function, with a body or declared only.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub first_line: usize,
    pub last_line: usize,
    /// `self` counts.
    pub parameters: usize,
    /// Its parameters are not its author's choice: a trait of another place asks for them, or they
    /// are the inputs a property is drawn over.
    pub is_dictated: bool,
}

/// A Rust file.
#[derive(Debug)]
pub struct Source {
    /// Relative to the package, with forward slashes.
    pub path: String,
    pub text: String,
    /// The text with comments and the insides of strings blanked out.
    pub code: String,
    pub tokens: Vec<Token>,
    pub functions: Vec<Function>,
    test_lines: Vec<(usize, usize)>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let code = blank(text);
        let tokens = tokenize(&code);
        let functions = functions(&tokens);
        let test_lines = test_lines(path, &tokens);
        Self { path: path.to_owned(), text: text.to_owned(), code, tokens, functions, test_lines }
    }

    /// Marks the files of modules that another file declares under `#[cfg(test)]`.
    pub fn mark_test_modules(sources: &mut [Self]) {
        let roots: Vec<String> = sources.iter().flat_map(Self::test_modules).collect();
        let is_test = |path: &str| {
            let below = |root: &String| path.strip_prefix(root.as_str());
            roots.iter().filter_map(below).any(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        for source in sources.iter_mut().filter(|source| is_test(&source.path)) {
            source.test_lines = vec![(0, usize::MAX)];
        }
    }

    /// Paths, without `.rs`, of the modules declared here for tests only.
    fn test_modules(&self) -> Vec<String> {
        let folder = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"]
            .iter()
            .find_map(|ending| self.path.strip_suffix(ending))
            .unwrap_or_default();
        let declared = self.tokens.windows(3).filter(|window| {
            window[0].text == "mod" && window[2].text == ";" && self.is_test(window[0].line)
        });
        declared.map(|window| format!("{folder}/{}", window[1].text)).collect()
    }

    pub fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Whether the line is compiled for tests only.
    pub fn is_test(&self, line: usize) -> bool {
        self.test_lines.iter().any(|&(first, last)| (first..=last).contains(&line))
    }

    /// Lines of code that ship, with their numbers.
    pub fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.code.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|&(line, _)| !self.is_test(line))
    }

    /// The top-level module: `wal` for `src/wal/frame.rs`, `bin` for `src/bin/shop.rs`, `lib` and
    /// `main` for those files; nothing outside `src`.
    pub fn room(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        inside.split('/').next()?.split('.').next()
    }
}

/// Blanks comments and the insides of strings and character literals; newlines stay.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, keep_ends) = literal_or_comment(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        for (index, &char) in chars.iter().enumerate().take(end).skip(at) {
            let is_end = keep_ends && (index == at || index + 1 == end);
            out.push(if char == '\n' || is_end { char } else { ' ' });
        }
        at = end;
    }
    out
}

/// Where the comment or literal that begins here ends, and whether its ends stay visible.
fn literal_or_comment(chars: &[char], at: usize) -> (usize, bool) {
    let char = |offset: usize| chars.get(at + offset).copied().unwrap_or(' ');
    match (char(0), char(1)) {
        ('/', '/') => (find(chars, at, |i| chars[i] == '\n').min(chars.len()), false),
        ('/', '*') => (end_of_block_comment(chars, at), false),
        ('"', _) => (end_of_string(chars, at), true),
        ('r', '"' | '#') if !(at > 0 && is_word(chars[at - 1]) && chars[at - 1] != 'b') => {
            (end_of_raw_string(chars, at), true)
        }
        ('\'', '\\') => (find(chars, at + 3, |i| chars[i] == '\'') + 1, true),
        ('\'', _) if char(2) == '\'' => (at + 3, true),
        _ => (at, false),
    }
}

fn find(chars: &[char], from: usize, is_end: impl Fn(usize) -> bool) -> usize {
    (from..chars.len()).find(|&index| is_end(index)).unwrap_or(chars.len())
}

fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Of `r"..."` or `r#"..."#`; `start` itself where it is neither (a raw identifier).
fn end_of_raw_string(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|&&char| char == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return start;
    }
    let closes = |at: usize| {
        chars[at] == '"'
            && chars[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    (find(chars, start + 2 + hashes, closes) + 1 + hashes).min(chars.len())
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Words, `::`, `->`, `=>`, and single characters.
fn tokenize(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word: usize = rest.chars().take_while(|&c| is_word(c)).map(char::len_utf8).sum();
            let pair = ["::", "->", "=>"].iter().any(|pair| rest.starts_with(pair));
            let length = if word > 0 {
                word
            } else if pair {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            if text == "}" {
                depth = depth.saturating_sub(1);
            }
            tokens.push(Token { text: text.to_owned(), line: index + 1, depth });
            if text == "{" {
                depth += 1;
            }
            rest = after.trim_start();
        }
    }
    tokens
}

/// The index of the token that closes the bracket at `open`.
pub fn closing(tokens: &[Token], open: usize) -> usize {
    let pairs = [("{", "}"), ("(", ")"), ("[", "]"), ("<", ">")];
    let Some(&(opens, closes)) = pairs.iter().find(|(opens, _)| *opens == tokens[open].text) else {
        return open;
    };
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if token.text == opens {
            depth += 1;
        } else if token.text == closes {
            depth -= 1;
            if depth == 0 {
                return index;
            }
        }
    }
    tokens.len() - 1
}

fn functions(tokens: &[Token]) -> Vec<Function> {
    let dictated = dictated(tokens);
    let starts = (0..tokens.len()).filter(|&index| tokens[index].text == "fn");
    let functions = starts.filter_map(|start| {
        let is_dictated = dictated.iter().any(|&(open, close)| (open..close).contains(&start));
        Some(Function { is_dictated, ..function(tokens, start)? })
    });
    functions.collect()
}

/// The token ranges of `impl Trait for Type` and `proptest!` blocks.
fn dictated(tokens: &[Token]) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let is_open = |token: &Token| token.text == "{";
        let Some(open) = tokens[index..].iter().position(is_open).map(|it| it + index) else {
            break;
        };
        let head = &tokens[index..open];
        let has_for = |pair: &[Token]| pair[0].text == "for" && pair[1].text != "<";
        let is_trait = token.text == "impl"
            && head.iter().all(|token| ![";", "fn", ")"].contains(&token.text.as_str()))
            && tokens[index..=open].windows(2).any(has_for);
        let is_property = token.text == "proptest" && head.len() == 2;
        if is_trait || is_property {
            ranges.push((open, closing(tokens, open)));
        }
    }
    ranges
}

/// The function whose `fn` stands at `start`; nothing for a pointer type.
fn function(tokens: &[Token], start: usize) -> Option<Function> {
    let name = tokens.get(start + 1).filter(|token| token.text.starts_with(is_word))?;
    let mut open = start + 2;
    if tokens.get(open)?.text == "<" {
        open = closing(tokens, open) + 1;
    }
    tokens.get(open).filter(|token| token.text == "(")?;
    let close = closing(tokens, open);
    let ends =
        |token: &&Token| token.depth == tokens[start].depth && [";", "{"].contains(&&*token.text);
    let body = close + tokens[close..].iter().position(|token| ends(&token))?;
    Some(Function {
        name: name.text.clone(),
        first_line: tokens[start].line,
        last_line: tokens[closing(tokens, body)].line,
        parameters: parameters(&tokens[open + 1..close]),
        is_dictated: false,
    })
}

fn parameters(tokens: &[Token]) -> usize {
    let mut depth = 0_i32;
    let (mut count, mut pending) = (0, false);
    for token in tokens {
        match token.text.as_str() {
            "(" | "[" | "{" | "<" => depth += 1,
            ")" | "]" | "}" | ">" => depth -= 1,
            "," if depth == 0 => {
                pending = false;
                continue;
            }
            _ => {}
        }
        if !pending {
            pending = true;
            count += 1;
        }
    }
    count
}

/// First and last lines of what is compiled for tests only.
fn test_lines(path: &str, tokens: &[Token]) -> Vec<(usize, usize)> {
    let is_test_file = !path.starts_with("src/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
        || path.contains("/tests/");
    if is_test_file {
        return vec![(0, usize::MAX)];
    }
    let marks = ["#", "[", "cfg", "(", "test", ")", "]"];
    let marked =
        |window: &[Token]| window.iter().zip(marks).all(|(token, mark)| token.text == mark);
    let starts = tokens.windows(marks.len()).enumerate().filter(|(_, window)| marked(window));
    let regions = starts.filter_map(|(start, _)| {
        let ends = |token: &Token| [";", "{"].contains(&token.text.as_str());
        let end = start + tokens[start..].iter().position(ends)?;
        Some((tokens[start].line, tokens[closing(tokens, end)].line))
    });
    regions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked() {
        let code =
            blank("a(\"x // y\\\"\"); // z\n/* b /* c */ d */ e('\"', '\\'', r#\"q\"f\"#, &'a b)");
        assert_eq!(code.split_whitespace().collect::<String>(), "a(\"\");e('','',r#,&'ab)");
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn functions_have_their_lines_and_parameters() {
        let text = "trait T { fn no(&self); }\nfn one<'a, T: Fn(u8, u8) -> u8>(\n  a: &'a T,\n  (b, c): (u8, u8),\n) where T: X\n{\n  if a { b }\n}\n";
        let found = Source::new("src/x.rs", text).functions;
        let expected = Function {
            name: "one".to_owned(),
            first_line: 2,
            last_line: 8,
            parameters: 2,
            is_dictated: false,
        };
        assert_eq!(found[1], expected);
        assert_eq!((found[0].first_line, found[0].last_line, found.len()), (1, 1, 2));
    }

    #[test]
    fn functions_that_a_trait_or_a_property_dictates_are_known() {
        let text = "impl<'a> X<'a> { fn a() {} }\nimpl A for X where F: for<'a> B<'a> { fn b() {} }\n\
                    fn c() -> impl D { for x in y {} }\nproptest! { fn d() {} }\n\
                    impl<F: for<'a> B<'a>> X { fn e() {} }";
        let found = Source::new("src/x.rs", text).functions;
        let dictated: Vec<(&str, bool)> =
            found.iter().map(|f| (f.name.as_str(), f.is_dictated)).collect();
        let expected = [("a", false), ("b", true), ("c", false), ("d", true), ("e", false)];
        assert_eq!(dictated, expected);
    }

    #[test]
    fn modules_declared_for_tests_are_test_code() {
        let mut sources = [
            Source::new("src/wal/mod.rs", "#[cfg(test)]\npub(crate) mod script;\nmod stream;"),
            Source::new("src/wal/script.rs", "fn a() {}"),
            Source::new("src/wal/script/deep.rs", "fn a() {}"),
            Source::new("src/wal/stream.rs", "#[cfg(test)]\nmod replay;"),
            Source::new("src/wal/stream/replay.rs", "fn a() {}"),
        ];
        Source::mark_test_modules(&mut sources);
        let tests = sources.map(|source| source.is_test(100));
        assert_eq!(tests, [false, true, true, false, true]);
    }

    #[test]
    fn test_code_is_told_from_shipped_code() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n";
        let source = Source::new("src/x.rs", text);
        let tests: Vec<bool> = (1..=6).map(|line| source.is_test(line)).collect();
        assert_eq!(tests, [false, true, true, true, true, false]);
        assert!(Source::new("tests/x.rs", "fn a() {}").is_test(1));
        assert!(!Source::new("src/x.rs", "#[cfg(test)]\nmod tests;\nfn a() {}").is_test(3));
    }

    #[test]
    fn files_belong_to_rooms() {
        let room = |path: &str| Source::new(path, "").room().map(str::to_owned);
        assert_eq!(room("src/wal/frame.rs").as_deref(), Some("wal"));
        assert_eq!(room("src/ledger.rs").as_deref(), Some("ledger"));
        assert_eq!(room("tests/tidy.rs"), None);
    }
}
