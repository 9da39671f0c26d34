//! Parses Postgres's text of one-dimensional arrays.

/// Parses a one-dimensional array, for example `{a,NULL,"b c"}`; NULL is `None`. Several dimensions
/// are not supported.
pub(super) fn read(printed: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let inside = without_bounds(printed).strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut elements = Vec::new();
    let mut rest = inside;
    while !rest.is_empty() {
        let element;
        (element, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => unquoted(quoted)?,
            None => plain(rest)?,
        };
        elements.push(element);
        rest = match rest.split_first() {
            None => break,
            Some((b',', [])) => return None,
            Some((b',', after)) => after,
            Some(_) => return None,
        };
    }
    Some(elements)
}

/// Removes bounds that do not start at 1: `[0:1]={7,8}`.
fn without_bounds(printed: &[u8]) -> &[u8] {
    let end = printed.iter().position(|byte| *byte == b'=').filter(|_| printed.starts_with(b"["));
    end.and_then(|end| printed.get(end + 1..)).unwrap_or(printed)
}

type Read<'a> = Option<(Option<Vec<u8>>, &'a [u8])>;

fn unquoted(text: &[u8]) -> Read<'_> {
    let mut element = Vec::new();
    let mut rest = text;
    loop {
        rest = match rest {
            [b'\\', escaped, after @ ..] => {
                element.push(*escaped);
                after
            }
            [b'"', after @ ..] => return Some((Some(element), after)),
            [byte, after @ ..] => {
                element.push(*byte);
                after
            }
            [] => return None,
        };
    }
}

fn plain(text: &[u8]) -> Read<'_> {
    let end = text.iter().position(|byte| *byte == b',').unwrap_or(text.len());
    let (element, rest) = text.split_at_checked(end)?;
    let is_nested = element.iter().any(|byte| matches!(byte, b'{' | b'}' | b'"'));
    if element.is_empty() || is_nested {
        return None;
    }
    Some(((element != b"NULL").then(|| element.to_vec()), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(printed: &str) -> Option<Vec<Option<String>>> {
        let text = |element: Vec<u8>| String::from_utf8(element).unwrap();
        let elements = read(printed.as_bytes())?;
        Some(elements.into_iter().map(|element| element.map(text)).collect())
    }

    #[test]
    fn elements_are_what_was_put_in() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(texts("{}"), Some(vec![]));
        assert_eq!(texts("{a,NULL,\"b c\"}"), Some(vec![some("a"), None, some("b c")]));
        assert_eq!(texts("[0:1]={7,8}"), Some(vec![some("7"), some("8")]));
        let odd = r#"{"NULL","","a\"b\\","{x}","1,2"}"#;
        let wanted = ["NULL", "", r#"a"b\"#, "{x}", "1,2"].map(some);
        assert_eq!(texts(odd), Some(wanted.to_vec()));
        for other in ["{{1,2},{3,4}}", "{", "a", "", "{a,}", "{,a}", "{\"a}", "{\"a\"b}", "{}}"] {
            assert_eq!(texts(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn g7_any_elements_are_read_back(elements: Vec<Option<String>>) {
            let quoted = |text: &String| {
                format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#))
            };
            let print = |element: &Option<String>| {
                element.as_ref().map_or_else(|| "NULL".to_owned(), quoted)
            };
            let printed: Vec<String> = elements.iter().map(print).collect();
            prop_assert_eq!(texts(&format!("{{{}}}", printed.join(","))), Some(elements));
        }

        #[test]
        fn g7_any_bytes_are_elements_that_lie_in_them_or_no_array(
            bytes in r#"\{[a,"{}\\ ]{0,8}\}|(?s:.){0,12}"#.prop_map(String::into_bytes)
        ) {
            let Some(elements) = read(&bytes) else { return Ok(()) };
            prop_assert!(elements.len() <= bytes.split(|byte| *byte == b',').count());
            prop_assert!(elements.iter().flatten().map(Vec::len).sum::<usize>() <= bytes.len());
        }
    }
}
