//! Names of Debezium's options and classes.

use postrider_config::typo;

/// Without the prefix `transforms.<alias>.`. The last two belong to older releases.
pub(super) const ROUTER: [&str; 21] = [
    "table.op.invalid.behavior",
    "table.field.event.id",
    "table.field.event.key",
    "table.field.event.type",
    "table.field.event.timestamp",
    "table.field.event.payload",
    "table.field.event.schema.version",
    "table.fields.additional.placement",
    "table.field.additional.missing",
    "route.by.field",
    "route.topic.regex",
    "route.topic.replacement",
    "route.tombstone.on.empty.payload",
    "table.expand.json.payload",
    "table.json.payload.null.behavior",
    "table.json.payload.empty.array.behavior",
    "tracing.span.context.field",
    "tracing.operation.name",
    "tracing.with.context.field.only",
    "table.field.event.payload.id",
    "table.fields.additional.error.on.missing",
];

/// Prefix in a file without a chain of transformations.
pub(super) const BARE_ROUTER: &str = "transforms.outbox.";
pub(super) const BARE_DECODER: &str = "transforms.decode.";
pub(super) const DECODER_NULLS: &str = "fields.null.include";
/// Shorthand for a chain with the decoder.
pub(super) const DECODE: &str = "decode.logical.messages";

const OLD_ROUTER: [(&str, &str); 4] = [
    ("debezium.op.invalid.behavior", "table.op.invalid.behavior"),
    ("table.field.payload", "table.field.event.payload"),
    ("table.field.payload.id", "table.field.event.payload.id"),
    ("table.field.schema.version", "table.field.event.schema.version"),
];

const OLD_CONNECTOR: [(&str, &str); 10] = [
    ("database.server.name", "topic.prefix"),
    ("table.whitelist", "table.include.list"),
    ("table.blacklist", "table.exclude.list"),
    ("schema.whitelist", "schema.include.list"),
    ("schema.blacklist", "schema.exclude.list"),
    ("column.whitelist", "column.include.list"),
    ("column.blacklist", "column.exclude.list"),
    ("slot.drop_on_stop", "slot.drop.on.stop"),
    ("heartbeat.topics.prefix", "topic.heartbeat.prefix"),
    ("flush.lsn.source", "lsn.flush.mode"),
];

pub(super) fn connector(name: &str) -> &str {
    renamed(&OLD_CONNECTOR, name)
}

pub(super) fn router(name: &str) -> &str {
    renamed(&OLD_ROUTER, name)
}

pub(super) fn old_router(name: &str) -> Option<&'static str> {
    OLD_ROUTER.iter().find(|(_, new)| *new == name).map(|(old, _)| *old)
}

pub(super) fn is_router(name: &str) -> bool {
    ROUTER.contains(&router(name))
}

fn renamed<'a>(table: &[(&str, &'static str)], name: &'a str) -> &'a str {
    table.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

pub(super) fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Names are long: up to three letters may be a typo.
    let near = known
        .filter_map(|known| Some((typo::distance(name, known, 3)?, known)))
        .min_by_key(|(distance, _)| *distance)?;
    (near.0 > 0).then_some(near.1)
}

/// Removes Debezium's or Kafka's package, and the `$Key` or `$Value` of a transformation. Any other
/// class may behave differently, so it stays unchanged.
pub(super) fn simple_class(class: &str) -> &str {
    let name = match class.rsplit_once('.') {
        None => class,
        Some((package, name))
            if package.starts_with("io.debezium.") || package.starts_with("org.apache.kafka.") =>
        {
            name
        }
        Some(_) => return class,
    };
    name.split('$').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_are_understood() {
        assert_eq!(connector("table.whitelist"), "table.include.list");
        assert_eq!(connector("slot.name"), "slot.name");
        assert!(is_router("table.field.payload") && is_router("route.by.field"));
        assert!(!is_router("slot.name"));
    }

    #[test]
    fn slips_have_their_name_suggested() {
        assert_eq!(near("route.by.feild", ROUTER.into_iter()), Some("route.by.field"));
        assert_eq!(near("something.else", ROUTER.into_iter()), None);
    }

    #[test]
    fn only_classes_of_debezium_and_kafka_are_known_by_their_last_name() {
        for (class, simple) in [
            ("io.debezium.transforms.outbox.EventRouter", "EventRouter"),
            ("org.apache.kafka.connect.transforms.ExtractField$Key", "ExtractField"),
            ("json", "json"),
            ("com.example.EventRouter", "com.example.EventRouter"),
        ] {
            assert_eq!(simple_class(class), simple);
        }
    }
}
