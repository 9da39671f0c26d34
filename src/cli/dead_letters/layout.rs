//! Pretty-prints a dead letter's value for `dead-letters show`.
//!
//! JSON keeps its numbers, duplicate names and order, which a parser would change. Control
//! characters are escaped.

use std::fmt::Write as _;

use serde::de::IgnoredAny;

/// Deeper levels stay on one line, because 10,000 levels of indent are unreadable.
const LEVELS_MAX: usize = 32;

pub(super) fn pretty(text: &str) -> String {
    if serde_json::from_str::<IgnoredAny>(text).is_ok() { json(text) } else { plain(text) }
}

fn plain(text: &str) -> String {
    let escape = |char: char| match char {
        '\n' | '\t' => char.to_string(),
        char if char.is_control() => char.escape_default().to_string(),
        char => char.to_string(),
    };
    text.chars().map(escape).collect()
}

/// `text` is valid JSON, so only its punctuation is examined.
fn json(text: &str) -> String {
    let mut out = String::with_capacity(2 * text.len());
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if in_string {
            in_string = is_escaped || char != '"';
            is_escaped = !is_escaped && char == '\\';
            // JSON allows control characters beyond ASCII unescaped.
            if char.is_control() {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            } else {
                out.push(char);
            }
            continue;
        }
        match char {
            '{' | '[' => {
                out.push(char);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(close) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    new_line(&mut out, depth, depth);
                }
            }
            '}' | ']' => {
                new_line(&mut out, depth, depth.saturating_sub(1));
                depth = depth.saturating_sub(1);
                out.push(char);
            }
            ',' => {
                out.push(char);
                new_line(&mut out, depth, depth);
            }
            ':' => out.push_str(": "),
            char if char.is_ascii_whitespace() => {}
            char => {
                in_string = char == '"';
                out.push(char);
            }
        }
    }
    out
}

/// A new line inside something at `depth`, indented by `indent` levels.
fn new_line(out: &mut String, depth: usize, indent: usize) {
    if depth <= LEVELS_MAX {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", indent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_is_laid_out_and_says_the_same() {
        let text = "{\"a\":1.50, \"a\" : [ ],\"b\":[1e400,{\"c\":\"x: {\\\"}, \\\\\"}]}";
        let wanted = "{\n  \"a\": 1.50,\n  \"a\": [],\n  \"b\": [\n    1e400,\n    {\n      \
                      \"c\": \"x: {\\\"}, \\\\\"\n    }\n  ]\n}";
        assert_eq!(pretty(text), wanted);
        assert_eq!(pretty("\"a\u{9b}\""), "\"a\\u009b\"");
    }

    #[test]
    fn other_text_keeps_its_lines_and_drives_no_terminal() {
        assert_eq!(pretty("{a\n\tb\x1b[2J"), "{a\n\tb\\u{1b}[2J");
        assert_eq!(pretty(""), "");
    }

    #[test]
    fn what_is_deep_does_not_grow_wide() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert!(pretty(&deep).len() < deep.len() + 10_000);
    }

    proptest! {
        #[test]
        fn without_its_spaces_it_is_what_it_was(text in "[\\[\\]{}:,\"\\\\ a1n]{0,24}") {
            if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
                prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&pretty(&text)).unwrap(), value);
            } else {
                prop_assert_eq!(pretty(&text), text);
            }
        }
    }
}
