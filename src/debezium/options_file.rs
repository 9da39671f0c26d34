//! Reads a Debezium file (JSON or properties) into options with the names of Kafka Connect.
//!
//! Invariant: each option occurs once. Debezium Server's prefixes and Quarkus's escapes are
//! removed, and old names are replaced.

use serde_json::Value;

use super::{ImportError, names, properties};

/// Decides the meaning of absent options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    /// The worker may set converters and brokers.
    Connect,
    Server,
    Router,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Name in a connector's configuration.
    pub(super) key: String,
    pub(super) content: GivenContent,
}

/// Numbers, `true` and `false` are text, as in Connect.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum GivenContent {
    Text(String),
    Null,
    Nested,
}

pub(super) struct OptionsFile {
    pub(super) flavour: Flavour,
    pub(super) entries: Vec<Entry>,
}

pub(super) fn read(text: &str) -> Result<OptionsFile, ImportError> {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let pairs = if text.starts_with(['{', '[']) {
        connector_json(text)?
    } else {
        let pairs = properties::parse(text)?;
        if pairs.is_empty() {
            return Err(ImportError::Foreign {
                reason: "there is nothing in it",
                help: "`curl http://connect:8083/connectors/NAME` prints a connector's JSON",
            });
        }
        pairs.into_iter().map(|(name, value)| (name, GivenContent::Text(value))).collect()
    };
    if pairs.iter().any(|(name, _)| name == "apiVersion") {
        return Err(ImportError::Foreign {
            reason: "it is a Kubernetes resource",
            help: "hand over its `spec.config` as JSON",
        });
    }
    let flavour = flavour(&pairs);
    let mut entries: Vec<Entry> = Vec::new();
    for (name, content) in pairs {
        let content = match content {
            GivenContent::Text(text) if flavour == Flavour::Server => {
                GivenContent::Text(unescape(&text))
            }
            content => content,
        };
        match entries.iter_mut().find(|entry| entry.name == name) {
            // In both formats the last value wins.
            Some(entry) => entry.content = content,
            None => entries.push(Entry { key: key(&name, flavour), name, content }),
        }
    }
    Ok(OptionsFile { flavour, entries })
}

fn flavour(pairs: &[(String, GivenContent)]) -> Flavour {
    let any = |test: fn(&str) -> bool| pairs.iter().any(|(name, _)| test(name));
    if any(|name| name.starts_with("debezium.") && !names::is_router(name)) {
        Flavour::Server
    } else if any(|name| name == "connector.class" || name.starts_with("transforms")) {
        Flavour::Connect
    } else if any(is_bare) || pairs.iter().all(|(name, _)| is_form(name)) {
        Flavour::Router
    } else {
        Flavour::Connect
    }
}

/// In a chain of transformations these options have a prefix.
fn is_bare(name: &str) -> bool {
    names::is_router(name) || [names::DECODE, names::DECODER_NULLS].contains(&name)
}

/// A file with a default router may contain these options.
fn is_form(name: &str) -> bool {
    let converter = ["key.converter", "value.converter", "header.converter"];
    converter.iter().any(|converter| name.starts_with(converter))
        || name.ends_with(".handling.mode")
        || name.ends_with(".adjustment.mode")
        || ["topic.prefix", "time.precision.mode", "table.include.list"].contains(&name)
}

fn key(name: &str, flavour: Flavour) -> String {
    let name = match flavour {
        Flavour::Server => server_key(name),
        Flavour::Router if names::is_router(name) => {
            return format!("{}{}", names::BARE_ROUTER, names::router(name));
        }
        Flavour::Router | Flavour::Connect => name.to_owned(),
    };
    if name == names::DECODER_NULLS {
        return format!("{}{name}", names::BARE_DECODER);
    }
    // A worker's file uses `producer.` for a connector's `producer.override.`.
    if let Some(rest) = name.strip_prefix("producer.")
        && !rest.starts_with("override.")
    {
        return format!("producer.override.{rest}");
    }
    if name == "bootstrap.servers" {
        return "producer.override.bootstrap.servers".to_owned();
    }
    names::connector(&name).to_owned()
}

/// Prefix for names that Debezium Server does not pass on.
pub(super) const UNREAD: &str = "unread.";

/// Maps sections as `DebeziumServer` passes them to the engine.
fn server_key(name: &str) -> String {
    let Some(rest) = name.strip_prefix("debezium.") else { return format!("{UNREAD}{name}") };
    if let Some(option) = rest.strip_prefix("source.") {
        return option.to_owned();
    }
    if let Some(option) = rest.strip_prefix("sink.kafka.producer.") {
        return format!("producer.override.{option}");
    }
    let parts = ["sink.", "transforms", "predicates"];
    if parts.iter().any(|part| rest.starts_with(part)) {
        return rest.to_owned();
    }
    let Some(format) = rest.strip_prefix("format.") else { return format!("{UNREAD}{rest}") };
    let (side, option) = match format.split_once('.') {
        Some((side @ ("key" | "value" | "header"), option)) => (side, option),
        None if ["key", "value", "header"].contains(&format) => {
            return format!("{format}.converter");
        }
        // Applies to all three converters.
        _ => return format!("converter.{format}"),
    };
    format!("{side}.converter.{option}")
}

/// Quarkus treats `${name}` as a reference, so files escape it as `$${name}` or `\${name}`.
fn unescape(value: &str) -> String {
    value.replace("$${", "${").replace("\\${", "${")
}

fn connector_json(text: &str) -> Result<Vec<(String, GivenContent)>, ImportError> {
    let json: Value = serde_json::from_str(text)
        .map_err(|error| ImportError::Json { reason: error.to_string() })?;
    let Value::Object(members) = json else {
        return Err(ImportError::Foreign {
            reason: "it is a list",
            help: "hand over one connector at a time",
        });
    };
    if members.contains_key("error_code") && members.contains_key("message") {
        return Err(ImportError::Foreign {
            reason: "it is an error that Kafka Connect answered",
            help: "`curl --fail http://connect:8083/connectors` lists the connectors; \
                   `curl --fail http://connect:8083/connectors/NAME` prints one",
        });
    }
    let wrapped = members.get("config").is_some_and(Value::is_object);
    let mut pairs = Vec::with_capacity(members.len());
    for (name, value) in members {
        match value {
            Value::Object(config) if wrapped && name == "config" => {
                pairs.extend(config.into_iter().map(|(name, value)| (name, content(value))));
            }
            // Connect's REST interface returns these members beside a configuration.
            value if wrapped => match content(value) {
                GivenContent::Nested => pairs.push((name, GivenContent::Null)),
                content => pairs.push((name, content)),
            },
            value => pairs.push((name, content(value))),
        }
    }
    Ok(pairs)
}

fn content(value: Value) -> GivenContent {
    match value {
        Value::String(text) => GivenContent::Text(text),
        Value::Bool(_) | Value::Number(_) => GivenContent::Text(value.to_string()),
        Value::Null => GivenContent::Null,
        Value::Array(_) | Value::Object(_) => GivenContent::Nested,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<(String, String)> {
        let entries = read(text).ok().unwrap().entries.into_iter();
        let value = |content| match content {
            GivenContent::Text(text) => text,
            GivenContent::Null => "(null)".to_owned(),
            GivenContent::Nested => "(nested)".to_owned(),
        };
        entries.map(|entry| (entry.key, value(entry.content))).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_connector_is_read_bare_and_wrapped() {
        let config =
            "{\"connector.class\": \"x\", \"tasks.max\": 1, \"a\": true, \"b\": null, \"c\": [1]}";
        let expected = [("connector.class", "x"), ("tasks.max", "1"), ("a", "true")];
        let rest = [("b", "(null)"), ("c", "(nested)")];
        assert_eq!(keys(config), pairs(&[&expected[..], &rest].concat()));
        let wrapped = format!("\u{feff} {{\"name\": \"n\", \"config\": {config}, \"tasks\": []}}");
        let around = [&[("name", "n")], &expected[..], &rest, &[("tasks", "(null)")]].concat();
        assert_eq!(keys(&wrapped), pairs(&around));
    }

    #[test]
    fn the_servers_sections_become_the_connectors_names() {
        let text = "debezium.sink.type=kafka\ndebezium.sink.kafka.producer.acks=all\n\
                    debezium.source.slot.name=s\ndebezium.format.key=json\n\
                    debezium.format.value.schemas.enable=false\ndebezium.format.schemas.enable=true\n\
                    debezium.transforms=outbox\ndebezium.transforms.outbox.type=T\n\
                    debezium.transforms.outbox.route.topic.replacement=a.$${routedByValue}\n\
                    quarkus.log.level=INFO\nvalue.converter=x.JsonConverter\n";
        let expected = [
            ("sink.type", "kafka"),
            ("producer.override.acks", "all"),
            ("slot.name", "s"),
            ("key.converter", "json"),
            ("value.converter.schemas.enable", "false"),
            ("converter.schemas.enable", "true"),
            ("transforms", "outbox"),
            ("transforms.outbox.type", "T"),
            ("transforms.outbox.route.topic.replacement", "a.${routedByValue}"),
            ("unread.quarkus.log.level", "INFO"),
            ("unread.value.converter", "x.JsonConverter"),
        ];
        assert_eq!(keys(text), pairs(&expected));
    }

    #[test]
    fn the_routers_options_alone_are_enough() {
        for text in ["{\"route.by.field\": \"kind\"}", "route.by.field = kind"] {
            assert_eq!(keys(text), pairs(&[("transforms.outbox.route.by.field", "kind")]));
            assert_eq!(read(text).ok().unwrap().flavour, Flavour::Router);
        }
        let form = "{\"value.converter\": \"x.JsonConverter\", \"topic.prefix\": \"a\"}";
        for text in ["{}", form] {
            assert_eq!(read(text).ok().unwrap().flavour, Flavour::Router);
        }
        assert_eq!(read("See the README.").ok().unwrap().flavour, Flavour::Connect);
    }

    #[test]
    fn the_last_of_two_equal_names_wins() {
        assert_eq!(
            keys("{\"slot.name\": \"a\", \"slot.name\": \"b\"}"),
            pairs(&[("slot.name", "b")])
        );
    }

    #[test]
    fn other_things_are_told_from_connectors() {
        let resource = "apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaConnector\n";
        for (text, words) in [
            ("", "nothing in it"),
            ("# only a comment", "nothing in it"),
            ("[{\"name\": \"a\"}]", "a list"),
            (resource, "Kubernetes"),
            ("{\"a\": \"hunter2\"", "EOF"),
            ("{\"a\": hunter2}", "expected value"),
        ] {
            let error = read(text).err().unwrap();
            let said = format!("{error} {error:?} {:?}", error.hint());
            assert!(said.contains(words) && !said.contains("hunter2"), "{said}");
        }
    }
}
