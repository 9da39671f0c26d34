//! Reads a W3C trace context from a column.
//!
//! Input: the column's text: a bare `traceparent`, or Java properties as Debezium's outbox libraries write
//! them (`traceparent=00-..` in lines of `name=value`). Output: the value for one header. It is not
//! validated.

/// W3C Trace Context's header.
pub const TRACEPARENT_HEADER: &str = "traceparent";

/// Its companion, which only properties hold.
pub(super) const TRACESTATE_HEADER: &str = "tracestate";

/// Whether the text is a `traceparent` as it stands, not properties.
pub(super) fn is_bare(text: &[u8]) -> bool {
    !text.iter().any(|byte| matches!(byte, b'=' | b':' | b'\n' | b'\r'))
}

/// Appends the value of `header` among properties to `out`, and tells whether there is one.
pub(super) fn extract(text: &[u8], header: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = line.trim_ascii_start();
        if line.starts_with(b"#") || line.starts_with(b"!") {
            continue;
        }
        let end = line.iter().position(|byte| matches!(byte, b'=' | b':' | b' ' | b'\t'));
        let (name, rest) = line.split_at_checked(end.unwrap_or(line.len())).unwrap_or((line, &[]));
        if name == header.as_bytes() {
            // The last of several holds, as in a map.
            out.truncate(start);
            unescape(value(rest), out);
        }
    }
    out.len() > start
}

/// What follows the name: blanks, at most one separator, blanks.
fn value(rest: &[u8]) -> &[u8] {
    let rest = rest.trim_ascii_start();
    let separated = rest.strip_prefix(b"=").or_else(|| rest.strip_prefix(b":"));
    separated.unwrap_or(rest).trim_ascii_start()
}

/// Takes the backslashes off: `Properties.store` puts one before `=`, `:`, `#` and `!`. Trace
/// context is ASCII, so `\uXXXX` does not occur in it.
fn unescape(value: &[u8], out: &mut Vec<u8>) {
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next() {
                Some(b't') => b'\t',
                Some(other) => *other,
                None => b'\\',
            },
            byte => *byte,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn found(text: &str, header: &str) -> Option<String> {
        let mut out = Vec::new();
        let found = extract(text.as_bytes(), header, &mut out);
        found.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_bare_value_is_told_from_properties() {
        assert!(is_bare(TRACE.as_bytes()) && is_bare(b"") && !is_bare(b"traceparent=x"));
    }

    #[test]
    fn properties_are_read() {
        let text = format!("#Mon Jan 01\ntracestate=a\\=b,c\\:d\n traceparent = {TRACE}\n");
        assert_eq!(found(&text, TRACEPARENT_HEADER).as_deref(), Some(TRACE));
        assert_eq!(found(&text, TRACESTATE_HEADER).as_deref(), Some("a=b,c:d"));
        let other = "uber-trace-id=1\\:2\\:0\\:1\n";
        assert_eq!(found(other, TRACEPARENT_HEADER), None);
        assert_eq!(found("traceparent=\n", TRACEPARENT_HEADER), None);
        assert_eq!(found("traceparent:x\rtraceparent:y", TRACEPARENT_HEADER).as_deref(), Some("y"));
    }
}
