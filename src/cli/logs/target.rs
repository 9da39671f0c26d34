//! Maps module paths to the names that log lines and RUST_LOG use, so that these do not depend on crates.
//!
//! Input: a module path of one of our crates, or a RUST_LOG filter. Output: `shown` returns the public
//! name, such as `postrider::wal::stream`; `filter` replaces public names in a filter by module paths.

use std::borrow::Cow;

/// How a part is named, and where it is.
const PARTS: [(&str, &str); 11] = [
    ("postrider::wal", "postrider_postgres::wal"),
    ("postrider::control", "postrider_postgres::control"),
    ("postrider::telemetry", "postrider_relay::telemetry"),
    ("postrider::dead_letter", "postrider_patterns::dead_letter"),
    ("postrider::inbox", "postrider_patterns::inbox"),
    ("postrider::idempotency", "postrider_patterns::idempotency"),
    ("postrider::http", "postrider_service::http"),
    ("postrider::relay", "postrider_relay"),
    ("postrider::kafka", "postrider_kafka"),
    ("postrider::shop", "postrider_shop"),
    ("postrider::cli", "postrider_cli"),
];

/// The name of a module, as the log shows it.
pub(super) fn shown(module: &str) -> Cow<'_, str> {
    let named = PARTS.iter().find_map(|(name, place)| {
        let rest = module.strip_prefix(place)?;
        (rest.is_empty() || rest.starts_with("::")).then(|| format!("{name}{rest}"))
    });
    named.map_or(Cow::Borrowed(module), Cow::Owned)
}

/// A filter as somebody wrote it, with the modules' own names.
pub(super) fn filter(text: &str) -> String {
    PARTS.iter().fold(text.to_owned(), |text, (name, place)| text.replace(name, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_named_without_its_crate() {
        for (module, name) in [
            ("postrider_relay::supervise", "postrider::relay::supervise"),
            ("postrider_relay::telemetry::http", "postrider::telemetry::http"),
            ("postrider_postgres::wal::stream", "postrider::wal::stream"),
            ("postrider_kafka", "postrider::kafka"),
            ("postrider_kafkaesque", "postrider_kafkaesque"),
            ("postrider::audit", "postrider::audit"),
            ("rustls", "rustls"),
        ] {
            assert_eq!(shown(module), name);
        }
    }

    #[test]
    fn a_filter_may_name_what_the_log_names() {
        let filter = filter("error,postrider::cli::run=info,postrider::audit=off,rustls=debug");
        assert_eq!(filter, "error,postrider_cli::run=info,postrider::audit=off,rustls=debug");
        for (name, place) in PARTS {
            assert_eq!(super::filter(&format!("{name}=debug")), format!("{place}=debug"));
            assert_eq!(shown(place), name);
        }
    }
}
