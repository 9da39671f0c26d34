//! Several streams in one file: the `[[stream]]` tables, whose defaults are the options at the top
//! level.
//!
//! Invariant: no two accepted streams read the same slot. So none share a transactional id or
//! progress, which derive from server, database and slot.

use std::collections::{BTreeMap, BTreeSet};

use super::layer::{Layer, Setting};
use super::mistake::{ConfigError, Mistake, MistakeKind, SourcePosition, Span};
use super::rule_options::is_rules;
use super::values::{Delivery, SourceMode};
use super::{Config, Loaded, Settings};
use postrider_postgres::libpq::{Endpoint, HostAddress};

pub(super) const STREAM: &str = "stream";
pub(super) const NAME: &str = "name";

/// Bytes; the name is a label of each metric and part of each log line.
const NAME_BYTES_MAX: usize = 63;

/// The process has one HTTP server, one log and one exporter of traces.
const OF_THE_PROCESS: [&str; 3] = ["http.", "log.", "traces."];

pub fn is_of_the_process(key: &str) -> bool {
    OF_THE_PROCESS.iter().any(|section| key.starts_with(section))
}

#[derive(Debug, Clone)]
pub(super) struct StreamTable {
    pub(super) name: String,
    pub(super) place: Span,
    pub(super) layer: Layer,
}

impl StreamTable {
    /// Settings of the stream, above the top level, below environment and flags.
    pub(super) fn over(&self, top: &Settings, above: &Settings) -> Settings {
        let own = &self.layer.settings;
        // Rules are tried in order, so a stream's own rules replace all rules of the top level.
        let has_rules = own.keys().any(|key| is_rules(key));
        let kept = top.iter().filter(|(key, _)| !(has_rules && is_rules(key)));
        let all = kept.chain(own).chain(above);
        all.map(|(key, setting)| (key.clone(), setting.clone())).collect()
    }
}

/// If these were equal for all streams, each row would be sent once per stream.
const OF_EACH: [&str; 4] = ["source.url", "source.slot", "source.publication", "source.tables"];

/// Environment and `--set` may not override such options of streams. A flag may, for a user who
/// runs one stream.
pub(super) fn overridden(chosen: &[&StreamTable], above: &Settings) -> Vec<Mistake> {
    let is_flag = |setting: &Setting| match setting.place() {
        SourcePosition::Named(name) => name.starts_with("--"),
        SourcePosition::File(_) | SourcePosition::Nowhere => false,
    };
    let mut all = Vec::new();
    for key in OF_EACH {
        let Some(setting) = above.get(key) else { continue };
        let own = |stream: &&&StreamTable| stream.layer.settings.contains_key(key);
        let Some(stream) = chosen.iter().find(own) else { continue };
        if is_flag(setting) && chosen.len() == 1 {
            continue;
        }
        let reason = format!(
            "overrides the option of the stream `{}`, and would be the same for every stream",
            stream.name
        );
        let kind = MistakeKind::Invalid { key: key.to_owned(), reason };
        let help = Some(
            "leave it to the file: a default for all may stand above the first [[stream]]"
                .to_owned(),
        );
        all.push(Mistake { kind, place: setting.place(), help });
    }
    all
}

/// Valid as a label, a part of a URL and a word of a command.
pub(super) fn check_name(name: Option<&str>) -> Result<String, String> {
    let is_plain = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
    };
    match name {
        Some(name) if is_plain(name) => Ok(name.to_owned()),
        Some(_) => Err(format!("is 1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` and `.`")),
        None => Err("each stream has a name".to_owned()),
    }
}

pub(super) fn wrong_name(reason: String, place: &Span) -> Mistake {
    let kind = MistakeKind::Invalid { key: format!("{STREAM}.{NAME}"), reason };
    let help = Some("for example: name = \"orders\"".to_owned());
    Mistake { kind, place: SourcePosition::File(place.excerpt()), help }
}

pub(super) fn mistakes(streams: &[StreamTable]) -> Vec<Mistake> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for stream in streams {
        all.extend(stream.layer.mistakes.iter().cloned());
        for (key, setting) in &stream.layer.settings {
            if is_of_the_process(key) {
                let reason =
                    format!("belongs to the whole process, not to the stream `{}`", stream.name);
                let kind = MistakeKind::Invalid { key: key.clone(), reason };
                let help = Some("set it above the first [[stream]]".to_owned());
                all.push(Mistake { kind, place: setting.place(), help });
            }
        }
        if !seen.insert(&stream.name) {
            let reason = format!("two streams have the name `{}`", stream.name);
            let kind = MistakeKind::Invalid { key: format!("{STREAM}.{NAME}"), reason };
            let place = SourcePosition::File(stream.place.excerpt());
            all.push(Mistake { kind, place, help: Some("rename one of them".to_owned()) });
        }
    }
    all
}

pub(super) fn choose<'a>(
    streams: &'a [StreamTable],
    only: Option<&str>,
) -> Result<Vec<&'a StreamTable>, ConfigError> {
    let Some(only) = only else { return Ok(streams.iter().collect()) };
    let found = streams.iter().find(|stream| stream.name == only);
    found.map(|stream| vec![stream]).ok_or_else(|| {
        let names = streams.iter().map(|stream| stream.name.clone()).collect();
        ConfigError::UnknownStream { name: only.to_owned(), names }
    })
}

pub(super) fn collisions(
    streams: &[Loaded],
    settings: &[(Option<String>, Settings)],
) -> Vec<Mistake> {
    let mut all = Vec::new();
    for (number, (other, (_, settings))) in streams.iter().zip(settings).enumerate() {
        for one in streams.iter().take(number) {
            let names = [one, other].map(|it| it.stream.as_deref().unwrap_or_default());
            let clash = clash(&one.config, &other.config);
            all.extend(clash.map(|clash| clash.mistake(names, settings)));
        }
    }
    all
}

struct Clash {
    key: &'static str,
    what: String,
    help: &'static str,
}

impl Clash {
    fn mistake(self, [one, other]: [&str; 2], settings: &BTreeMap<String, Setting>) -> Mistake {
        let Self { key, what, help } = self;
        let reason = format!("the streams `{one}` and `{other}` {what}");
        let place = settings.get(key).map_or(SourcePosition::Nowhere, Setting::place);
        let kind = MistakeKind::Invalid { key: key.to_owned(), reason };
        Mistake { kind, place, help: Some(help.to_owned()) }
    }
}

/// Address of a server, with one name for this machine.
fn server(endpoint: &Endpoint) -> String {
    match &endpoint.address {
        HostAddress::Tcp { host, .. } if ["127.0.0.1", "::1"].contains(&host.as_str()) => {
            format!("localhost:{}", endpoint.port)
        }
        _ => endpoint.to_string(),
    }
}

fn clash(one: &Config, other: &Config) -> Option<Clash> {
    let servers = |config: &Config| -> BTreeSet<String> {
        config.source.connect.endpoints.iter().map(server).collect()
    };
    let (source, others) = (&one.source, &other.source);
    let shared = servers(one).intersection(&servers(other)).next().cloned();
    let both = |mode| source.mode == mode && others.mode == mode;
    if let Some(server) = shared {
        if both(SourceMode::Stream) && source.slot == others.slot {
            return Some(Clash {
                key: "source.slot",
                what: format!("both read the slot `{}` of {server}", source.slot),
                help: "give each stream a slot of its own: the name of a slot belongs to the whole server, \
                       not to one database",
            });
        }
        let is_twice = source.tables.iter().find(|table| others.tables.contains(table));
        let same_database = source.connect.database == others.connect.database;
        if let Some(table) = is_twice.filter(|_| same_database && both(SourceMode::Poll)) {
            return Some(Clash {
                key: "source.tables",
                what: format!("both poll {table} in {}", source.connect.database),
                help: "leave the table out of one of them",
            });
        }
    }
    let brokers: BTreeSet<&String> = one.kafka.brokers.iter().collect();
    let same_brokers = other.kafka.brokers.iter().any(|broker| brokers.contains(broker));
    let has_progress = |config: &Config| {
        config.kafka.delivery == Delivery::ExactlyOnce || config.progress.at_least_once
    };
    if same_brokers && has_progress(one) && has_progress(other) {
        let (topic, others) = (&one.progress.topic, &other.progress.topic);
        if topic == others {
            return Some(Clash {
                key: "progress.topic",
                what: format!("both keep their progress in `{topic}`"),
                help: "give each stream a slot name of its own, which names the topic: a transaction that one leaves \
                       open keeps the other from reading where it was, and streams of servers that are copies of one \
                       another would have one transactional id",
            });
        }
    }
    let keeps = |config: &Config, topic: &str| config.progress.topic == topic;
    let mixed = keeps(one, &other.dead_letters.topic) || keeps(other, &one.dead_letters.topic);
    (same_brokers && mixed).then(|| Clash {
        key: "dead_letters.topic",
        what: "have one topic for the dead letters of one and the progress of the other".to_owned(),
        help: "progress is kept in a compacted topic of its own: leave progress.topic out",
    })
}
