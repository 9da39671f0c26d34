//! The options of `[traces]`, and the check of a collector's address. An address holds no password,
//! so that it can be shown.

use super::options::{OptionSpec, count, text};
use postrider_service::units::InvalidValue;

pub(super) const ENDPOINT: OptionSpec = text(
    "traces.endpoint",
    "\"\"",
    "OpenTelemetry collector, for example http://localhost:4318, that receives a span per \
     delivered row whose trace is sampled. If empty: OTEL_EXPORTER_OTLP_ENDPOINT, or none.",
);

pub(super) const MAX_PER_SECOND: OptionSpec = count(
    "traces.max_per_second",
    (0, u64::MAX),
    "100",
    "Maximum number of rows per second that receive a span. The relay counts the others.",
);

pub(super) fn endpoint(text: &str) -> Result<Option<String>, InvalidValue> {
    if text.is_empty() {
        return Ok(None);
    }
    let help = "write \"http://localhost:4318\"; headers with a secret belong in \
                OTEL_EXPORTER_OTLP_HEADERS";
    let refused = |reason: &str| Err(InvalidValue::new(reason).help(help));
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else {
        return refused("is not an address that begins with http:// or https://");
    };
    let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return refused("must not hold a user name or password");
    }
    let is_odd = |it: char| it.is_whitespace() || it.is_control() || matches!(it, '?' | '#' | '"');
    if authority.is_empty() || authority.starts_with(':') || text.contains(is_odd) {
        return refused("is not the address of a collector");
    }
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_http_without_a_password() {
        assert_eq!(endpoint(""), Ok(None));
        for right in ["http://localhost:4318", "https://otel.example/v1/traces", "http://[::1]:1"] {
            assert_eq!(endpoint(right), Ok(Some(right.to_owned())));
        }
        for wrong in
            ["localhost:4318", "grpc://x", "http://", "http://:1", "http://a b", "http://a?b"]
        {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
        let secret = endpoint("http://user:planted@host").unwrap_err();
        assert!(!format!("{secret:?}").contains("planted"));
    }
}
