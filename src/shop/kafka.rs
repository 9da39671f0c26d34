//! Settings of the shop's Kafka clients, checked by librdkafka.
//!
//! Invariant: a secret is accepted only from the file, because any user of the machine can read
//! command lines. No error repeats a value.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use super::error::ShopError;
use postrider_secrets::is_secret_name;

/// librdkafka's names of the setting with its own flag.
const BROKERS: [&str; 2] = ["bootstrap.servers", "metadata.broker.list"];

/// Kafka's brokers, and settings of the client.
#[derive(Clone, Args)]
pub struct KafkaArgs {
    /// Kafka's bootstrap servers
    #[arg(long, env = "KAFKA_BROKERS", value_name = "HOST:PORT,..")]
    brokers: String,
    #[command(flatten)]
    client: KafkaClientArgs,
}

/// Settings of the client, beside the brokers.
#[derive(Clone, Default, Args)]
pub(super) struct KafkaClientArgs {
    /// A setting of librdkafka, such as security.protocol=SASL_SSL; may be repeated
    #[arg(long = "kafka", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// A file of such settings, one per line, # for comments: the place for passwords
    #[arg(long = "kafka-file", env = "KAFKA_FILE", value_name = "PATH")]
    file: Option<PathBuf>,
}

/// No variant contains a value.
#[derive(Debug, thiserror::Error)]
pub enum KafkaSettingError {
    /// `0` is the location.
    #[error("{0} is not NAME=VALUE")]
    Malformed(String),
    #[error("the Kafka setting `{0}` is a secret and must not be on the command line")]
    Exposed(String),
    #[error("the Kafka setting `{0}` is given by --brokers")]
    Brokers(String),
    #[error("the Kafka client has no setting `{0}`")]
    Unknown(String),
    #[error("the Kafka client refuses this value of `{0}`")]
    Value(String),
    #[error("the Kafka setting `{0}` needs a feature that is not in this build")]
    NotBuilt(String),
    #[error("cannot read the file {} of Kafka settings", .0.display())]
    File(PathBuf, #[source] std::io::Error),
}

impl KafkaSettingError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Malformed(_) => Some("such as security.protocol=SASL_SSL".to_owned()),
            Self::Exposed(name) => Some(format!("put `{name}=..` into a file for --kafka-file")),
            Self::NotBuilt(_) => Some("build with `--features kafka-tls`".to_owned()),
            Self::Unknown(_) | Self::Value(_) => {
                Some("librdkafka's CONFIGURATION.md lists them".to_owned())
            }
            Self::Brokers(_) | Self::File(..) => None,
        }
    }
}

impl KafkaArgs {
    pub fn at(brokers: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), client: KafkaClientArgs::default() }
    }

    /// `bootstrap.servers`, then the file's settings, then the flags. librdkafka uses the last of
    /// several duplicates.
    pub(super) fn settings(&self) -> Result<Vec<(String, String)>, ShopError> {
        self.client.settings(&self.brokers)
    }
}

impl KafkaClientArgs {
    pub(super) fn settings(&self, brokers: &str) -> Result<Vec<(String, String)>, ShopError> {
        let mut all = vec![("bootstrap.servers".to_owned(), brokers.to_owned())];
        if let Some(path) = &self.file {
            all.extend(read(path)?);
        }
        for (place, text) in (1..).zip(&self.settings) {
            let (name, value) = pair(text)
                .ok_or_else(|| KafkaSettingError::Malformed(format!("--kafka {place}")))?;
            if is_secret_name(&name) {
                return Err(KafkaSettingError::Exposed(name).into());
            }
            all.push((name, value));
        }
        for (name, value) in all.iter().skip(1) {
            check(name, value)?;
        }
        Ok(all)
    }
}

impl fmt::Debug for KafkaClientArgs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KafkaClientArgs").finish_non_exhaustive()
    }
}

impl fmt::Debug for KafkaArgs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KafkaArgs").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<(String, String)>, KafkaSettingError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| KafkaSettingError::File(path.to_owned(), error))?;
    let is_said = |line: &(usize, &str)| !line.1.is_empty() && !line.1.starts_with('#');
    let lines = (1..).zip(text.lines().map(str::trim)).filter(is_said);
    lines
        .map(|(number, line)| {
            let place = || format!("line {number} of {}", path.display());
            pair(line).ok_or_else(|| KafkaSettingError::Malformed(place()))
        })
        .collect()
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let name = name.trim();
    let is_name = |char: char| char.is_ascii_alphanumeric() || ['.', '_'].contains(&char);
    let is_good = !name.is_empty() && name.chars().all(is_name);
    is_good.then(|| (name.to_owned(), value.trim().to_owned()))
}

/// librdkafka's message is not used, because it repeats the value.
fn check(name: &str, value: &str) -> Result<(), KafkaSettingError> {
    let named = name.to_owned();
    if BROKERS.contains(&name) {
        return Err(KafkaSettingError::Brokers(named));
    }
    match ClientConfig::new().set(name, value).create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err(KafkaSettingError::Unknown(named))
        }
        Err(KafkaError::ClientConfig(_, reason, ..))
            if reason.contains("not available at build time") =>
        {
            Err(KafkaSettingError::NotBuilt(named))
        }
        Err(_) => Err(KafkaSettingError::Value(named)),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn with(settings: &[&str], file: Option<&str>) -> Result<Vec<(String, String)>, ShopError> {
        let mut kafka = KafkaArgs::at("a:1,b:2");
        kafka.client.settings = settings.iter().map(ToString::to_string).collect();
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = file {
            let path = folder.path().join("kafka");
            std::fs::write(&path, text).unwrap();
            kafka.client.file = Some(path);
        }
        kafka.settings()
    }

    #[test]
    fn flags_come_after_the_file_and_both_after_the_brokers() {
        let file = "# how to log in\n\nsasl.mechanism = PLAIN\r\nsasl.password=a=b #c\n";
        let all = with(&["sasl.username=u", "client.rack=r"], Some(file)).unwrap();
        let pairs: Vec<_> =
            all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("bootstrap.servers", "a:1,b:2"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.password", "a=b #c"),
            ("sasl.username", "u"),
            ("client.rack", "r"),
        ];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name_without_its_value() {
        for (flag, file, words) in [
            (Some("sasl.password=hunter2"), None, "`sasl.password` is a secret"),
            (Some("hunter2"), None, "--kafka 1 is not NAME=VALUE"),
            (Some("hunter2!=x"), None, "--kafka 1 is not NAME=VALUE"),
            (None, Some("\nhunter2"), "line 2 of"),
            (None, Some("sasl.pasword=hunter2"), "no setting `sasl.pasword`"),
            (None, Some("socket.timeout.ms=hunter2"), "value of `socket.timeout.ms`"),
            (None, Some("sasl.password=hunter2\0"), "value of `sasl.password`"),
            (None, Some("bootstrap.servers=hunter2"), "given by --brokers"),
        ] {
            let flags: Vec<&str> = flag.into_iter().collect();
            let error = with(&flags, file).unwrap_err();
            let mut told = format!("{error} {error:?} {:?}", error.hint());
            told.extend(error.source().map(ToString::to_string));
            assert!(told.contains(words), "{flag:?} {file:?}: {told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn no_setting_shows_in_a_log() {
        let mut kafka = KafkaArgs::at("a:1");
        kafka.client.settings.push("sasl.password=hunter2".to_owned());
        assert!(!format!("{kafka:?}").contains("hunter2"));
    }
}
