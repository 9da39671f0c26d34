//! Merged settings in, a validated [`Config`] out, or every mistake in it.
//!
//! What always holds: nothing outside of this process is asked or touched; a mistake points at
//! the place its value was typed in, whichever layer that was.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checks;
use super::layer::{Item, Setting, Value};
use super::libpq::{ConnectInfo, ConnectInfoWarning};
use super::mistake::{Mistake, MistakeKind, Place};
use super::model::{Config, DeadLetters, Http, Kafka, Log, Outbox, Retry, Route, Shutdown, Source};
use super::options::PROPERTIES;
use super::values::{
    Compression, ConnectionString, Create, Delivery, EmptyPayload, LogFormat, LogLevel, OnUpdate,
    Partitioner, Property, Refusal, Rejected, TimestampUnit,
};

/// Builds the configuration. Mistakes of the layers are to be reported before these.
pub(super) fn assemble(
    settings: &BTreeMap<String, Setting>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Vec<ConnectInfoWarning>), Vec<Mistake>> {
    let mut reader = Reader { settings, env, mistakes: Vec::new(), warnings: Vec::new() };
    let source = reader.source();
    let outbox = reader.outbox();
    let route = reader.route();
    let kafka = reader.kafka();
    let rest = reader.rest();
    let config = (|| {
        let (dead_letters, http, retry, shutdown, log) = rest?;
        Some(Config {
            source: source?,
            outbox: outbox?,
            route: route?,
            kafka: kafka?,
            dead_letters,
            http,
            retry,
            shutdown,
            log,
        })
    })();
    match config {
        Some(config) if reader.mistakes.is_empty() => Ok((config, reader.warnings)),
        _ => Err(reader.mistakes),
    }
}

type Rest = (DeadLetters, Http, Retry, Shutdown, Log);

struct Reader<'a> {
    settings: &'a BTreeMap<String, Setting>,
    env: &'a dyn Fn(&str) -> Option<String>,
    mistakes: Vec<Mistake>,
    warnings: Vec<ConnectInfoWarning>,
}

impl Reader<'_> {
    fn source(&mut self) -> Option<Source> {
        let url = self.text("source.url", |text| Ok(ConnectionString::new(text)));
        let connect = url.as_ref().and_then(|url| self.connect(url));
        let slot = self.text("source.slot", checks::slot);
        let publication = self.text("source.publication", checks::identifier);
        let tables = self.list("source.tables", checks::table);
        if tables.as_ref().is_some_and(|tables| {
            tables
                .iter()
                .enumerate()
                .any(|(at, table)| tables.iter().skip(at + 1).any(|t| t == table))
        }) {
            self.refuse::<()>("source.tables", Refusal::new("a table is named twice"));
        }
        let create = self.choice("source.create", Create::from_word);
        let status_interval = self.duration("source.status_interval");
        let frame_bytes_max = self.size("source.frame_max");
        Some(Source {
            connect: connect?,
            url: url?,
            slot: slot?,
            publication: publication?,
            tables: tables?,
            create: create?,
            status_interval: status_interval?,
            frame_bytes_max: frame_bytes_max?,
        })
    }

    fn connect(&mut self, url: &ConnectionString) -> Option<ConnectInfo> {
        match ConnectInfo::resolve(url.expose(), self.env) {
            Ok((connect, warnings)) => {
                self.warnings.extend(warnings);
                Some(connect)
            }
            Err(error) => {
                let refusal = Refusal { reason: error.to_string(), help: error.hint() };
                self.refuse("source.url", refusal)
            }
        }
    }

    fn outbox(&mut self) -> Option<Outbox> {
        let id = self.text("outbox.id", checks::identifier);
        let aggregate_type = self.text("outbox.aggregate_type", checks::identifier);
        let aggregate_id = self.text("outbox.aggregate_id", checks::identifier);
        let event_type = self.text("outbox.event_type", checks::identifier);
        let payload = self.text("outbox.payload", checks::identifier);
        let timestamp = self.optional_column("outbox.timestamp");
        let timestamp_unit = self.choice("outbox.timestamp_unit", TimestampUnit::from_word);
        let traceparent = self.optional_column("outbox.traceparent");
        let on_update = self.choice("outbox.on_update", OnUpdate::from_word);
        Some(Outbox {
            id: id?,
            aggregate_type: aggregate_type?,
            aggregate_id: aggregate_id?,
            event_type: event_type?,
            payload: payload?,
            timestamp: timestamp?,
            timestamp_unit: timestamp_unit?,
            traceparent: traceparent?,
            on_update: on_update?,
        })
    }

    fn route(&mut self) -> Option<Route> {
        let by = self.text("route.by", checks::identifier);
        let regex = self.text("route.regex", |text| Ok(text.to_owned()));
        let topic = self.text("route.topic", |text| Ok(text.to_owned()));
        if let (Some(regex), Some(topic)) = (&regex, &topic)
            && let Err((key, refusal)) = checks::template(regex, topic)
        {
            self.refuse::<()>(key, refusal);
        }
        let key = self.text("route.key", checks::identifier);
        let headers = self.items("route.headers", checks::header);
        let empty_payload = self.choice("route.empty_payload", EmptyPayload::from_word);
        let id_header = self.text("route.id_header", checks::id_header);
        let position_header = self.switch("route.position_header");
        let rejected = self.choice("route.rejected", Rejected::from_word);
        Some(Route {
            by: by?,
            regex: regex?,
            topic: topic?,
            key: key?,
            headers: headers?,
            empty_payload: empty_payload?,
            id_header: id_header?,
            position_header: position_header?,
            rejected: rejected?,
        })
    }

    fn kafka(&mut self) -> Option<Kafka> {
        let brokers = self.list("kafka.brokers", checks::broker);
        let delivery = self.choice("kafka.delivery", Delivery::from_word);
        let partitioner = self.choice("kafka.partitioner", Partitioner::from_word);
        let compression = self.choice("kafka.compression", Compression::from_word);
        if compression == Some(Compression::Zstd) && !cfg!(feature = "zstd") {
            let key = "kafka.compression".to_owned();
            let reason = "this build has no zstd".to_owned();
            self.mistake(&key.clone(), MistakeKind::Unsupported { key, reason }, None);
        }
        let client_id = self.text("kafka.client_id", checks::client_id);
        let linger = self.duration("kafka.linger");
        let message_bytes_max = self.size("kafka.message_max_bytes");
        let in_flight_bytes_max = self.size("kafka.max_in_flight");
        let properties = self.properties();
        Some(Kafka {
            brokers: brokers?,
            delivery: delivery?,
            partitioner: partitioner?,
            compression: compression?,
            client_id: client_id?,
            linger: linger?,
            message_bytes_max: message_bytes_max.and_then(|bytes| bytes.try_into().ok())?,
            in_flight_bytes_max: in_flight_bytes_max?,
            properties,
        })
    }

    fn rest(&mut self) -> Option<Rest> {
        let topic = self.text("dead_letters.topic", checks::topic);
        let bind = self.text("http.bind", checks::bind);
        let retry = self.retry();
        let grace = self.duration("shutdown.grace");
        let level = self.choice("log.level", LogLevel::from_word);
        let format = self.choice("log.format", LogFormat::from_word);
        let repeat_interval = self.duration("log.repeat_interval");
        Some((
            DeadLetters { topic: topic? },
            Http { bind: bind? },
            retry?,
            Shutdown { grace: grace? },
            Log { level: level?, format: format?, repeat_interval: repeat_interval? },
        ))
    }

    fn retry(&mut self) -> Option<Retry> {
        let initial = self.duration("retry.initial");
        let max = self.duration("retry.max");
        let give_up_after = self.duration("retry.give_up_after");
        if max < initial {
            self.refuse::<()>("retry.max", Refusal::new("must not be below `retry.initial`"));
        }
        Some(Retry { initial: initial?, max: max?, give_up_after: give_up_after? })
    }

    fn properties(&mut self) -> Vec<Property> {
        let prefix = format!("{PROPERTIES}.");
        let mut properties = Vec::new();
        for (key, setting) in self.settings {
            if let (Some(name), Value::Text(value)) = (key.strip_prefix(&prefix), &setting.value) {
                properties.push(Property { name: name.to_owned(), value: value.clone() });
            }
        }
        properties
    }

    fn text<T>(&mut self, key: &str, parse: impl FnOnce(&str) -> Result<T, Refusal>) -> Option<T> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Text(text)) => match parse(text) {
                Ok(value) => Some(value),
                Err(refusal) => self.refuse(key, refusal),
            },
            _ => self.absent(key),
        }
    }

    fn choice<T>(&mut self, key: &str, from_word: fn(&str) -> Option<T>) -> Option<T> {
        self.text(key, |word| from_word(word).ok_or_else(|| Refusal::new("is not a choice")))
    }

    /// The outer option is "no mistake", the inner one "there is such a column".
    #[expect(clippy::option_option, reason = "two questions, two answers")]
    fn optional_column(&mut self, key: &str) -> Option<Option<String>> {
        self.text(key, |text| match text {
            "" => Ok(None),
            _ => checks::identifier(text).map(Some),
        })
    }

    /// A list with at least one element.
    fn list<T>(&mut self, key: &str, parse: fn(&str) -> Result<T, Refusal>) -> Option<Vec<T>> {
        match self.items(key, parse) {
            Some(items) if items.is_empty() => self.refuse(key, Refusal::new("needs at least one")),
            items => items,
        }
    }

    fn items<T>(&mut self, key: &str, parse: fn(&str) -> Result<T, Refusal>) -> Option<Vec<T>> {
        let settings = self.settings;
        let Some((setting, Value::List(items))) = settings.get(key).map(|s| (s, &s.value)) else {
            return self.absent(key);
        };
        let mut values = Vec::with_capacity(items.len());
        let before = self.mistakes.len();
        for Item { text, span } in items {
            match parse(text) {
                Ok(value) => values.push(value),
                Err(Refusal { reason, help }) => {
                    let span = span.as_ref().or(setting.span.as_ref());
                    let place = super::layer::place_of(&setting.origin, span);
                    let kind = MistakeKind::Invalid { key: key.to_owned(), reason };
                    self.mistakes.push(Mistake { kind, place, help });
                }
            }
        }
        (self.mistakes.len() == before).then_some(values)
    }

    fn duration(&mut self, key: &str) -> Option<Duration> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Duration(duration)) => Some(*duration),
            _ => self.absent(key),
        }
    }

    fn size(&mut self, key: &str) -> Option<u64> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Size(bytes)) => Some(*bytes),
            _ => self.absent(key),
        }
    }

    fn switch(&mut self, key: &str) -> Option<bool> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Switch(on)) => Some(*on),
            _ => self.absent(key),
        }
    }

    fn refuse<T>(&mut self, key: &str, refusal: Refusal) -> Option<T> {
        let kind = MistakeKind::Invalid { key: key.to_owned(), reason: refusal.reason };
        self.mistake(key, kind, refusal.help);
        None
    }

    /// Cannot happen while the default of every option is of its kind, which a test checks.
    fn absent<T>(&mut self, key: &str) -> Option<T> {
        self.refuse(key, Refusal::new("has no value"))
    }

    fn mistake(&mut self, key: &str, kind: MistakeKind, help: Option<String>) {
        let place = self.settings.get(key).map_or(Place::Nowhere, Setting::place);
        self.mistakes.push(Mistake { kind, place, help });
    }
}
