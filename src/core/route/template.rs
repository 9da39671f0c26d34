//! Builds a topic name from the routing column's value.
//!
//! The rules are Kafka Connect's (RegexRouter), as in Debezium's EventRouter: if the whole value
//! matches, its first match is replaced; another value is itself the name.

use super::java_regex::{Captures, Matcher, Undecided};
use super::spec::RouteSpecError;
use super::topics::is_topic_byte;

/// Default pattern; bypasses the regex engine.
pub const WHOLE_VALUE: &str = "(?<routedByValue>.*)";

/// A compiled `regex` and `topic`.
#[derive(Debug, Clone)]
pub struct TopicTemplate {
    pattern: Pattern,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Pattern {
    /// Groups 0 and 1 are the value.
    Whole,
    Regex(Box<Matcher>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// A group outside the match is empty.
    Group(usize),
}

impl TopicTemplate {
    /// Compiles both, unless they cannot route any row.
    pub fn compile(regex: &str, topic: &str) -> Result<Self, RouteSpecError> {
        let (pattern, groups) = if regex == WHOLE_VALUE {
            (Pattern::Whole, vec![None, Some("routedByValue".to_owned())])
        } else {
            let matcher = Matcher::compile(regex)?;
            let groups = matcher.groups();
            (Pattern::Regex(Box::new(matcher)), groups)
        };
        Ok(Self { pattern, pieces: Replacement { topic, groups }.parse()? })
    }

    /// The only possible name for values whose first match is the whole value, if any. For example,
    /// `|.*` matches nothing at first, so the value is appended.
    pub fn fixed(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Common beginning of names for matching values.
    pub fn beginning(&self) -> &str {
        match self.pieces.first() {
            Some(Piece::Literal(text)) => text,
            _ => "",
        }
    }

    /// Appends the name for `value`.
    pub fn expand(&self, value: &str, out: &mut String) -> Result<(), Undecided> {
        match &self.pattern {
            Pattern::Whole if value.contains(is_line_end) => out.push_str(value),
            Pattern::Whole => {
                for piece in &self.pieces {
                    out.push_str(match piece {
                        Piece::Literal(text) => text,
                        Piece::Group(_) => value,
                    });
                }
            }
            Pattern::Regex(matcher) => match matcher.first_of_whole(value)? {
                Some(captures) => self.replace(value, &captures, out),
                None => out.push_str(value),
            },
        }
        Ok(())
    }

    fn replace(&self, value: &str, captures: &Captures<'_>, out: &mut String) {
        let Some(found) = captures.get(0) else { unreachable!("group 0 is the match itself") };
        let (before, _) = value.split_at(found.start());
        let (_, after) = value.split_at(found.end());
        out.push_str(before);
        for piece in &self.pieces {
            out.push_str(match piece {
                Piece::Literal(text) => text,
                Piece::Group(number) => captures.get(*number).map_or("", |group| group.as_str()),
            });
        }
        out.push_str(after);
    }
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Follows `java.util.regex.Matcher.appendReplacement`.
struct Replacement<'a> {
    topic: &'a str,
    /// Group 0 is the whole match.
    groups: Vec<Option<String>>,
}

impl Replacement<'_> {
    fn parse(&self) -> Result<Vec<Piece>, RouteSpecError> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = self.topic;
        while let Some(character) = rest.chars().next() {
            let after = rest.get(character.len_utf8()..).unwrap_or_default();
            rest = match character {
                '\\' => {
                    let escaped = after.chars().next().ok_or(self.syntax(character, rest))?;
                    literal.push(self.allowed(escaped)?);
                    after.get(escaped.len_utf8()..).unwrap_or_default()
                }
                '$' => {
                    let (group, after) = self.reference(rest, after)?;
                    if !literal.is_empty() {
                        pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                    }
                    pieces.push(Piece::Group(group));
                    after
                }
                _ => {
                    literal.push(self.allowed(character)?);
                    after
                }
            };
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        if pieces.is_empty() {
            return Err(RouteSpecError::Empty { what: "topic" });
        }
        Ok(pieces)
    }

    fn reference<'b>(
        &self,
        rest: &str,
        after: &'b str,
    ) -> Result<(usize, &'b str), RouteSpecError> {
        if let Some(braced) = after.strip_prefix('{') {
            let (name, after) = braced.split_once('}').ok_or(self.syntax('$', rest))?;
            let number = self.groups.iter().position(|known| known.as_deref() == Some(name));
            return Ok((number.ok_or_else(|| self.unknown(name))?, after));
        }
        let digit_count = after.bytes().take_while(u8::is_ascii_digit).count();
        if digit_count == 0 {
            return Err(self.syntax('$', rest));
        }
        // Java takes one digit, and more while such a group exists.
        let number = |digits: usize| -> Option<(usize, &'b str)> {
            let (number, after) = after.split_at_checked(digits)?;
            let number = number.parse().ok().filter(|number| *number < self.groups.len())?;
            Some((number, after))
        };
        let mut taken =
            number(1).ok_or_else(|| self.unknown(after.get(..1).unwrap_or_default()))?;
        for digits in 2..=digit_count {
            match number(digits) {
                Some(longer) => taken = longer,
                None => break,
            }
        }
        Ok(taken)
    }

    fn allowed(&self, character: char) -> Result<char, RouteSpecError> {
        if u8::try_from(character).is_ok_and(is_topic_byte) {
            return Ok(character);
        }
        Err(RouteSpecError::TopicCharacter { topic: self.topic.to_owned(), character })
    }

    fn syntax(&self, character: char, rest: &str) -> RouteSpecError {
        let offset = self.topic.len().saturating_sub(rest.len());
        RouteSpecError::TopicSyntax { topic: self.topic.to_owned(), character, offset }
    }

    fn unknown(&self, group: &str) -> RouteSpecError {
        let name = |(number, name): (usize, &Option<String>)| match name {
            Some(name) => format!("${{{name}}}"),
            None => format!("${number}"),
        };
        RouteSpecError::UnknownGroup {
            topic: self.topic.to_owned(),
            group: group.to_owned(),
            known: self.groups.iter().enumerate().map(name).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expand(regex: &str, topic: &str, value: &str) -> String {
        let mut out = String::new();
        TopicTemplate::compile(regex, topic).expect("compiles").expand(value, &mut out).unwrap();
        out
    }

    #[test]
    fn the_value_stands_where_its_group_is_named() {
        assert_eq!(expand(WHOLE_VALUE, "${routedByValue}", "OrderCreated"), "OrderCreated");
        assert_eq!(expand(WHOLE_VALUE, "outbox.event.${routedByValue}", "Us"), "outbox.event.Us");
        assert_eq!(expand(WHOLE_VALUE, "$1.$0.$10", "x"), "x.x.x0");
        assert_eq!(expand(WHOLE_VALUE, "outbox.event.${routedByValue}", ""), "outbox.event.");
        assert_eq!(expand("Order(?<what>.*)", "order-${what}", "OrderPaid"), "order-Paid");
        assert_eq!(expand("(.*)-(.*)", "$2.$1", "a-b"), "b.a");
        assert_eq!(expand("(a)?(b)", "x$1$2", "b"), "xb");
        assert_eq!(expand("(.*)", r"a\.b$1", "c"), "a.bc");
    }

    #[test]
    fn a_value_that_does_not_match_is_the_topic() {
        assert_eq!(expand("Order(?<rest>.*)", "o.${rest}", "User"), "User");
        assert_eq!(expand("b", "x", "abc"), "abc");
        assert_eq!(expand(WHOLE_VALUE, "x", "a\nb"), "a\nb");
        assert_eq!(expand("(.*)", "x$1", "a\rb"), "a\rb");
    }

    #[test]
    fn the_first_match_found_is_replaced_as_java_does() {
        assert_eq!(expand("(a|ab)", "t.", "ab"), "t.b");
    }

    #[test]
    fn what_no_row_could_use_is_refused() {
        let refused = |regex, topic| TopicTemplate::compile(regex, topic).expect_err("refused");
        assert!(matches!(refused("(", "x"), RouteSpecError::Regex { .. }));
        assert!(matches!(refused("a)(b", "x"), RouteSpecError::Regex { .. }));
        assert!(matches!(refused(".*", "${who}"), RouteSpecError::UnknownGroup { .. }));
        assert!(matches!(refused("(.*)", "$2"), RouteSpecError::UnknownGroup { .. }));
        assert!(matches!(refused("(.*)", "a/$1"), RouteSpecError::TopicCharacter { .. }));
        assert!(matches!(refused("(.*)", "ü"), RouteSpecError::TopicCharacter { .. }));
        for wrong in ["a$", "a$x", "${", "a\\"] {
            assert!(matches!(refused("(.*)", wrong), RouteSpecError::TopicSyntax { .. }));
        }
        assert_eq!(refused("(.*)", ""), RouteSpecError::Empty { what: "topic" });
    }

    proptest! {
        #[test]
        fn the_path_without_a_regex_agrees_with_the_regex(value in "(?s).{0,8}") {
            let topic = "t.${routedByValue}";
            let by_regex = expand("(?<routedByValue>[^\n\r\u{85}\u{2028}\u{2029}]*)", topic, &value);
            prop_assert_eq!(expand(WHOLE_VALUE, topic, &value), by_regex);
        }

        #[test]
        fn any_name_begins_as_its_template_says_or_is_the_value(regex in ".{0,12}", topic in ".{0,12}", value: String) {
            let Ok(template) = TopicTemplate::compile(&regex, &topic) else { return Ok(()) };
            let mut name = String::from("before");
            if template.expand(&value, &mut name).is_ok() {
                let name = name.strip_prefix("before").expect("appended");
                prop_assert!(name == value || name.starts_with(template.beginning()));
            }
        }
    }
}
