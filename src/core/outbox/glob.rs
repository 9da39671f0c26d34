//! Matches globs: `*` matches any bytes, `?` one UTF-8 character.
//!
//! The time is at most the product of both lengths.

/// True if the whole text matches.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // Pattern and text to resume at if a star must match one more byte.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match (pattern.split_first(), text.split_first()) {
            (None, None) => return true,
            (Some((b'*', after)), _) => {
                retry = Some((after, text));
                Some((after, text))
            }
            (Some((b'?', after)), Some((_, rest))) => Some((after, skip_continuation(rest))),
            (Some((wanted, after)), Some((found, rest))) if wanted == found => Some((after, rest)),
            _ => None,
        };
        (pattern, text) = match (step, retry) {
            (Some(next), _) => next,
            (None, Some((after, [_, rest @ ..]))) => {
                retry = Some((after, rest));
                (after, rest)
            }
            (None, _) => return false,
        };
    }
}

/// True if a longer text with this beginning may match. The text must be longer than any match of a
/// pattern without a star. The pattern after the first star is ignored.
pub fn may_match(pattern: &[u8], beginning: &[u8]) -> bool {
    let head = pattern.split_inclusive(|byte| *byte == b'*').next().unwrap_or(pattern);
    head.ends_with(b"*") && matches(head, beginning)
}

fn skip_continuation(text: &[u8]) -> &[u8] {
    let bytes = text.iter().take_while(|byte| **byte & 0xC0 == 0x80).count();
    text.get(bytes..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_and_marks() {
        let yes =
            [("*", ""), ("a*", "abc"), ("*c", "abc"), ("a?c", "aäc"), ("*b*b", "abab"), ("", "")];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("?", ""), ("a*b", "abc"), ("", "a"), ("??", "ä")] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn of_a_beginning_it_is_enough_that_the_rest_may_fit() {
        for pattern in ["*", "out*", "out*x", "?ut*", "out*b*"] {
            assert!(may_match(pattern.as_bytes(), b"outbox"), "{pattern}");
        }
        for pattern in ["", "outbox", "in*", "outbox?", "x*outbox"] {
            assert!(!may_match(pattern.as_bytes(), b"outbox"), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn as_the_same_regular_expression(pattern in "[ab*?ä]{0,6}", text in "[abä]{0,8}") {
            let regex: String = pattern.chars().map(|c| match c {
                '*' => ".*".to_owned(),
                '?' => ".".to_owned(),
                c => c.to_string(),
            }).collect();
            let regex = regex::Regex::new(&format!("^(?s:{regex})$")).unwrap();
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), regex.is_match(&text));
        }
    }
}
