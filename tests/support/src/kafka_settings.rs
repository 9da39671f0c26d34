//! What a test asks of a Kafka cluster, and the `server.properties` that say so.

use std::fmt::Write as _;
use std::path::Path;

use super::token_provider::AUDIENCE;

/// Any valid cluster id; all brokers of a cluster share it.
pub(crate) const CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";

/// The user whom the access lists allow everything, and the password of every user.
pub const ALLOWED_USER: &str = "courier";
/// A user who may log in and do nothing else.
pub const DENIED_USER: &str = "stranger";
/// One who may do nothing else but what a test of reading settings allows.
pub const READING_USER: &str = "auditor";
/// How users log in on the encrypted listener.
pub(crate) const SCRAM: &str = "SCRAM-SHA-512";
/// In a broker's folder: its key, and its certificate.
pub const KEYSTORE: &str = "keystore.pem";
/// The password of all.
pub const PASSWORD: &str = "open-sesame";

/// A Kafka cluster's properties. The default is one broker that creates topics by itself.
#[derive(Debug, Clone)]
pub struct Options {
    /// Brokers, each also a controller: 1 or 3.
    pub brokers: usize,
    /// Whether a topic comes into being when it is first asked for.
    pub auto_create: bool,
    /// Adds a `SASL_PLAINTEXT` listener with PLAIN logins and access lists.
    pub sasl: bool,
    /// Has logins by token on the `SASL_PLAINTEXT` listener in place of PLAIN: the URL of the keys they are checked by.
    pub token_keys: Option<String>,
    /// Adds a `SASL_SSL` listener with SCRAM logins and this certificate and key (PEM).
    pub tls: Option<(String, String)>,
    /// Adds a listener that advertises these ports, one for each broker: what stands between.
    pub proxied: Vec<u16>,
    /// Run as in earnest, at the cost of a slow start and more memory.
    pub measured: bool,
    /// Further broker settings; they win. `{broker}` stands for the broker's number, from 1.
    pub settings: Vec<(&'static str, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            brokers: 1,
            auto_create: true,
            sasl: false,
            token_keys: None,
            tls: None,
            proxied: Vec::new(),
            measured: false,
            settings: Vec::new(),
        }
    }
}

/// The loopback ports of one broker.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub plain: u16,
    pub controller: u16,
    pub sasl: u16,
    pub tls: u16,
    pub proxied: u16,
}

impl Options {
    /// `server.properties` of broker `index` (from 0; its node id is one more).
    pub fn properties(&self, index: usize, ports: &[Ports], folder: &Path) -> String {
        let own = ports[index];
        let replicas = self.brokers.to_string();
        let in_sync = if self.brokers > 1 { "2" } else { "1" };
        let quorum: Vec<String> = (1..)
            .zip(ports)
            .map(|(id, ports)| format!("{id}@127.0.0.1:{}", ports.controller))
            .collect();
        let mut advertised = format!("PLAINTEXT://127.0.0.1:{}", own.plain);
        if self.sasl {
            let _ = write!(advertised, ",SASL_PLAINTEXT://127.0.0.1:{}", own.sasl);
        }
        if self.tls.is_some() {
            let _ = write!(advertised, ",SASL_SSL://localhost:{}", own.tls);
        }
        let mut text = String::new();
        let mut set = |name: &str, value: &str| {
            let _ = writeln!(text, "{name}={value}");
        };
        set("process.roles", "broker,controller");
        set("node.id", &(index + 1).to_string());
        set("controller.quorum.voters", &quorum.join(","));
        set("controller.listener.names", "CONTROLLER");
        set(
            "listener.security.protocol.map",
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
             SASL_SSL:SASL_SSL,PROXIED:PLAINTEXT",
        );
        let mut listeners = format!("{advertised},CONTROLLER://127.0.0.1:{}", own.controller);
        if let Some(port) = self.proxied.get(index) {
            let _ = write!(listeners, ",PROXIED://127.0.0.1:{}", own.proxied);
            let _ = write!(advertised, ",PROXIED://127.0.0.1:{port}");
        }
        set("listeners", &listeners);
        set("advertised.listeners", &advertised);
        set("log.dirs", &folder.join("data").to_string_lossy());
        set("auto.create.topics.enable", &self.auto_create.to_string());
        set("num.partitions", "3");
        // Retention is Kafka's own, looked after every second instead of every five minutes: what
        // is stamped with a time long ago is gone before a test ends, as it would be elsewhere.
        set("log.retention.check.interval.ms", "1000");
        set("log.initial.task.delay.ms", "1000");
        // Kafka 4 does so by default; from 3.6 to 3.9 no time is too far ahead, and before that none can be.
        set("log.message.timestamp.after.max.ms", "3600000");
        set("default.replication.factor", &replicas);
        set("min.insync.replicas", in_sync);
        set("offsets.topic.replication.factor", &replicas);
        set("transaction.state.log.replication.factor", &replicas);
        set("transaction.state.log.min.isr", in_sync);
        // Small and quick, for two cores and a heap of 256 MiB.
        set("offsets.topic.num.partitions", "3");
        set("transaction.state.log.num.partitions", "3");
        set("share.coordinator.state.topic.replication.factor", &replicas);
        set("share.coordinator.state.topic.min.isr", in_sync);
        set("num.network.threads", "2");
        set("num.io.threads", "3");
        set("group.initial.rebalance.delay.ms", "0");
        set("log.cleaner.dedupe.buffer.size", "4194304");
        if self.sasl {
            self.access(&mut set);
        }
        if self.tls.is_some() {
            encryption(&mut set, &folder.join(KEYSTORE));
        }
        for (name, value) in &self.settings {
            set(name, &value.replace("{broker}", &(index + 1).to_string()));
        }
        text
    }

    /// Logins on the SASL listener, and access lists. Whoever comes without a login is the harness.
    fn access(&self, set: &mut impl FnMut(&str, &str)) {
        debug_assert!(self.sasl);
        if let Some(keys) = &self.token_keys {
            tokens(set, keys);
        } else {
            set("sasl.enabled.mechanisms", "PLAIN");
            set(PLAIN_LOGINS, &plain_logins(PASSWORD));
        }
        set("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer");
        set("super.users", &format!("User:ANONYMOUS;User:{ALLOWED_USER}"));
    }
}

/// Kafka's own validator of tokens; a connection lives as long as the token that it logged in with.
fn tokens(set: &mut impl FnMut(&str, &str), keys: &str) {
    const PACKAGE: &str = "org.apache.kafka.common.security.oauthbearer";
    set("sasl.enabled.mechanisms", "OAUTHBEARER");
    set("connections.max.reauth.ms", "3600000");
    let mut on = |name: &str, value: &str| {
        set(&format!("listener.name.sasl_plaintext.oauthbearer.sasl.{name}"), value);
    };
    on("jaas.config", &format!("{PACKAGE}.OAuthBearerLoginModule required;"));
    on("server.callback.handler.class", &format!("{PACKAGE}.OAuthBearerValidatorCallbackHandler"));
    on("oauthbearer.jwks.endpoint.url", keys);
    on("oauthbearer.expected.audience", AUDIENCE);
}

/// Where the accounts of the SASL listener are.
pub const PLAIN_LOGINS: &str = "listener.name.sasl_plaintext.plain.sasl.jaas.config";

/// These accounts, where the one that may do everything has this password.
pub fn plain_logins(password: &str) -> String {
    format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required \
         user_{ALLOWED_USER}=\"{password}\" user_{DENIED_USER}=\"{PASSWORD}\" \
         user_{READING_USER}=\"{PASSWORD}\";"
    )
}

/// The listener for those who trust the certificate's authority and log in by SCRAM.
fn encryption(set: &mut impl FnMut(&str, &str), keystore: &Path) {
    const LISTENER: &str = "listener.name.sasl_ssl";
    let mut on = |name: &str, value: &str| set(&format!("{LISTENER}.{name}"), value);
    on("sasl.enabled.mechanisms", SCRAM);
    on(
        &format!("{}.sasl.jaas.config", SCRAM.to_lowercase()),
        "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    );
    on("ssl.keystore.type", "PEM");
    on("ssl.keystore.location", &keystore.to_string_lossy());
}
