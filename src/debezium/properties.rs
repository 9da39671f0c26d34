//! Parses Java's `.properties` text into names and values, in order.
//!
//! Rules of `java.util.Properties.load`: `#` and `!` begin comments, a backslash at the end of a
//! line joins the next one. `=`, `:` or white space ends a name, and `\uXXXX` is a UTF-16 unit.

use std::str::Chars;

use super::ImportError;

pub(super) fn parse(text: &str) -> Result<Vec<(String, String)>, ImportError> {
    let mut pairs = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let line = line.trim_start_matches(is_blank);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while continues(&logical) {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start_matches(is_blank));
        }
        let (name, value) = split(&logical);
        let unescaped = unescape(name).and_then(|name| Ok((name, unescape(value)?)));
        let pair =
            unescaped.map_err(|reason| ImportError::Properties { line: index + 1, reason })?;
        pairs.push(pair);
    }
    Ok(pairs)
}

fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\x0c')
}

/// True for an unescaped backslash at the end.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|char| {
        let ends = !escaped && (matches!(char, '=' | ':') || is_blank(char));
        escaped = char == '\\' && !escaped;
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, rest.trim_start_matches(is_blank))
}

fn unescape(text: &str) -> Result<String, &'static str> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut buffer = [0; 2];
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        let unit = match char {
            '\\' => match chars.next() {
                Some('u') => {
                    units.push(hexadecimal(&mut chars)?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\x0c',
                Some(other) => other,
                None => break,
            },
            char => char,
        };
        units.extend_from_slice(unit.encode_utf16(&mut buffer));
    }
    String::from_utf16(&units).map_err(|_| "half of a surrogate pair")
}

fn hexadecimal(chars: &mut Chars<'_>) -> Result<u16, &'static str> {
    let mut unit = 0;
    for _ in 0..4 {
        let digit = chars.next().and_then(|char| char.to_digit(16));
        unit = unit * 16 + digit.ok_or("`\\u` needs four hexadecimal digits")?;
    }
    u16::try_from(unit).map_err(|_| "`\\u` needs four hexadecimal digits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn lines_are_read_as_java_reads_them() {
        let text = "# a comment\n! another = one\n\n  a.b = c d \r\nx:y\nplain value\nalone\n";
        let expected =
            [pair("a.b", "c d "), pair("x", "y"), pair("plain", "value"), pair("alone", "")];
        assert_eq!(parsed(text), expected);
    }

    #[test]
    fn lines_are_joined_and_escapes_undone() {
        let text = "list = a,\\\n    b,\\\n    c\nends = \\\\\nregex=(\\\\w+)\\.x\n";
        let expected = [pair("list", "a,b,c"), pair("ends", "\\"), pair("regex", "(\\w+).x")];
        assert_eq!(parsed(text), expected);
        let text = "a\\:b\\ c=\\u00e9\\uD83D\\uDE00\\t\\q\nx = # no comment";
        assert_eq!(parsed(text), [pair("a:b c", "\u{e9}\u{1f600}\tq"), pair("x", "# no comment")]);
        assert_eq!(parsed("a=b\\"), [pair("a", "b")]);
    }

    #[test]
    fn what_java_refuses_is_refused_with_its_line() {
        for text in ["a=b\nc=\\u12", "a=b\nc=\\u12g4", "a=b\nc=\\uD83D"] {
            assert!(matches!(parse(text), Err(ImportError::Properties { line: 2, .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_pair_a_line_at_most_or_refused_at_a_line(text in "(?s).{0,60}") {
            let lines = text.lines().count();
            match parse(&text) {
                Ok(pairs) => prop_assert!(pairs.len() <= lines),
                Err(ImportError::Properties { line, .. }) => prop_assert!((1..=lines).contains(&line)),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }

        #[test]
        fn names_and_values_survive(name in "[a-z.]{1,10}", value in "[a-zA-Z0-9=:#$][a-zA-Z =:#$]{0,9}") {
            prop_assert_eq!(parsed(&format!("{name}={value}")), [(name, value)]);
        }
    }
}
