//! Configuration: reads it from all sources, validates it, and reports every mistake.
//!
//! Input: a TOML file, environment variables, `--set`, flags ([`Inputs`]). Output: [`Loaded`], the
//! validated [`Config`] with the source of each value, one per `[[stream]]`; or a [`ConfigError`]
//! with every mistake. Invariant: nothing is contacted before the configuration is valid; no secret
//! is in any `Debug`, error or listing.
//!
//! Precedence: flag, `--set`, environment, the stream's part of the file, the rest of it, libpq's
//! `PG*`, default.
//!
//! ```
//! use std::time::Duration;
//!
//! use postrider_config::{FileChoice, Inputs, load};
//!
//! let set = ["kafka.brokers=kafka:9092", "source.url=postgres://app@db/shop", "retry.max=1m"];
//! let inputs = Inputs {
//!     file: FileChoice::Absent,
//!     set: set.map(str::to_owned).to_vec(),
//!     ..Inputs::default()
//! };
//! let config = load(&inputs, &|_| Vec::new())?.config;
//! assert_eq!(config.retry.max, Duration::from_secs(60));
//! # Ok::<(), postrider_config::ConfigError>(())
//! ```

mod assemble;
mod checks;
mod control;
mod effective;
mod environment;
mod file;
mod kafka;
mod layer;
mod mistake;
mod model;
mod oauth;
mod options;
mod poll;
mod rds_login;
mod reader;
mod reference;
mod reload;
mod rule_options;
mod rules;
mod secret_sources;
mod specs;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod traces;
pub mod typo;
mod values;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use postrider_postgres::libpq::ConnectInfoWarning;
use postrider_secrets::mask;

use layer::{Layer, Raw, Setting, SettingOrigin as LayerOrigin, Value};
use streams::StreamTable;

pub use control::ControlSection;
pub use effective::{Effective, Shown};
pub use layer::{SettingOrigin, toml_text};
pub use mistake::{ConfigError, Mistake, MistakeKind, SourceLine, SourcePosition, to_read};
pub use model::{
    Config, DeadLettersSection, HttpSection, KafkaSection, LogSection, MessagesSection,
    OutboxSection, ProgressSection, RetrySection, RouteSection, ShutdownSection, SourceSection,
    TracesSection,
};
pub use oauth::OAuthSection;
pub use options::{OptionKind, OptionSpec, PROPERTIES, env_name};
pub use poll::{BUCKETS, PollMark, PollSection};
pub use reference::{example_toml, reference_markdown, wrap};
pub use reload::{LEVEL, is_taken_over, taken_over};
pub use rule_options::RULE_OPTIONS;
pub use streams::is_of_the_process;
pub use table::OPTIONS;
pub use values::{
    Compression, ConnectionString, Create, Delivery, LogFormat, LogLevel, MissingTopicWord,
    OAuthMethod, Property, Rejected, SourceMode,
};

pub const DEFAULT_FILES: [&str; 2] = ["postrider.toml", "/etc/postrider/postrider.toml"];

#[derive(Clone, PartialEq, Eq, Default)]
pub enum FileChoice {
    /// The first of [`DEFAULT_FILES`] that exists, or none.
    #[default]
    Search,
    /// This file, which must exist.
    At(PathBuf),
    /// Generated TOML, which may hold secrets.
    Text {
        /// Name of the text in mistakes.
        name: PathBuf,
        text: String,
    },
    Absent,
}

#[derive(Clone)]
pub struct FlagValue {
    pub key: &'static str,
    pub value: String,
    pub flag: &'static str,
}

#[derive(Clone, Default)]
pub struct Inputs {
    pub file: FileChoice,
    /// The `a.b=v` of each `--set`, in order.
    pub set: Vec<String>,
    pub flags: Vec<FlagValue>,
    pub variables: Vec<(String, String)>,
    pub only: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Loaded {
    pub stream: Option<String>,
    pub config: Config,
    /// Every option in the order of the table, then librdkafka's properties.
    pub effective: Vec<Effective>,
    pub file: Option<PathBuf>,
    pub warnings: Vec<ConnectInfoWarning>,
}

/// Objection of the Kafka client, which alone knows its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// The option, including `kafka.properties.NAME`.
    pub key: String,
    /// A fragment; never holds a secret.
    pub reason: String,
    pub help: Option<String>,
}

pub type Review<'a> = &'a dyn Fn(&Config) -> Vec<Objection>;

/// Loads the [chosen](Inputs::only) stream, and applies `review`.
pub fn load(inputs: &Inputs, review: Review<'_>) -> Result<Loaded, ConfigError> {
    let mut streams = load_streams(inputs, review)?;
    match (streams.pop(), streams.is_empty()) {
        (Some(one), true) => Ok(one),
        (last, _) => {
            let names = streams.into_iter().chain(last).filter_map(|loaded| loaded.stream);
            Err(ConfigError::SeveralStreams { names: names.collect() })
        }
    }
}

/// Loads every stream; a file without `[[stream]]` is one.
pub fn load_streams(inputs: &Inputs, review: Review<'_>) -> Result<Vec<Loaded>, ConfigError> {
    let path = match &inputs.file {
        FileChoice::At(path) | FileChoice::Text { name: path, .. } => Some(path.clone()),
        FileChoice::Absent => None,
        FileChoice::Search => DEFAULT_FILES.iter().map(PathBuf::from).find(|path| path.exists()),
    };
    let text = match (&inputs.file, &path) {
        (FileChoice::Text { text, .. }, _) => Some(text.clone()),
        (_, Some(path)) => Some(read_text(path)?),
        (_, None) => None,
    };
    let (from_file, streams) = match (&path, &text) {
        (Some(path), Some(text)) => file::read(path, text),
        _ => (Layer::default(), Vec::new()),
    };
    let mut top = defaults().clone();
    top.extend(from_file.settings);
    let mut mistakes = from_file.mistakes;
    let mut above = BTreeMap::new();
    let layers = [
        environment::environment(&inputs.variables),
        environment::set(&inputs.set),
        environment::flags(&inputs.flags),
    ];
    for layer in layers {
        above.extend(layer.settings);
        mistakes.extend(layer.mistakes);
    }
    mistakes.extend(streams::mistakes(&streams));
    let chosen = streams::choose(&streams, inputs.only.as_deref());
    mistakes.extend(chosen.iter().flat_map(|chosen| streams::overridden(chosen, &above)));
    let settings: Vec<_> = match &chosen {
        Ok(chosen) if streams.is_empty() || chosen.is_empty() => {
            top.extend(above);
            vec![(None, top)]
        }
        Ok(chosen) => {
            let merged = |stream: &&StreamTable| stream.over(&top, &above);
            chosen.iter().map(|one| (Some(one.name.clone()), merged(one))).collect()
        }
        Err(_) => Vec::new(),
    };
    let mut found = Vec::new();
    for (stream, settings) in &settings {
        match one(inputs, settings, review) {
            Ok((config, warnings)) => {
                let effective = effective::list(&config, settings);
                let (stream, file) = (stream.clone(), path.clone());
                found.push(Loaded { stream, config, effective, file, warnings });
            }
            // A mistake at the top level is in every stream, but reported once.
            Err(more) => {
                mistakes.extend(
                    more.into_iter().filter(|one| !mistakes.contains(one)).collect::<Vec<_>>(),
                );
            }
        }
    }
    if mistakes.is_empty() {
        mistakes = streams::collisions(&found, &settings);
    }
    if mistakes.is_empty() {
        return chosen.map(|_| found);
    }
    mistakes.sort_by_key(Mistake::line);
    let secrets = secrets_of(settings.iter().map(|(_, settings)| settings));
    let mistakes = mistakes.into_iter().map(|mistake| mistake.masked(&secrets)).collect();
    Err(ConfigError::Mistakes(mistakes))
}

type Settings = BTreeMap<String, Setting>;

fn one(
    inputs: &Inputs,
    settings: &Settings,
    review: Review<'_>,
) -> Result<(Config, Vec<ConnectInfoWarning>), Vec<Mistake>> {
    let variable = |name: &str| {
        let found = inputs.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let (config, warnings) = assemble::assemble(settings, &variable)?;
    let objections = review(&config).into_iter();
    let mistakes: Vec<_> = objections.map(|objection| to_mistake(objection, settings)).collect();
    if mistakes.is_empty() { Ok((config, warnings)) } else { Err(mistakes) }
}

/// Parts of secrets that no longer look secret.
fn secrets_of<'a>(settings: impl Iterator<Item = &'a Settings>) -> Vec<String> {
    let parts = settings.flatten().flat_map(|(key, setting)| match &setting.value {
        Value::Text(text) => mask::secret_parts(key, text),
        Value::List(items) => {
            items.iter().flat_map(|item| mask::secret_parts("", &item.text)).collect()
        }
        Value::Switch(_) | Value::Duration(_) | Value::Size(_) | Value::Count(_) => Vec::new(),
    });
    mask::for_scrubbing(parts.collect())
}

const SASL: [&str; 3] = ["sasl.mechanism", "sasl.mechanisms", "security.protocol"];

fn to_mistake(objection: Objection, settings: &Settings) -> Mistake {
    let Objection { key, reason, help } = objection;
    // A missing option has no place; the option that requires it has.
    let asks = SASL.iter().find_map(|name| settings.get(&format!("{PROPERTIES}.{name}")));
    let asks = asks.filter(|_| key == PROPERTIES || key.starts_with("kafka.properties.sasl."));
    let place = settings.get(&key).or(asks).map_or(SourcePosition::Nowhere, Setting::place);
    let kind = match options::property(&key) {
        Some(name) => MistakeKind::RefusedProperty { key: name.to_owned(), reason },
        None => MistakeKind::Invalid { key, reason },
    };
    Mistake { kind, place, help }
}

/// A larger file would exhaust the memory of a running relay.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

fn read_text(path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .and_then(|_| {
            let is_small = text.len() as u64 <= FILE_BYTES_MAX;
            let kind = io::ErrorKind::FileTooLarge;
            is_small.then_some(()).ok_or_else(|| io::Error::new(kind, "it has more than 1 MiB"))
        });
    match read {
        Ok(()) => Ok(text),
        Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
    }
}

fn defaults() -> &'static BTreeMap<String, Setting> {
    static DEFAULTS: LazyLock<BTreeMap<String, Setting>> = LazyLock::new(|| {
        let mut layer = Layer::default();
        for option in OPTIONS {
            // Defaults are TOML, so that they can be shown as typed.
            let raw = match toml::de::DeValue::parse(option.default) {
                Ok(value) => file::raw(value.get_ref(), &|_| None),
                Err(_) => Raw::Other("not TOML"),
            };
            layer.add(option.key, raw, LayerOrigin::Default, None);
        }
        assert!(layer.mistakes.is_empty(), "a default is refused: {:?}", layer.mistakes);
        layer.settings
    });
    &DEFAULTS
}
