//! Builds a validated `Config` from the merged settings, or reports every mistake at the place
//! where its value was typed. Checks of several options are here; checks of single values are in
//! `checks`. Nothing is contacted.

use postrider_core::record::Partitioner;
use std::collections::{BTreeMap, BTreeSet};

use super::checks;
use super::layer::{Setting, Value};
use super::mistake::{Mistake, MistakeKind};
use super::model::{
    Config, DeadLettersSection, HttpSection, KafkaSection, LogSection, MessagesSection,
    OutboxSection, ProgressSection, RetrySection, RouteSection, ShutdownSection, SourceSection,
    TracesSection,
};
use super::reader::SettingsReader;
use super::rules;
use super::traces;
use super::values::{
    Compression, ConnectionString, Create, Delivery, LogFormat, LogLevel, MissingTopicWord,
    Rejected, SourceMode,
};
use postrider_core::outbox::TableName;
use postrider_core::pipeline::{MissingPolicy, MissingTopic, UpdatePolicy};
use postrider_core::route::{
    ByteaForm, ColumnStyle, EmptyPayload, EpochUnit, FieldSpec, FormatSpec, KeyFormat, Members,
    MissingColumn, PROGRESS_PREFIX, ValueFormat, check_members,
};
use postrider_postgres::libpq::ConnectInfoWarning;
use postrider_service::units::InvalidValue;

/// Mistakes of the layers must be reported first.
pub(super) fn assemble(
    settings: &BTreeMap<String, Setting>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Vec<ConnectInfoWarning>), Vec<Mistake>> {
    let mut reader = SettingsReader::new(settings, env);
    reader.variables();
    let config = reader.config().filter(|_| reader.mistakes.is_empty());
    if let Some(config) = &config {
        reader.topics(config);
        reader.polls(config);
        reader.logs_in(config);
    }
    match config {
        Some(config) if reader.mistakes.is_empty() => Ok((config, reader.warnings)),
        _ => {
            assert!(!reader.mistakes.is_empty(), "a setting is missing, and no mistake says so");
            Err(reader.mistakes)
        }
    }
}

type Aliases = BTreeMap<String, Vec<String>>;

/// What these fields come to, or nothing where one is missing. Each is read, so that each mistake is found;
/// it may look at those above it.
macro_rules! all {
    ($name:ident { $($field:ident: $value:expr),+ $(,)? }) => {{
        $(let $field = $value;)+
        Some($name { $($field: $field?),+ })
    }};
}

impl SettingsReader<'_> {
    fn config(&mut self) -> Option<Config> {
        all!(Config {
            source: self.source(),
            messages: self.messages(),
            outbox: self.outbox(),
            route: outbox.as_ref().and_then(|outbox| self.route(outbox)),
            format: self.format(route.as_ref()),
            kafka: self.kafka(),
            progress: self.progress(),
            dead_letters: self.dead_letters(route.as_ref(), progress.as_ref()),
            http: all!(HttpSection {
                bind: self.text("http.bind", checks::bind),
                dashboard: self.switch("http.dashboard"),
                dashboard_payloads: self.switch("http.dashboard_payloads"),
                control: self.control(),
            }),
            traces: all!(TracesSection {
                endpoint: self.text("traces.endpoint", traces::endpoint),
                max_per_second: self.count("traces.max_per_second"),
            }),
            retry: self.retry(),
            shutdown: all!(ShutdownSection { grace: self.duration("shutdown.grace") }),
            log: all!(LogSection {
                level: self.choice("log.level", LogLevel::from_word),
                format: self.choice("log.format", LogFormat::from_word),
                repeat_interval: self.duration("log.repeat_interval"),
            }),
        })
    }

    fn source(&mut self) -> Option<SourceSection> {
        all!(SourceSection {
            url: self.text("source.url", |text| Ok(ConnectionString::new(text))),
            connect: url.as_ref().and_then(|url| self.connect(url)),
            slot: self.text("source.slot", checks::slot),
            publication: self.text("source.publication", checks::identifier),
            tables: self.tables(),
            create: self.choice("source.create", Create::from_word),
            failover: self.switch("source.failover"),
            standby: self.switch("source.standby"),
            catch_up: self.switch("source.catch_up"),
            status_interval: self.duration("source.status_interval"),
            frame_bytes_max: self.size("source.frame_max"),
            mode: self.choice("source.mode", SourceMode::from_word),
            poll: self.poll(),
        })
    }

    fn tables(&mut self) -> Option<Vec<TableName>> {
        // Logical messages need no table.
        let tables = match self.settings.get("messages.prefixes").map(|setting| &setting.value) {
            Some(Value::List(prefixes)) if !prefixes.is_empty() => {
                self.items("source.tables", checks::table)
            }
            _ => self.list("source.tables", checks::table, "name a table, or messages.prefixes"),
        }?;
        if tables.iter().collect::<BTreeSet<_>>().len() < tables.len() {
            let refusal = InvalidValue::new("a table is named twice").help("remove one of the two");
            return self.refuse("source.tables", refusal);
        }
        Some(tables)
    }

    fn messages(&mut self) -> Option<MessagesSection> {
        all!(MessagesSection {
            prefixes: self.items("messages.prefixes", checks::message_prefix),
            null_members: self.choice("messages.null_members", Members::from_word),
        })
    }

    fn outbox(&mut self) -> Option<OutboxSection> {
        let mut others = Aliases::new();
        all!(OutboxSection {
            id: self.column("outbox.id", &mut others),
            aggregate_type: self.column("outbox.aggregate_type", &mut others),
            aggregate_id: self.column("outbox.aggregate_id", &mut others),
            event_type: self.column("outbox.event_type", &mut others),
            payload: self.column("outbox.payload", &mut others),
            timestamp: self.optional("outbox.timestamp", &mut others),
            timestamp_unit: self.choice("outbox.timestamp_unit", EpochUnit::from_word),
            schema_version: self.optional("outbox.schema_version", &mut others),
            traceparent: self.optional("outbox.traceparent", &mut others),
            order_by: self.items("outbox.order_by", checks::identifier),
            created_at: self.column("outbox.created_at", &mut others),
            on_update: self.choice("outbox.on_update", UpdatePolicy::from_word),
            aliases: Some(others),
        })
    }

    fn column(&mut self, key: &str, aliases: &mut Aliases) -> Option<String> {
        match self.optional(key, aliases)? {
            Some(name) => Some(name),
            None => self.refuse(key, InvalidValue::new("must not be empty")),
        }
    }

    /// First name of a column; others become its aliases.
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
        all!(RouteSection {
            by: self.text("route.by", checks::identifier),
            regex: self.as_typed("route.regex"),
            topic: self.template(regex.as_deref()),
            topics_allowed: self.items("route.topics_allowed", checks::glob),
            key: self.text("route.key", checks::identifier),
            headers: self.items("route.headers", checks::field),
            envelope: self.envelope(),
            partition: self.optional_column("route.partition"),
            missing_column: self.choice("route.missing_column", MissingColumn::from_word),
            rules: by.as_deref().and_then(|by| self.rules(by, outbox)),
            empty_payload: self.choice("route.empty_payload", EmptyPayload::from_word),
            id_header: self.text("route.id_header", checks::id_header),
            position_header: self.switch("route.position_header"),
            rejected: self.choice("route.rejected", Rejected::from_word),
            missing_topic: self.missing_topic(rejected),
        })
    }

    fn template(&mut self, regex: Option<&str>) -> Option<String> {
        let topic = self.as_typed("route.topic")?;
        if let Err((key, refusal)) = checks::template(regex?, &topic) {
            // Checking continues, to find further mistakes.
            self.refuse::<()>(key, refusal);
        }
        Some(topic)
    }

    fn missing_topic(&mut self, rejected: Option<Rejected>) -> Option<MissingPolicy> {
        let word = self.choice("route.missing_topic", MissingTopicWord::from_word);
        let deadline = self.duration("route.missing_topic_deadline");
        let create = self.items("route.create_topics", checks::create_rule);
        let create_max = self.count("route.create_topics_max");
        let (word, deadline) = (word?, deadline?);
        let letters = rejected? == Rejected::DeadLetter;
        let then = match word {
            MissingTopicWord::DeadLetter if letters => MissingTopic::Reject(deadline),
            // Without dead letters, rows of a late topic wait.
            MissingTopicWord::DeadLetter => MissingTopic::Wait(None),
            MissingTopicWord::Wait if deadline.is_zero() => MissingTopic::Wait(None),
            MissingTopicWord::Wait => MissingTopic::Wait(Some(deadline)),
            MissingTopicWord::Create => MissingTopic::Create,
        };
        let is_asked_for =
            word == MissingTopicWord::DeadLetter && self.is_typed("route.missing_topic");
        let ends_in_letters =
            is_asked_for || matches!(then, MissingTopic::Create | MissingTopic::Wait(Some(_)));
        if ends_in_letters && !letters {
            let reason = "rows may end as dead letters, and route.rejected is not \"dead_letter\"";
            let help = "set route.rejected = \"dead_letter\", or let rows wait for ever: \
                        route.missing_topic = \"wait\" without a deadline";
            return self.refuse("route.missing_topic", InvalidValue::new(reason).help(help));
        }
        Some(MissingPolicy { then, create: create?, create_max: create_max? })
    }

    /// Refuses configured topics that rows may not go to.
    fn topics(&mut self, config: &Config) {
        let route = &config.route;
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
        all!(FormatSpec {
            key: self.choice("format.key", KeyFormat::from_word),
            value: self.value_format(route),
            columns: self.choice("format.columns", ColumnStyle::from_word),
            bytea: self.choice("format.bytea", ByteaForm::from_word),
            expand_json: self.switch("format.expand_json"),
            null_members: self.choice("format.null_members", Members::from_word),
            empty_arrays: self.choice("format.empty_arrays", Members::from_word),
            schema_prefix: self.as_typed("format.schema_prefix"),
            cloudevents_source: self.as_typed("format.cloudevents_source"),
        })
    }

    fn value_format(&mut self, route: Option<&RouteSection>) -> Option<ValueFormat> {
        let value = self.choice("format.value", ValueFormat::from_word)?;
        if route.is_some_and(|route| !route.envelope.is_empty()) && !value.takes_envelope() {
            let reason = format!("needs an object around it, and `{}` has none", value.as_str());
            let help = "set format.value to json, json_schema or string".to_owned();
            return self.refuse("route.envelope", InvalidValue::new(reason).help(help));
        }
        Some(value)
    }

    fn kafka(&mut self) -> Option<KafkaSection> {
        all!(KafkaSection {
            brokers: self.list("kafka.brokers", checks::broker, "write \"host:port\""),
            delivery: self.choice("kafka.delivery", Delivery::from_word),
            partitioner: self.choice("kafka.partitioner", Partitioner::from_word),
            compression: self.compression(),
            client_id: self.text("kafka.client_id", checks::client_id),
            transaction_age: self.duration("kafka.transaction_age"),
            linger: self.duration("kafka.linger"),
            message_bytes_max: self.size("kafka.message_max_bytes").and_then(|n| n.try_into().ok()),
            in_flight_bytes_max: self.size("kafka.max_in_flight"),
            properties: Some(self.properties()),
            secret_files: properties.as_ref().map(|properties| self.files_of(properties)),
            password_command: self.password_command("kafka.password_command"),
            oauth: self.oauth(),
        })
    }

    fn compression(&mut self) -> Option<Compression> {
        let compression = self.choice("kafka.compression", Compression::from_word)?;
        if compression == Compression::Zstd && !cfg!(feature = "zstd") {
            let key = "kafka.compression".to_owned();
            let reason = "this build has no zstd".to_owned();
            self.mistake(&key.clone(), MistakeKind::Unsupported { key, reason }, None);
        }
        Some(compression)
    }

    fn progress(&mut self) -> Option<ProgressSection> {
        let slot = self.as_typed("source.slot");
        all!(ProgressSection {
            topic: self.text("progress.topic", |text| match (text, &slot) {
                ("", Some(slot)) => Ok(format!("{PROGRESS_PREFIX}{slot}")),
                _ => checks::progress_topic(text),
            }),
            at_least_once: self.switch("progress.at_least_once"),
        })
    }

    fn dead_letters(
        &mut self,
        route: Option<&RouteSection>,
        progress: Option<&ProgressSection>,
    ) -> Option<DeadLettersSection> {
        let topic = self.text("dead_letters.topic", |text| checks::dead_letters(text, route))?;
        if progress.is_some_and(|progress| progress.topic == topic) {
            let reason = format!("dead letters go to `{topic}` too");
            let help = "progress is kept in a compacted topic of its own: leave progress.topic out";
            return self.refuse("progress.topic", InvalidValue::new(reason).help(help));
        }
        Some(DeadLettersSection { topic })
    }

    fn retry(&mut self) -> Option<RetrySection> {
        let retry = all!(RetrySection {
            initial: self.duration("retry.initial"),
            max: self.duration("retry.max"),
            give_up_after: self.duration("retry.give_up_after"),
            login_give_up_after: self.duration("retry.login_give_up_after"),
        })?;
        if retry.max < retry.initial {
            let refusal = InvalidValue::new("must not be below `retry.initial`");
            return self.refuse("retry.max", refusal);
        }
        Some(retry)
    }
}
