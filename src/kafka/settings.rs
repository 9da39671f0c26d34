//! Builds librdkafka's configuration from a [`KafkaSpec`].
//!
//! Invariant: the user's properties cannot override those on which the guarantees depend (`acks`,
//! idempotence, queue bounds). `Debug` and errors show no secret.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use super::properties::{advice_for_unknown, is_javas, refuse_reserved};
use super::secrets::KafkaSecrets;
use super::traces::Traces;
use super::{DeliveredTap, TopicBook};
use postrider_core::ledger::Budget;
use postrider_core::record::Partitioner;
use postrider_credentials::CredentialsError;
use postrider_secrets::SecretError;
use postrider_secrets::shown;

/// A lost relay's transaction may block readers for this time. Kafka's default; brokers allow 15
/// minutes.
const TRANSACTION_LIMIT: Duration = Duration::from_mins(1);

#[derive(Clone, PartialEq, Eq)]
pub struct KafkaSpec {
    /// `host:port`, at least one.
    pub brokers: Vec<String>,
    pub client_id: String,
    /// `none`, `gzip`, `snappy`, `lz4`, or `zstd` if the build has it.
    pub compression: String,
    /// `murmur2_random` places keys like Java's clients.
    pub partitioner: Partitioner,
    pub linger_ms: u32,
    /// Limits for records sent and not reported stored; at least one record of `message_max_bytes`.
    pub budget: Budget,
    /// Limits for unconfirmed records: equal to `budget`, or [`Budget::in_transactions`].
    pub unconfirmed: Budget,
    /// Bytes with key and headers; `send` refuses larger records.
    pub message_max_bytes: u32,
    pub progress_topic: String,
    /// Minimum time for which a transaction accepts records.
    pub transaction_age: Duration,
    pub properties: BTreeMap<String, String>,
    /// Properties that are read again for each client.
    pub secrets: KafkaSecrets,
    /// Sends records singly and one per key at a time. Slow; only for passing a refused batch.
    pub cautious: bool,
    /// For a topic that refuses larger batches.
    pub batch_bytes: Option<u32>,
    pub topics: TopicBook,
    pub traces: Traces,
    pub tap: DeliveredTap,
}

impl Default for KafkaSpec {
    fn default() -> Self {
        Self {
            brokers: vec!["localhost:9092".into()],
            client_id: "postrider".into(),
            compression: "lz4".into(),
            partitioner: Partitioner::Murmur2Random,
            // Rows arrive in bursts under load. At 1,000 rows/s, 1 ms of linger costs 1.2 ms
            // (median).
            linger_ms: 0,
            budget: Budget::default(),
            unconfirmed: Budget::default(),
            message_max_bytes: 1_000_000,
            progress_topic: "postrider.progress".into(),
            transaction_age: Duration::from_millis(5),
            properties: BTreeMap::new(),
            secrets: KafkaSecrets::default(),
            cautious: false,
            batch_bytes: None,
            topics: TopicBook::default(),
            traces: Traces::default(),
            tap: DeliveredTap::default(),
        }
    }
}

impl fmt::Debug for KafkaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties = self.properties.iter();
        let properties: BTreeMap<&str, _> =
            properties.map(|(key, value)| (key.as_str(), shown(key, value))).collect();
        f.debug_struct("KafkaSpec")
            .field("brokers", &self.brokers)
            .field("client_id", &self.client_id)
            .field("compression", &self.compression)
            .field("partitioner", &self.partitioner)
            .field("linger_ms", &self.linger_ms)
            .field("budget", &self.budget)
            .field("unconfirmed", &self.unconfirmed)
            .field("message_max_bytes", &self.message_max_bytes)
            .field("progress_topic", &self.progress_topic)
            .field("transaction_age", &self.transaction_age)
            .field("properties", &properties)
            .field("secrets", &self.secrets)
            .field("cautious", &self.cautious)
            .field("batch_bytes", &self.batch_bytes)
            .field("topics", &self.topics)
            .field("traces", &self.traces)
            .field("tap", &self.tap)
            .finish()
    }
}

/// Never contains a value that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("no Kafka broker is configured")]
    NoBrokers,
    #[error("property `{key}` cannot be set: {why}")]
    Reserved {
        key: String,
        /// Guarantee that would break.
        why: &'static str,
        instead: Option<&'static str>,
    },
    #[error("property `{key}` is unknown to the Kafka client")]
    Unknown {
        key: String,
        /// Likely replacement.
        advice: Option<String>,
    },
    #[error("`{key}` is refused by the Kafka client: {reason}")]
    Invalid {
        key: String,
        /// The library's text, unless it would show a secret.
        reason: String,
    },
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("there is no token to log in with: {0}")]
    Token(#[from] CredentialsError),
    #[error("progress cannot be stored: {reason}")]
    ProgressTooLarge {
        /// Size and limit.
        reason: String,
    },
    #[error("the Kafka client cannot start: {0}")]
    Client(String),
}

/// SCRAM needs OpenSSL too.
const HAS_TLS: bool = cfg!(any(feature = "tls", feature = "tls-vendored"));

/// A bundled OpenSSL does not know the machine's folder of authorities. `probe` searches the
/// folders of Linux distributions.
const HAS_OWN_OPENSSL: bool = cfg!(feature = "tls-vendored");

/// librdkafka's default is GSSAPI, which these builds lack.
fn mechanism_help(has_tls: bool) -> String {
    let (mechanisms, more) = if has_tls {
        ("SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN", "")
    } else {
        ("PLAIN", ", or build with `--features kafka-tls` for SCRAM-SHA-512 and SCRAM-SHA-256")
    };
    format!(
        "set kafka.properties.\"sasl.mechanism\" to {mechanisms} (unset it is GSSAPI, which Postrider \
         does not have), or kafka.oauth.method for tokens{more}"
    )
}

impl SettingsError {
    /// True if only the login's secret is not available now.
    pub const fn is_of_login(&self) -> bool {
        matches!(self, Self::Secret(_) | Self::Token(_))
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoBrokers => {
                Some("set kafka.brokers = [\"host:9092\"] or POSTRIDER_KAFKA__BROKERS".into())
            }
            Self::Reserved { instead: Some(setting), .. } => Some(format!("use {setting}")),
            Self::Reserved { key, instead: None, .. } => {
                Some(format!("remove `{key}` from [kafka.properties]"))
            }
            Self::Unknown { advice, .. } => advice.clone(),
            Self::Secret(error) => error.hint(),
            Self::Token(error) => error.hint(),
            Self::Invalid { key, .. } if key.starts_with("sasl.oauthbearer.") => {
                Some("the options of kafka.oauth say where tokens come from".into())
            }
            Self::Invalid { reason, .. } if reason.contains("not available at build time") => {
                Some("build with `--features kafka-tls`".into())
            }
            Self::Client(reason) if reason.contains("No provider for SASL mechanism") => {
                Some(mechanism_help(HAS_TLS))
            }
            Self::ProgressTooLarge { .. } => Some(
                "raise kafka.message_max_bytes: progress names every table of source.tables and the \
                 prefixes of messages.prefixes"
                    .into(),
            ),
            Self::Client(_) => {
                Some("check [kafka.properties]: security.protocol, sasl.* and ssl.*".into())
            }
            Self::Invalid { .. } => {
                Some("librdkafka's CONFIGURATION.md lists the values it takes".into())
            }
        }
    }
}

impl KafkaSpec {
    /// `brokers`: `host:port`, comma-separated.
    pub fn of_brokers(brokers: &str) -> Self {
        let brokers = brokers.split(',').map(str::trim).filter(|broker| !broker.is_empty());
        Self { brokers: brokers.map(str::to_owned).collect(), ..Self::default() }
    }

    /// For checks, which run no command and do not log in.
    pub(super) fn as_read(&self) -> Self {
        let tokens = self.secrets.tokens.clone();
        let secrets = KafkaSecrets { tokens, ..KafkaSecrets::default() };
        let mut read = Self { secrets, ..self.clone() };
        if self.secrets.password_command.is_some() {
            // The library requires one if there is a user name.
            read.properties
                .insert("sasl.password".to_owned(), "as the command prints it".to_owned());
        }
        read
    }

    pub fn validate(&self) -> Result<(), SettingsError> {
        self.as_read().producer_config().map(drop)
    }

    // Upholds G1 (acks), G2 (idempotence, gaplessness), G3 (queue bounds), G4 (no expiry).
    pub(super) fn producer_config(&self) -> Result<ClientConfig, SettingsError> {
        let room = self.budget.bytes.max(u64::from(self.message_max_bytes));
        let queue_kbytes = room.div_ceil(1024).clamp(1, i32::MAX as u64);
        let mut config = self.common_config()?;
        set(&mut config, "kafka.compression", "compression.type", &self.compression)?;
        set(&mut config, "kafka.partitioner", "partitioner", self.partitioner.as_str())?;
        set(&mut config, "kafka.linger", "linger.ms", &self.linger_ms.to_string())?;
        let max_bytes = self.message_max_bytes.to_string();
        set(&mut config, "kafka.message_max_bytes", "message.max.bytes", &max_bytes)?;
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("max.in.flight", "5")
            .set("message.timeout.ms", "0") // For ever: an outage stalls, it does not drop.
            .set("queue.buffering.max.messages", self.budget.records.max(1).to_string())
            .set("queue.buffering.max.kbytes", queue_kbytes.to_string())
            // A refused batch stops the producer before anything later is stored. In cautious mode
            // nothing later of that key is in flight, and a refusal must not stop the producer.
            .set("enable.gapless.guarantee", if self.cautious { "false" } else { "true" });
        // The feature context reports the brokers' capabilities, which `offered_requests` parses.
        config.set("debug", format!("{},feature", config.get("debug").unwrap_or("broker")));
        if let Some(bytes) = self.batch_bytes {
            config.set("batch.size", bytes.to_string());
        }
        if self.cautious {
            config.set("batch.num.messages", "1").set("linger.ms", "0");
        }
        Ok(config)
    }

    /// A record that is not stored in time fails with its transaction, and a later session sends it
    /// again. Upholds G6.
    pub(super) fn transactional_config(&self, id: &str) -> Result<ClientConfig, SettingsError> {
        let mut config = self.producer_config()?;
        config.remove("message.timeout.ms");
        config
            .set("transactional.id", id)
            .set("transaction.timeout.ms", TRANSACTION_LIMIT.as_millis().to_string())
            // A gap is aborted with its transaction.
            .set("enable.gapless.guarantee", "false");
        Ok(config)
    }

    pub(super) fn common_config(&self) -> Result<ClientConfig, SettingsError> {
        if self.brokers.iter().all(|broker| broker.trim().is_empty()) {
            return Err(SettingsError::NoBrokers);
        }
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.brokers.join(","))
            .set("client.id", &self.client_id)
            .set("log.connection.close", "false")
            // Otherwise a peer behind a silent firewall looks alive forever.
            .set("socket.keepalive.enable", "true")
            .set("socket.nagle.disable", "true")
            // Default 30 s. Brokers create a topic within a second.
            .set("topic.metadata.propagation.max.ms", "5000")
            // The library waits half of this between first connections (default 100).
            .set("reconnect.backoff.ms", "20")
            // Limit for reconnects after an outage (default 10 s).
            .set("reconnect.backoff.max.ms", "2000");
        let mut properties = self.properties.clone();
        properties.extend(self.secrets.now()?);
        if self.secrets.tokens.is_some() {
            config.set("security.protocol", "SASL_SSL");
            properties.insert("sasl.mechanism".to_owned(), "OAUTHBEARER".to_owned());
        }
        for (key, value) in &properties {
            refuse_reserved(key)?;
            set(&mut config, key, key, value)?;
        }
        // OpenSSL reads the variable itself.
        let is_named = std::env::var_os("SSL_CERT_FILE").is_some();
        if HAS_OWN_OPENSSL && !is_named && trusts_default(&config) {
            config.set("ssl.ca.location", "probe");
        }
        // The broker context reports connection states, which `brokers` parses.
        let debug = match self.properties.get("debug") {
            Some(wanted) if !wanted.is_empty() => format!("broker,{wanted}"),
            _ => "broker".into(),
        };
        config.set("debug", debug).set_log_level(RDKafkaLogLevel::Debug);
        Ok(config)
    }
}

fn trusts_default(config: &ClientConfig) -> bool {
    let protocol = config.get("security.protocol").unwrap_or_default();
    protocol.to_ascii_lowercase().ends_with("ssl")
        && !["ssl.ca.location", "ssl.ca.pem"].iter().any(|key| config.get(key).is_some())
}

fn set(config: &mut ClientConfig, name: &str, key: &str, value: &str) -> Result<(), SettingsError> {
    if is_javas(key) {
        return Err(SettingsError::Unknown { key: name.into(), advice: advice_for_unknown(key) });
    }
    let mut probe = ClientConfig::new();
    probe.set(key, value);
    match probe.create_native_config() {
        Ok(_) => {
            config.set(key, value);
            Ok(())
        }
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err(SettingsError::Unknown { key: name.into(), advice: advice_for_unknown(key) })
        }
        // The library's reason repeats the value.
        Err(KafkaError::ClientConfig(..)) if shown(key, value) != value => {
            Err(SettingsError::Invalid { key: name.into(), reason: "its value is refused".into() })
        }
        Err(KafkaError::ClientConfig(_, reason, ..)) => {
            Err(SettingsError::Invalid { key: name.into(), reason })
        }
        Err(_) => Err(SettingsError::Invalid {
            key: name.into(),
            reason: "a key or value contains a zero byte".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &str, value: &str) -> KafkaSpec {
        let mut spec = KafkaSpec::default();
        spec.properties.insert(key.into(), value.into());
        spec
    }

    #[test]
    fn guarantees_are_set() {
        let config = KafkaSpec::default().producer_config().unwrap();
        for (key, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("message.timeout.ms", "0"),
            ("partitioner", "murmur2_random"),
            ("compression.type", "lz4"),
            ("queue.buffering.max.messages", "50000"),
            ("queue.buffering.max.kbytes", "32768"),
        ] {
            assert_eq!(config.get(key), Some(value), "{key}");
        }
        assert_eq!(config.get("batch.num.messages"), None);
    }

    #[test]
    fn cautious_sends_singly_and_survives_a_refusal() {
        let spec = KafkaSpec { cautious: true, ..with("batch.num.messages", "500") };
        let config = spec.producer_config().unwrap();
        assert_eq!(config.get("batch.num.messages"), Some("1"));
        assert_eq!(config.get("enable.gapless.guarantee"), Some("false"));
    }

    #[test]
    fn the_largest_record_always_fits_the_queue() {
        let spec =
            KafkaSpec { budget: Budget { bytes: 1, ..Budget::default() }, ..KafkaSpec::default() };
        let config = spec.producer_config().unwrap();
        assert_eq!(config.get("queue.buffering.max.kbytes"), Some("977"));
    }

    #[test]
    fn reserved_keys_are_refused_with_a_way_out() {
        let error = with("linger.ms", "3").validate().unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("use kafka.linger"));
        let error = with("acks", "1").validate().unwrap_err();
        assert!(error.to_string().contains("`acks` cannot be set"), "{error}");
        assert_eq!(error.hint().as_deref(), Some("remove `acks` from [kafka.properties]"));
    }

    #[test]
    fn unknown_and_invalid_values_are_told_apart() {
        let error = with("socket.timeout.sm", "1").validate().unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean `socket.timeout.ms`?"));
        let error = with("socket.timeout.ms", "soon").validate().unwrap_err();
        assert!(matches!(&error, SettingsError::Invalid { key, .. } if key == "socket.timeout.ms"));
        let spec = KafkaSpec { compression: "brotli".into(), ..KafkaSpec::default() };
        let error = spec.validate().unwrap_err();
        assert!(matches!(&error, SettingsError::Invalid { key, .. } if key == "kafka.compression"));
        let spec = KafkaSpec { brokers: vec![" ".into()], ..KafkaSpec::default() };
        assert_eq!(spec.validate(), Err(SettingsError::NoBrokers));
    }

    #[test]
    fn a_login_without_a_mechanism_gets_those_that_the_build_has() {
        let mut spec = with("security.protocol", "sasl_plaintext");
        let config = spec.producer_config().unwrap();
        let reason = match config.create::<rdkafka::producer::BaseProducer>() {
            Err(KafkaError::ClientCreation(reason)) => reason,
            other => panic!("{:?}", other.err()),
        };
        let hint = SettingsError::Client(reason.clone()).hint().unwrap();
        assert!(hint.contains("kafka.properties.\"sasl.mechanism\""), "{reason}: {hint}");
        assert_eq!(hint.contains("--features"), !HAS_TLS, "{hint}");
        assert!(mechanism_help(true).contains("to SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"));
        assert!(mechanism_help(false).contains("to PLAIN"));
        spec.properties.insert("sasl.mechanism".into(), "PLAIN".into());
        spec.validate().unwrap();
    }

    #[cfg(feature = "tls-vendored")]
    #[test]
    fn brokers_are_known_by_the_authorities_of_the_system_unless_others_are_named() {
        let trusts = |spec: &KafkaSpec| {
            let mut config = spec.common_config().unwrap();
            if config.get("ssl.ca.location") == Some("probe") {
                config.remove("ssl.ca.location");
            }
            trusts_default(&config)
        };
        assert!(!trusts(&KafkaSpec::default()));
        let mut spec = with("security.protocol", "SASL_SSL");
        assert!(trusts(&spec));
        spec.validate().unwrap();
        spec.properties.insert("ssl.ca.location".into(), "/etc/kafka/ca.pem".into());
        assert!(!trusts(&spec));
        with("ssl.ca.location", "probe").validate().unwrap();
    }

    #[test]
    fn secrets_are_never_shown() {
        let spec = with("sasl.password", "hunter2");
        assert!(!format!("{spec:?}").contains("hunter2"));
        let error = with("ssl.key.password", "hunter2\0").validate().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
