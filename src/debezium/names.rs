//! Names of Debezium's options and classes: the outbox router's options, what this release calls an option
//! of an older one, the nearest known name for a mistyped one, and a class without its package.
//!
//! Input: a name from the file. Output: the name that the other modules look for.

use postrider_config::typo;

/// The options of the outbox router, without the `transforms.<alias>.` before them. The last two
/// are of older releases.
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

/// The names under which the router's options and the decoder's are kept where a file gives them
/// without a chain of transformations.
pub(super) const BARE_ROUTER: &str = "transforms.outbox.";
pub(super) const BARE_DECODER: &str = "transforms.decode.";
/// The decoder's only option.
pub(super) const DECODER_NULLS: &str = "fields.null.include";
/// Short for a chain with the decoder in it.
pub(super) const DECODE: &str = "decode.logical.messages";

/// Older names of the router's options.
const OLD_ROUTER: [(&str, &str); 4] = [
    ("debezium.op.invalid.behavior", "table.op.invalid.behavior"),
    ("table.field.payload", "table.field.event.payload"),
    ("table.field.payload.id", "table.field.event.payload.id"),
    ("table.field.schema.version", "table.field.event.schema.version"),
];

/// Older names of the connector's options.
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

/// What this release calls a connector's option.
pub(super) fn connector(name: &str) -> &str {
    renamed(&OLD_CONNECTOR, name)
}

/// What this release calls an option of the router.
pub(super) fn router(name: &str) -> &str {
    renamed(&OLD_ROUTER, name)
}

/// What older releases called an option of the router.
pub(super) fn old_router(name: &str) -> Option<&'static str> {
    OLD_ROUTER.iter().find(|(_, new)| *new == name).map(|(old, _)| *old)
}

/// Whether a bare name is one of the router's.
pub(super) fn is_router(name: &str) -> bool {
    ROUTER.contains(&router(name))
}

fn renamed<'a>(table: &[(&str, &'static str)], name: &'a str) -> &'a str {
    table.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

/// The nearest of `known`, if `name` may be a slip of the pen for it.
pub(super) fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Names are long: three letters are a slip, more are another name.
    let near = known
        .filter_map(|known| Some((typo::distance(name, known, 3)?, known)))
        .min_by_key(|(distance, _)| *distance)?;
    (near.0 > 0).then_some(near.1)
}

/// A class of Debezium or Kafka without its package and without the `$Key` or `$Value` of a
/// transformation's two halves; any other class as it is, since it may do something else.
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
