//! Builds a validated [`Config`] from the merged settings, or reports every mistake in them.
//!
//! Invariant: nothing outside of this process is contacted; a mistake points at the place where its value
//! was typed.

use postrider_core::record::Partitioner;
use std::collections::BTreeMap;

use super::checks;
use super::layer::{Setting, Value};
use super::mistake::{Mistake, MistakeKind};
use super::model::{
    Config, DeadLettersSection, HttpSection, KafkaSection, LogSection, MessagesSection,
    OutboxSection, ProgressSection, RetrySection, RouteSection, ShutdownSection, SourceSection,
};
use super::reader::SettingsReader;
use super::rules;
use super::values::{
    Compression, ConnectionString, Create, Delivery, LogFormat, LogLevel, MissingTopicWord,
    OnUpdate, Rejected,
};
use postrider_core::pipeline::{MissingPolicy, MissingTopic};
use postrider_core::route::{
    ByteaForm, ColumnStyle, EmptyPayload, EpochUnit, FieldSpec, FormatSpec, KeyFormat, Members,
    MissingColumn, PROGRESS_PREFIX, ValueFormat, check_members,
};
use postrider_postgres::libpq::ConnectInfoWarning;
use postrider_service::units::InvalidValue;

/// Builds the configuration. Mistakes of the layers are to be reported before these.
pub(super) fn assemble(
    settings: &BTreeMap<String, Setting>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Vec<ConnectInfoWarning>), Vec<Mistake>> {
    let mut reader = SettingsReader::new(settings, env);
    let source = reader.source();
    let messages = reader.messages();
    let outbox = reader.outbox();
    let route = outbox.as_ref().and_then(|outbox| reader.route(outbox));
    let format = reader.format(route.as_ref());
    let kafka = reader.kafka();
    let rest = reader.rest(route.as_ref());
    let config = (|| {
        let (progress, dead_letters, http, retry, shutdown, log) = rest?;
        Some(Config {
            source: source?,
            messages: messages?,
            outbox: outbox?,
            route: route?,
            format: format?,
            kafka: kafka?,
            progress,
            dead_letters,
            http,
            retry,
            shutdown,
            log,
        })
    })();
    if let Some(config) = config.as_ref().filter(|_| reader.mistakes.is_empty()) {
        reader.topics(config);
    }
    match config {
        Some(config) if reader.mistakes.is_empty() => Ok((config, reader.warnings)),
        _ => {
            assert!(!reader.mistakes.is_empty(), "a setting is missing, and no mistake says so");
            Err(reader.mistakes)
        }
    }
}

/// Further names of columns, by the first.
type Aliases = BTreeMap<String, Vec<String>>;

type Rest =
    (ProgressSection, DeadLettersSection, HttpSection, RetrySection, ShutdownSection, LogSection);

impl SettingsReader<'_> {
    fn source(&mut self) -> Option<SourceSection> {
        let url = self.text("source.url", |text| Ok(ConnectionString::new(text)));
        let connect = url.as_ref().and_then(|url| self.connect(url));
        let slot = self.text("source.slot", checks::slot);
        let publication = self.text("source.publication", checks::identifier);
        // Logical messages need no table.
        let tables = match self.settings.get("messages.prefixes").map(|setting| &setting.value) {
            Some(Value::List(prefixes)) if !prefixes.is_empty() => {
                self.items("source.tables", checks::table)
            }
            _ => self.list("source.tables", checks::table, "name a table, or messages.prefixes"),
        };
        if tables.as_ref().is_some_and(|tables| {
            tables
                .iter()
                .enumerate()
                .any(|(at, table)| tables.iter().skip(at + 1).any(|t| t == table))
        }) {
            let refusal = InvalidValue::new("a table is named twice").help("remove one of the two");
            self.refuse::<()>("source.tables", refusal);
        }
        let create = self.choice("source.create", Create::from_word);
        let status_interval = self.duration("source.status_interval");
        let frame_bytes_max = self.size("source.frame_max");
        Some(SourceSection {
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

    fn messages(&mut self) -> Option<MessagesSection> {
        let prefixes = self.items("messages.prefixes", checks::message_prefix);
        let null_members = self.choice("messages.null_members", Members::from_word);
        Some(MessagesSection { prefixes: prefixes?, null_members: null_members? })
    }

    fn outbox(&mut self) -> Option<OutboxSection> {
        let mut aliases = BTreeMap::new();
        let id = self.column("outbox.id", &mut aliases);
        let aggregate_type = self.column("outbox.aggregate_type", &mut aliases);
        let aggregate_id = self.column("outbox.aggregate_id", &mut aliases);
        let event_type = self.column("outbox.event_type", &mut aliases);
        let payload = self.column("outbox.payload", &mut aliases);
        let timestamp = self.optional("outbox.timestamp", &mut aliases);
        let timestamp_unit = self.choice("outbox.timestamp_unit", EpochUnit::from_word);
        let schema_version = self.optional("outbox.schema_version", &mut aliases);
        let traceparent = self.optional("outbox.traceparent", &mut aliases);
        let on_update = self.choice("outbox.on_update", OnUpdate::from_word);
        Some(OutboxSection {
            id: id?,
            aggregate_type: aggregate_type?,
            aggregate_id: aggregate_id?,
            event_type: event_type?,
            payload: payload?,
            timestamp: timestamp?,
            timestamp_unit: timestamp_unit?,
            schema_version: schema_version?,
            traceparent: traceparent?,
            aliases,
            on_update: on_update?,
        })
    }

    /// A column that there must be.
    fn column(&mut self, key: &str, aliases: &mut Aliases) -> Option<String> {
        match self.optional(key, aliases)? {
            Some(name) => Some(name),
            None => self.refuse(key, InvalidValue::new("must not be empty")),
        }
    }

    /// A column's first name, if it has one; the others become its aliases.
    #[expect(clippy::option_option, reason = "as for `optional_column`")]
    fn optional(&mut self, key: &str, aliases: &mut Aliases) -> Option<Option<String>> {
        let items = match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::List(items)) => items.as_slice(),
            _ => return self.absent(key),
        };
        if items.iter().all(|item| item.text.is_empty()) {
            return Some(None);
        }
        let mut names = self.items(key, checks::identifier)?.into_iter();
        let Some(first) = names.next() else { return Some(None) };
        for name in names.filter(|name| *name != first) {
            let known: &mut Vec<String> = aliases.entry(first.clone()).or_default();
            if !known.contains(&name) {
                known.push(name);
            }
        }
        Some(Some(first))
    }

    fn route(&mut self, outbox: &OutboxSection) -> Option<RouteSection> {
        let by = self.text("route.by", checks::identifier);
        let regex = self.text("route.regex", |text| Ok(text.to_owned()));
        let topic = self.text("route.topic", |text| Ok(text.to_owned()));
        if let (Some(regex), Some(topic)) = (&regex, &topic)
            && let Err((key, refusal)) = checks::template(regex, topic)
        {
            self.refuse::<()>(key, refusal);
        }
        let topics_allowed = self.items("route.topics_allowed", checks::glob);
        let key = self.text("route.key", checks::identifier);
        let headers = self.items("route.headers", checks::field);
        let envelope = self.envelope();
        let partition = self.optional_column("route.partition");
        let missing_column = self.choice("route.missing_column", MissingColumn::from_word);
        let rules = by.as_deref().and_then(|by| self.rules(by, outbox));
        let empty_payload = self.choice("route.empty_payload", EmptyPayload::from_word);
        let id_header = self.text("route.id_header", checks::id_header);
        let position_header = self.switch("route.position_header");
        let rejected = self.choice("route.rejected", Rejected::from_word);
        let missing_topic = self.missing_topic(rejected);
        Some(RouteSection {
            by: by?,
            regex: regex?,
            topic: topic?,
            topics_allowed: topics_allowed?,
            key: key?,
            headers: headers?,
            envelope: envelope?,
            partition: partition?,
            missing_column: missing_column?,
            rules: rules?,
            empty_payload: empty_payload?,
            id_header: id_header?,
            position_header: position_header?,
            rejected: rejected?,
            missing_topic: missing_topic?,
        })
    }

    fn missing_topic(&mut self, rejected: Option<Rejected>) -> Option<MissingPolicy> {
        let word = self.choice("route.missing_topic", MissingTopicWord::from_word);
        let deadline = self.duration("route.missing_topic_deadline");
        let create = self.items("route.create_topics", checks::create_rule);
        let create_max = self.text("route.create_topics_max", checks::count);
        let (word, deadline) = (word?, deadline?);
        let letters = rejected? == Rejected::DeadLetter;
        let then = match word {
            MissingTopicWord::DeadLetter if letters => MissingTopic::Reject(deadline),
            // Neither stopped nor left out for a topic that is late.
            MissingTopicWord::DeadLetter => MissingTopic::Wait(None),
            MissingTopicWord::Wait if deadline.is_zero() => MissingTopic::Wait(None),
            MissingTopicWord::Wait => MissingTopic::Wait(Some(deadline)),
            MissingTopicWord::Create => MissingTopic::Create,
        };
        let ends_in_letters = matches!(then, MissingTopic::Create | MissingTopic::Wait(Some(_)));
        if ends_in_letters && !letters {
            let reason = "rows may end as dead letters, and route.rejected is not \"dead_letter\"";
            let help = "set route.rejected = \"dead_letter\", or let rows wait for ever: \
                        route.missing_topic = \"wait\" without a deadline";
            return self.refuse("route.missing_topic", InvalidValue::new(reason).help(help));
        }
        Some(MissingPolicy { then, create: create?, create_max: create_max? })
    }

    /// Topics that the configuration itself names, and that rows may not go to.
    fn topics(&mut self, config: &Config) {
        let Config { route, progress, dead_letters, .. } = config;
        if progress.topic == dead_letters.topic {
            let refusal = InvalidValue::new(format!("dead letters go to `{}` too", progress.topic));
            let help =
                "give progress a topic of its own: it is compacted, and dead letters are not";
            self.refuse::<()>("progress.topic", refusal.help(help));
        }
        let mut templates = vec![("route.topic".to_owned(), route.regex.as_str(), &route.topic)];
        templates.extend(rules::topics(self.settings, &route.rules));
        let spec = config.topics_spec();
        for (key, regex, topic) in templates {
            if let Err(refusal) = checks::reachable(&spec, regex, topic) {
                self.refuse::<()>(&key, refusal);
            }
        }
    }

    fn envelope(&mut self) -> Option<Vec<FieldSpec>> {
        let fields = self.items("route.envelope", checks::field)?;
        let Err(twice) = check_members(&fields) else { return Some(fields) };
        let help = twice.hint();
        self.refuse("route.envelope", InvalidValue { reason: twice.to_string(), help })
    }

    fn format(&mut self, route: Option<&RouteSection>) -> Option<FormatSpec> {
        let key = self.choice("format.key", KeyFormat::from_word);
        let value = self.choice("format.value", ValueFormat::from_word);
        let columns = self.choice("format.columns", ColumnStyle::from_word);
        let bytea = self.choice("format.bytea", ByteaForm::from_word);
        let expand_json = self.switch("format.expand_json");
        let null_members = self.choice("format.null_members", Members::from_word);
        let empty_arrays = self.choice("format.empty_arrays", Members::from_word);
        let schema_prefix = self.text("format.schema_prefix", |text| Ok(text.to_owned()));
        let source = self.text("format.cloudevents_source", |text| Ok(text.to_owned()));
        let value = value?;
        if route.is_some_and(|route| !route.envelope.is_empty()) && !value.takes_envelope() {
            let reason = format!("needs an object around it, and `{}` has none", value.as_str());
            let help = "set format.value to json, json_schema or string".to_owned();
            return self.refuse("route.envelope", InvalidValue::new(reason).help(help));
        }
        Some(FormatSpec {
            key: key?,
            value,
            columns: columns?,
            bytea: bytea?,
            expand_json: expand_json?,
            null_members: null_members?,
            empty_arrays: empty_arrays?,
            schema_prefix: schema_prefix?,
            cloudevents_source: source?,
        })
    }

    fn kafka(&mut self) -> Option<KafkaSection> {
        let brokers = self.list("kafka.brokers", checks::broker, "write \"host:port\"");
        let delivery = self.choice("kafka.delivery", Delivery::from_word);
        let partitioner = self.choice("kafka.partitioner", Partitioner::from_word);
        let compression = self.choice("kafka.compression", Compression::from_word);
        if compression == Some(Compression::Zstd) && !cfg!(feature = "zstd") {
            let key = "kafka.compression".to_owned();
            let reason = "this build has no zstd".to_owned();
            self.mistake(&key.clone(), MistakeKind::Unsupported { key, reason }, None);
        }
        let client_id = self.text("kafka.client_id", checks::client_id);
        let transaction_age = self.duration("kafka.transaction_age");
        let linger = self.duration("kafka.linger");
        let message_bytes_max = self.size("kafka.message_max_bytes");
        let in_flight_bytes_max = self.size("kafka.max_in_flight");
        let properties = self.properties();
        let secret_files = self.files_of(&properties);
        let password_command = self.password_command("kafka.password_command");
        Some(KafkaSection {
            brokers: brokers?,
            delivery: delivery?,
            transaction_age: transaction_age?,
            partitioner: partitioner?,
            compression: compression?,
            client_id: client_id?,
            linger: linger?,
            message_bytes_max: message_bytes_max.and_then(|bytes| bytes.try_into().ok())?,
            in_flight_bytes_max: in_flight_bytes_max?,
            properties,
            secret_files,
            password_command: password_command?,
        })
    }

    fn rest(&mut self, route: Option<&RouteSection>) -> Option<Rest> {
        let progress = self.progress();
        let topic = self.text("dead_letters.topic", |text| checks::dead_letters(text, route));
        if let (Some(progress), Some(letters)) = (&progress, &topic)
            && progress.topic == *letters
        {
            let reason = format!("dead letters go to `{letters}` too");
            let help = "progress is kept in a compacted topic of its own: leave progress.topic out";
            self.refuse::<()>("progress.topic", InvalidValue::new(reason).help(help));
        }
        let bind = self.text("http.bind", checks::bind);
        let retry = self.retry();
        let grace = self.duration("shutdown.grace");
        let level = self.choice("log.level", LogLevel::from_word);
        let format = self.choice("log.format", LogFormat::from_word);
        let repeat_interval = self.duration("log.repeat_interval");
        Some((
            progress?,
            DeadLettersSection { topic: topic? },
            HttpSection { bind: bind? },
            retry?,
            ShutdownSection { grace: grace? },
            LogSection { level: level?, format: format?, repeat_interval: repeat_interval? },
        ))
    }

    fn progress(&mut self) -> Option<ProgressSection> {
        let slot = self.text("source.slot", |slot| Ok(slot.to_owned()));
        let topic = self.text("progress.topic", |text| match (text, &slot) {
            ("", Some(slot)) => Ok(format!("{PROGRESS_PREFIX}{slot}")),
            _ => checks::progress_topic(text),
        });
        let at_least_once = self.switch("progress.at_least_once");
        Some(ProgressSection { topic: topic?, at_least_once: at_least_once? })
    }

    fn retry(&mut self) -> Option<RetrySection> {
        let initial = self.duration("retry.initial");
        let max = self.duration("retry.max");
        let give_up_after = self.duration("retry.give_up_after");
        let login_give_up_after = self.duration("retry.login_give_up_after");
        if max < initial {
            self.refuse::<()>("retry.max", InvalidValue::new("must not be below `retry.initial`"));
        }
        Some(RetrySection {
            initial: initial?,
            max: max?,
            give_up_after: give_up_after?,
            login_give_up_after: login_give_up_after?,
        })
    }
}
