//! Expiry of the certificates between the relay, Postgres and the brokers.
//!
//! Invariant: only certificates that the relay verifies are watched. A server receives only the
//! beginning of a handshake.

use std::path::Path;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::RunOptions;
use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::plan::Plan;
use crate::presented::presented;
pub use crate::presented::{Address, Begins};
use crate::telemetry::{CertificateEnd, RelayState, Snapshot, Telemetry};
use postrider_kafka::{KafkaSpec, SinkError, TopicsError};
use postrider_postgres::certificate::{Validity, now_s};
use postrider_postgres::libpq::{
    ConnectInfo, HostAddress, RootCertificate, SslMode, SslNegotiation,
};

const BROKER_PORT: u16 = 9_092;
/// Alerts count days, and the server logs each check as an aborted handshake.
const EVERY: Duration = Duration::from_hours(1);
/// Interval while a certificate is bad or a server is away, so that an alert ends soon after the
/// renewal.
const EVERY_AT_END: Duration = Duration::from_mins(1);
/// Delay of the first check after the brokers stopped answering, because their certificate may have
/// expired.
const AWAY_TICK: Duration = Duration::from_secs(5);

/// Addresses, and how TLS starts there. Empty without TLS.
pub fn postgres_servers(connect: &ConnectInfo) -> (Vec<Address>, Begins) {
    let begins = match connect.tls.negotiation {
        SslNegotiation::Postgres => Begins::AfterRequest,
        SslNegotiation::Direct => Begins::AtOnceForPostgres,
    };
    let endpoints = connect.endpoints.iter().filter(|_| connect.tls.mode != SslMode::Disable);
    let addresses = endpoints.filter_map(|endpoint| match &endpoint.address {
        HostAddress::Unix(_) => None,
        HostAddress::Tcp { host, ip } => {
            Some(Address { host: host.clone(), ip: *ip, port: endpoint.port })
        }
    });
    (addresses.collect(), begins)
}

pub const fn is_postgres_verified(connect: &ConnectInfo) -> bool {
    match connect.tls.mode {
        SslMode::VerifyCa | SslMode::VerifyFull => true,
        SslMode::Require => matches!(connect.tls.root, RootCertificate::File(_)),
        _ => false,
    }
}

pub fn is_kafka_encrypted(kafka: &KafkaSpec) -> bool {
    match kafka.properties.get("security.protocol") {
        Some(protocol) => protocol.to_ascii_lowercase().ends_with("ssl"),
        None => kafka.secrets.tokens.is_some(),
    }
}

pub fn is_kafka_verified(kafka: &KafkaSpec) -> bool {
    let verification = kafka.properties.get("enable.ssl.certificate.verification");
    is_kafka_encrypted(kafka) && verification.is_none_or(|value| value != "false")
}

pub fn configured_brokers(brokers: &[String]) -> Vec<Address> {
    let address = |broker: &String| {
        let split = broker.rsplit_once(':').filter(|(host, _)| !host.ends_with(':'));
        let (host, port) = split.map_or((broker.as_str(), BROKER_PORT), |(host, port)| {
            (host, port.parse().unwrap_or(BROKER_PORT))
        });
        Address { host: host.trim_matches(['[', ']']).to_owned(), ip: None, port }
    };
    brokers.iter().map(address).collect()
}

/// Queries all servers concurrently. The error is the reason why no certificate was seen.
pub fn first_to_expire(servers: &[Address], begins: Begins) -> Result<(Address, Validity), String> {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = servers
            .iter()
            .map(|server| (server, scope.spawn(move || presented(server, begins))))
            .collect();
        let answer = |(server, asked): (_, std::thread::ScopedJoinHandle<'_, _>)| {
            (server, asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        };
        asked.into_iter().map(answer).collect()
    });
    let seen = answers.iter().filter_map(|(server, answer)| {
        let chain = answer.as_ref().ok()?;
        Some(((*server).clone(), Validity::of(chain)?))
    });
    seen.min_by_key(|(_, validity)| validity.until_s).ok_or_else(|| {
        let why = answers.iter().find_map(|(_, answer)| answer.as_ref().err());
        why.map_or("its certificate cannot be read", String::as_str).to_owned()
    })
}

/// Adds the certificate's name, because librdkafka only reports a failed verification. Connects to
/// the broker, and therefore blocks for seconds.
pub fn name_invalid(error: SinkError) -> SinkError {
    let Some(broker) = error.unverified_broker() else { return error };
    let seen = first_to_expire(&configured_brokers(&[broker.to_owned()]), Begins::AtOnce);
    let Ok((Address { host, port, .. }, validity)) = seen else { return error };
    let Some(fault) = validity.fault(now_s()) else { return error };
    let (broker, fault) = (format!("{host}:{port}"), fault.to_string());
    SinkError::CertificateInvalid { broker, subject: validity.subject, fault }
}

pub(super) async fn name_expired(error: RelayError) -> RelayError {
    let (RelayError::Sink(tls) | RelayError::Topics(TopicsError::NoEntry(tls))) = &error else {
        return error;
    };
    if tls.unverified_broker().is_none() {
        return error;
    }
    let tls = tls.clone();
    let named = run_blocking(move || name_invalid(tls)).await;
    named.map_or(error, RelayError::from)
}

pub(super) struct CertificateMonitor {
    connect: ConnectInfo,
    kafka: KafkaSpec,
    telemetry: Telemetry,
    is_wanted: bool,
}

impl CertificateMonitor {
    /// A run that ends by itself does not need alerts, and a dry run has no certificate to show.
    pub(super) fn of(plan: &Plan, options: &RunOptions, telemetry: Telemetry) -> Self {
        let (connect, kafka) = (plan.config.source.connect.clone(), plan.kafka.clone());
        Self { connect, kafka, telemetry, is_wanted: options.acknowledge && !options.once }
    }

    pub(super) async fn beside<T>(self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            result = work => result,
            never = self.keep() => match never {},
        }
    }

    async fn keep(self) -> std::convert::Infallible {
        let mut told = Vec::new();
        if !self.is_wanted {
            return std::future::pending().await;
        }
        loop {
            let (connect, kafka) = (self.connect.clone(), self.kafka.clone());
            let look = run_blocking(move || Look::at(&connect, &kafka)).await;
            // Without a thread, the certificates were not seen.
            let look = look.unwrap_or(Look { unseen: 1, ..Look::default() });
            for expired in &look.expired {
                if !told.contains(expired) {
                    tracing::warn!(help = expired.help, "{}", expired.what);
                }
            }
            let is_well = look.expired.is_empty() && look.unseen == 0;
            told = look.expired;
            self.telemetry.publish_certificates(look.ends);
            self.pause(is_well).await;
        }
    }

    async fn pause(&self, is_well: bool) {
        let begin = Instant::now();
        let is_away = || are_brokers_away(&self.telemetry.view().snapshot);
        let was_away = is_away();
        let limit = if is_well && !was_away { EVERY } else { EVERY_AT_END };
        while begin.elapsed() < limit && (was_away || !is_away()) {
            tokio::time::sleep(AWAY_TICK).await;
        }
    }
}

/// A standby does not connect to the brokers.
const fn are_brokers_away(snapshot: &Snapshot) -> bool {
    use RelayState::{Retrying, Stalled, Streaming};
    !snapshot.broker_connected && matches!(snapshot.state, Streaming | Stalled | Retrying)
}

#[derive(Debug, PartialEq, Eq)]
struct Expired {
    what: String,
    help: String,
}

#[derive(Debug, Default)]
struct Look {
    ends: Vec<CertificateEnd>,
    expired: Vec<Expired>,
    /// Servers that did not show a certificate.
    unseen: usize,
}

impl Look {
    fn at(connect: &ConnectInfo, kafka: &KafkaSpec) -> Self {
        let mut look = Self::default();
        let (servers, begins) = postgres_servers(connect);
        if is_postgres_verified(connect) && !servers.is_empty() {
            look.server("postgres", first_to_expire(&servers, begins));
        }
        if is_kafka_verified(kafka) {
            let brokers = configured_brokers(&kafka.brokers);
            look.server("kafka", first_to_expire(&brokers, Begins::AtOnce));
        }
        let ours = connect.tls.client.as_ref().filter(|_| connect.tls.mode != SslMode::Disable);
        if let Some(ours) = ours {
            look.own("postgres", &ours.certificate);
        }
        let file = kafka.properties.get("ssl.certificate.location");
        if let Some(file) = file.filter(|_| is_kafka_encrypted(kafka)) {
            look.own("kafka", Path::new(file));
        }
        look
    }

    fn server(&mut self, peer: &'static str, seen: Result<(Address, Validity), String>) {
        let Ok((Address { host, port, .. }, validity)) = seen else {
            self.unseen += 1;
            return;
        };
        self.ends.push(CertificateEnd { peer, owner: "server", until_s: validity.until_s });
        if let Some(fault) = validity.fault(now_s()) {
            let (broker, subject) = (format!("{host}:{port}"), validity.subject);
            let what = format!("the certificate `{subject}` of {broker} {fault}");
            let help = match peer {
                "postgres" => postrider_postgres::wal::RENEW.to_owned(),
                _ => postrider_kafka::renew_certificate(&broker),
            };
            self.expired.push(Expired { what, help });
        }
    }

    fn own(&mut self, peer: &'static str, file: &Path) {
        let chain = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<_, _>>);
        let Some(validity) = chain.ok().and_then(|chain: Vec<_>| Validity::of(&chain)) else {
            self.unseen += 1;
            return;
        };
        self.ends.push(CertificateEnd { peer, owner: "relay", until_s: validity.until_s });
        if let Some(fault) = validity.fault(now_s()) {
            let file = file.display();
            let what = format!("the relay's certificate `{}` in {file} {fault}", validity.subject);
            let help = format!("replace {file} with a renewed certificate and its key");
            self.expired.push(Expired { what, help });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_away_only_from_a_relay_that_connects_to_them() {
        let are_away = |broker_connected| {
            let states = RelayState::ALL.into_iter();
            let snapshot = |state| Snapshot { state, broker_connected, ..Snapshot::default() };
            states.filter(|state| are_brokers_away(&snapshot(*state))).collect::<Vec<_>>()
        };
        let connecting = [RelayState::Streaming, RelayState::Stalled, RelayState::Retrying];
        assert_eq!(are_away(false), connecting);
        assert_eq!(are_away(true), []);
    }

    #[test]
    fn addresses_of_brokers_are_understood_as_the_client_understands_them() {
        let texts = ["a", "b:9093", "[::1]:9094", "[::1]"].map(str::to_owned);
        let found = configured_brokers(&texts);
        let parts: Vec<_> = found.iter().map(|one| (one.host.as_str(), one.port)).collect();
        assert_eq!(parts, [("a", 9_092), ("b", 9_093), ("::1", 9_094), ("::1", 9_092)]);
    }
}
