//! Maps module paths to the public names in log lines and RUST_LOG, such as
//! `postrider::wal::stream`, so that these do not depend on crates.

use std::borrow::Cow;

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

pub(super) fn shown(module: &str) -> Cow<'_, str> {
    let named = PARTS.iter().find_map(|(name, place)| {
        let rest = module.strip_prefix(place)?;
        (rest.is_empty() || rest.starts_with("::")).then(|| format!("{name}{rest}"))
    });
    named.map_or(Cow::Borrowed(module), Cow::Owned)
}

pub(super) fn filter(text: &str) -> String {
    PARTS.iter().fold(text.to_owned(), |text, (name, place)| text.replace(name, place))
}

/// Mistake in the name of a part. Names of other libraries are not checked.
pub(super) fn unknown(name: &str) -> Option<String> {
    let names = || PARTS.iter().map(|(name, _)| *name).chain(["postrider::audit"]);
    if let Some(meant) = names().find(|known| known.strip_prefix("postrider::") == Some(name)) {
        return Some(format!("`{name}` is not a part: write `{meant}`"));
    }
    let is_below = |known: &str| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    if !name.starts_with("postrider::") || names().any(is_below) {
        return None;
    }
    let known: Vec<_> = names().collect();
    Some(format!("`{name}` is not a part: there are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_there_is_not_is_told() {
        for name in
            ["postrider::kafka", "postrider::wal::stream", "postrider", "rustls", "librdkafka"]
        {
            assert_eq!(unknown(name), None, "{name}");
        }
        assert_eq!(
            unknown("kafka").as_deref(),
            Some("`kafka` is not a part: write `postrider::kafka`")
        );
        let told = unknown("postrider::kafak").unwrap();
        assert!(told.contains("there are postrider::wal, "), "{told}");
        assert!(unknown("postrider::kafkaesque").is_some());
    }

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
