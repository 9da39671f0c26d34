//! A `traceparent` of W3C Trace Context: the trace that an event belongs to. Its text has the form
//! of <https://www.w3.org/TR/trace-context/#traceparent-header>, so it can be sent unchanged.

use std::fmt;
use std::str::FromStr;

/// Bytes of version 00: `00-` trace id `-` parent id `-` flags.
const BYTES: usize = 55;
/// Bytes that the outbox's column holds. Later versions may exceed [`BYTES`].
const BYTES_MAX: usize = 256;

/// A valid `traceparent`, such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Traceparent(String);

/// The text is not a valid `traceparent`. The error does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a traceparent of W3C Trace Context")]
#[non_exhaustive]
pub struct InvalidTraceparent;

impl Traceparent {
    /// Text of the header, unchanged.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Id of the trace: 32 lower-case hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        let id = self.0.get(3..35);
        id.unwrap_or_else(|| unreachable!("a traceparent is parsed from {BYTES} bytes or more"))
    }

    /// Id of the parent span: 16 lower-case hexadecimal digits.
    pub fn parent_id(&self) -> &str {
        let id = self.0.get(36..52);
        id.unwrap_or_else(|| unreachable!("a traceparent is parsed from {BYTES} bytes or more"))
    }
}

impl FromStr for Traceparent {
    type Err = InvalidTraceparent;

    /// Ignores blanks around the text.
    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        let text = text.trim_ascii();
        if is_valid(text) { Ok(Self(text.to_owned())) } else { Err(InvalidTraceparent) }
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_valid(text: &str) -> bool {
    let mut parts = text.splitn(5, '-');
    let mut part = |digits: usize, may_be_zero: bool| {
        parts.next().filter(|part| {
            part.len() == digits
                && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
                && (may_be_zero || part.bytes().any(|byte| byte != b'0'))
        })
    };
    let version = part(2, true).filter(|version| *version != "ff");
    let has_ids = part(32, false).is_some() && part(16, false).is_some() && part(2, true).is_some();
    // Only a later version may be longer.
    let has_rest = text.len() > BYTES;
    has_ids
        && version.is_some_and(|version| !has_rest || version != "00")
        && text.len() <= BYTES_MAX
        && text.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_the_specification_allows_is_read() {
        let parent: Traceparent = format!(" {TRACE}\t").parse().unwrap();
        assert_eq!((parent.as_str(), parent.to_string().as_str()), (TRACE, TRACE));
        assert_eq!(parent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(parent.parent_id(), "00f067aa0ba902b7");
        let later = TRACE.replacen("00", "cc", 1);
        for text in [later.clone(), format!("{later}-what-comes-later")] {
            assert_eq!(text.parse::<Traceparent>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn what_it_forbids_is_refused() {
        let zero = "0".repeat(32);
        for text in [
            String::new(),
            "00".into(),
            format!("{TRACE}-00"),
            format!("{TRACE}0"),
            TRACE.replacen("00", "ff", 1),
            TRACE.replacen("4b", "4B", 1),
            TRACE.replacen("4b", "4g", 1),
            TRACE.replacen("4bf92f3577b34da6a3ce929d0e0e4736", &zero, 1),
            TRACE.replacen("00f067aa0ba902b7", "0000000000000000", 1),
            TRACE.replacen('-', "", 1),
            TRACE.replacen("-01", "-1", 1),
            TRACE.replacen("-01", "-é", 1),
            format!("{}-{}", TRACE.replacen("00", "cc", 1), "x".repeat(201)),
        ] {
            assert_eq!(text.parse::<Traceparent>(), Err(InvalidTraceparent), "{text}");
        }
    }
}
