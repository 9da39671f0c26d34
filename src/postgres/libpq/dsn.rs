//! Parses connection strings of the form `host=db user=app password='two words'`. An error contains
//! a position but not the text, which may contain a password.

use super::error::ConnectInfoError;
use super::parameters::Settings;

pub(super) fn parse(text: &str) -> Result<Settings, ConnectInfoError> {
    let mut settings = Settings::default();
    let mut rest = Cursor { chars: text.chars().peekable(), at: 1 };
    loop {
        rest.skip_space();
        if rest.chars.peek().is_none() {
            return Ok(settings);
        }
        let name = rest.name()?;
        let value = rest.value()?;
        settings.put(&name, value)?;
    }
}

struct Cursor<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    at: usize,
}

impl Cursor<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.chars.next();
        self.at += usize::from(next.is_some());
        next
    }

    fn skip_space(&mut self) {
        while self.chars.peek().is_some_and(|c| c.is_whitespace()) {
            self.next();
        }
    }

    fn syntax(&self, problem: &'static str) -> ConnectInfoError {
        ConnectInfoError::Syntax { problem, at: self.at }
    }

    fn name(&mut self) -> Result<String, ConnectInfoError> {
        let mut name = String::new();
        while let Some(c) = self.chars.peek().copied() {
            if c == '=' || c.is_whitespace() {
                break;
            }
            name.push(c);
            self.next();
        }
        self.skip_space();
        if name.is_empty() || self.chars.peek() != Some(&'=') {
            return Err(self.syntax("a parameter name must be followed by `=` and a value (a URL begins with postgresql://)"));
        }
        self.next();
        self.skip_space();
        Ok(name)
    }

    fn value(&mut self) -> Result<String, ConnectInfoError> {
        let quoted = self.chars.peek() == Some(&'\'');
        if quoted {
            self.next();
        }
        let mut value = String::new();
        loop {
            match self.chars.peek().copied() {
                None if quoted => return Err(self.syntax("the closing quote is missing")),
                None => return Ok(value),
                Some(c) if !quoted && c.is_whitespace() => return Ok(value),
                Some('\'') if quoted => {
                    self.next();
                    return Ok(value);
                }
                Some('\\') => {
                    self.next();
                    value.extend(self.next());
                }
                Some(c) => {
                    value.push(c);
                    self.next();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_escapes_are_libpqs() {
        let settings =
            parse(r"host = db.example  user='o\'b rien' password=a\ b\\ dbname=''").unwrap();
        assert_eq!(settings.get("host"), Some("db.example"));
        assert_eq!(settings.get("user"), Some("o'b rien"));
        assert_eq!(settings.get("password"), Some(r"a b\"));
        assert_eq!(settings.get("dbname"), None);
        assert_eq!(parse("   ").unwrap(), Settings::default());
    }

    #[test]
    fn malformed_text_is_refused_at_its_place() {
        for (text, at) in [("host", 5), ("=x", 1), ("host=a user='b", 15), ("host=a b", 9)] {
            let expected = parse(text).unwrap_err();
            assert!(
                matches!(expected, ConnectInfoError::Syntax { at: there, .. } if there == at),
                "{text}: {expected:?}"
            );
        }
    }
}
