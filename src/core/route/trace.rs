//! Reads a W3C trace context from a column, and from a header.
//!
//! A column has a bare `traceparent`, or Java properties as Debezium's outbox libraries write them
//! (`traceparent=00-..`). The value for a header is not validated.

/// Header of W3C Trace Context.
pub const TRACEPARENT_HEADER: &str = "traceparent";

pub(super) const TRACESTATE_HEADER: &str = "tracestate";

/// Version 00: `00-` trace id `-` span id `-` flags. Later versions start in this way.
const BYTES: usize = 55;

/// A row's trace, and the span that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Not all zero.
    pub trace_id: [u8; 16],
    /// Not all zero.
    pub span_id: [u8; 8],
    /// Sampling decision of the origin.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Parses a `traceparent`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        let (fixed, rest) = text.split_first_chunk::<BYTES>()?;
        let is_first_version = fixed.starts_with(b"00-");
        let is_whole = rest.is_empty() || (!is_first_version && rest.starts_with(b"-"));
        let (mut version, mut flags) = ([0; 1], [0; 1]);
        let mut context = Self { trace_id: [0; 16], span_id: [0; 8], is_sampled: false };
        let mut parts = fixed.split(|&byte| byte == b'-');
        decode(parts.next()?, &mut version)?;
        decode(parts.next()?, &mut context.trace_id)?;
        decode(parts.next()?, &mut context.span_id)?;
        decode(parts.next()?, &mut flags)?;
        context.is_sampled = flags[0] & 1 == 1;
        let has_ids = context.trace_id != [0; 16] && context.span_id != [0; 8];
        (is_whole && has_ids && version != [0xff]).then_some(context)
    }

    /// 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.trace_id))
    }
}

fn decode(digits: &[u8], bytes: &mut [u8]) -> Option<()> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *byte = (digit(high)? << 4) | digit(low)?;
    }
    Some(())
}

pub(super) fn is_bare(text: &[u8]) -> bool {
    !text.iter().any(|byte| matches!(byte, b'=' | b':' | b'\n' | b'\r'))
}

/// Appends the value of `header` among properties, if there is one.
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
            // The last value counts, as in a map.
            out.truncate(start);
            unescape(value(rest), out);
        }
    }
    out.len() > start
}

fn value(rest: &[u8]) -> &[u8] {
    let rest = rest.trim_ascii_start();
    let separated = rest.strip_prefix(b"=").or_else(|| rest.strip_prefix(b":"));
    separated.unwrap_or(rest).trim_ascii_start()
}

/// Removes the backslashes of `Properties.store`. Trace context is ASCII, so `\uXXXX` does not
/// occur in it.
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
    fn a_context_is_read_or_is_none() {
        let context = TraceContext::parse(TRACE.as_bytes()).unwrap();
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(context.is_sampled);
        let sampled = |text: &str| TraceContext::parse(text.as_bytes()).map(|it| it.is_sampled);
        assert_eq!(sampled(&format!(" {}0 ", &TRACE[..54])), Some(false));
        assert_eq!(sampled(&format!("cc{}-more", &TRACE[2..])), Some(true));
        for text in [
            "",
            &TRACE[1..],
            &TRACE.to_uppercase(),
            &format!("{TRACE}-more"),
            &format!("cc{}more", &TRACE[2..]),
            &format!("ff{}", &TRACE[2..]),
            &TRACE.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47361-0f067aa0ba902b7-01",
        ] {
            assert_eq!(sampled(text), None, "{text}");
        }
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
