//! Checks of `postrider doctor`: how long the certificates are good of Postgres, of each broker, and of ourselves.
//!
//! Input: the settings of both sides, the addresses, our clock. Output: checks, of several certificates that of the one
//! that ends first. Invariant: only certificates that are in use are judged; one that could not be seen is unknown, and its
//! end is told by the day.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::check::Check;
use super::config::word_of_shell;
use super::fix::{Fix, Place, StepKind};
use super::presented::{Address, Begins, presented};
use postrider_core::route::rfc3339;
use postrider_kafka::KafkaSpec;
use postrider_postgres::libpq::{
    ConnectInfo, HostAddress, RootCertificate, SslMode, SslNegotiation,
};

const OF_POSTGRES: &str = "postgres.certificate";
const OF_KAFKA: &str = "kafka.certificate";
const OURS_FOR_POSTGRES: &str = "postgres.client_certificate";
const OURS_FOR_KAFKA: &str = "kafka.client_certificate";

/// A certificate that ends sooner, in days, is told: authorities that renew by themselves do so a month before.
const DAYS_MIN: i64 = 30;
const DAY_S: i64 = 86_400;
/// Kafka's, where an address names none.
const BROKER_PORT: u16 = 9_092;

/// Of the server, and ours for it.
pub(super) fn of_postgres(connect: &ConnectInfo) -> Vec<Check> {
    let tls = &connect.tls;
    let is_checked = match tls.mode {
        SslMode::VerifyCa | SslMode::VerifyFull => true,
        SslMode::Require => matches!(tls.root, RootCertificate::File(_)),
        _ => false,
    };
    let begins = match tls.negotiation {
        SslNegotiation::Postgres => Begins::AfterRequest,
        SslNegotiation::Direct => Begins::AtOnceForPostgres,
    };
    let addresses: Vec<_> = connect
        .endpoints
        .iter()
        .filter_map(|endpoint| match &endpoint.address {
            HostAddress::Unix(_) => None,
            HostAddress::Tcp { host, ip } => {
                Some(Address { host: host.clone(), ip: *ip, port: endpoint.port })
            }
        })
        .collect();
    let server = if tls.mode == SslMode::Disable || addresses.is_empty() {
        Check::pass(OF_POSTGRES, "the connection is not encrypted")
    } else {
        let fix = Fix::from("put a renewed certificate and its key in the place of the old ones: ")
            .then(StepKind::Shell, Place::Server, "cp NEW_CERTIFICATE CERTIFICATE_FILE")
            .then(StepKind::Shell, Place::Server, "cp NEW_KEY KEY_FILE")
            .then(StepKind::Sql, Place::Database, "SELECT pg_reload_conf();")
            .say(" (SHOW ssl_cert_file and SHOW ssl_key_file say where they are)");
        of_servers(OF_POSTGRES, &addresses, begins, (is_checked, fix))
    };
    let ours = match tls.client.as_ref().filter(|_| tls.mode != SslMode::Disable) {
        None => Check::pass(OURS_FOR_POSTGRES, "the relay presents no certificate"),
        Some(ours) => of_file(OURS_FOR_POSTGRES, &ours.certificate, Some(&ours.key)),
    };
    vec![server, ours]
}

/// Of the brokers, and ours for them.
pub(super) fn of_kafka(kafka: &KafkaSpec, addresses: &[Address]) -> Vec<Check> {
    let property = |name: &str| kafka.properties.get(name).map(String::as_str);
    if !is_encrypted(kafka) {
        let check = |id| Check::pass(id, "the connection is not encrypted");
        return vec![check(OF_KAFKA), check(OURS_FOR_KAFKA)];
    }
    let is_checked = property("enable.ssl.certificate.verification") != Some("false");
    let fix = Fix::from("put a renewed certificate and its key in the key store of that broker: ")
        .then(StepKind::Shell, Place::Kafka, "cp NEW_KEYSTORE KEYSTORE_FILE")
        .then(StepKind::Shell, Place::Kafka, "kafka-server-stop.sh")
        .then(StepKind::Shell, Place::Kafka, "kafka-server-start.sh DIRECTORY/server.properties")
        .say(" (ssl.keystore.location of the listener; one broker after the other)");
    let brokers = of_servers(OF_KAFKA, addresses, Begins::AtOnce, (is_checked, fix));
    let ours = match (property("ssl.certificate.location"), property("ssl.certificate.pem")) {
        (Some(file), _) => {
            let key = property("ssl.key.location").map(Path::new);
            of_file(OURS_FOR_KAFKA, Path::new(file), key)
        }
        (None, Some(text)) => {
            let chain = CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok);
            let fix =
                "set ssl.certificate.pem and ssl.key.pem of [kafka.properties] to renewed ones";
            of_ours(OURS_FOR_KAFKA, "ssl.certificate.pem", &chain.collect::<Vec<_>>(), fix)
        }
        (None, None) if property("ssl.keystore.location").is_some() => {
            Check::unknown(OURS_FOR_KAFKA, "what ssl.keystore.location holds is not read here")
        }
        (None, None) => Check::pass(OURS_FOR_KAFKA, "the relay presents no certificate"),
    };
    vec![brokers, ours]
}

/// Whether connections to the brokers are encrypted.
pub(super) fn is_encrypted(kafka: &KafkaSpec) -> bool {
    match kafka.properties.get("security.protocol") {
        Some(protocol) => protocol.to_ascii_lowercase().ends_with("ssl"),
        None => kafka.secrets.tokens.is_some(),
    }
}

/// Where brokers were said to be, for those that do not tell themselves.
pub(super) fn configured(brokers: &[String]) -> Vec<Address> {
    let address = |broker: &String| {
        let split = broker.rsplit_once(':').filter(|(host, _)| !host.ends_with(':'));
        let (host, port) = split.map_or((broker.as_str(), BROKER_PORT), |(host, port)| {
            (host, port.parse().unwrap_or(BROKER_PORT))
        });
        Address { host: host.trim_matches(['[', ']']).to_owned(), ip: None, port }
    };
    brokers.iter().map(address).collect()
}

/// When a certificate of a chain begins and ends to be good, in seconds since the Unix epoch, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Validity {
    name: String,
    from_s: i64,
    until_s: i64,
}

impl Validity {
    /// Of the one that ends first; roots do not count, since those count that we have ourselves.
    fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let parsed = chain.iter().enumerate().filter_map(|(place, certificate)| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            let is_root = place > 0 && parsed.issuer() == parsed.subject();
            (!is_root).then(|| Self {
                name: parsed.subject().to_string(),
                from_s: parsed.validity().not_before.timestamp(),
                until_s: parsed.validity().not_after.timestamp(),
            })
        });
        parsed.min_by_key(|validity| validity.until_s)
    }

    /// What is wrong with it, and whether nobody takes it any more.
    fn wrong(&self, now_s: i64) -> Option<(String, bool)> {
        let Self { name, from_s, until_s } = self;
        let left = (until_s - now_s).div_euclid(DAY_S);
        if now_s > *until_s {
            Some((format!("certificate `{name}` has expired on {}", day(*until_s)), true))
        } else if now_s < *from_s {
            Some((format!("certificate `{name}` is good from {} on only", day(*from_s)), true))
        } else if left < DAYS_MIN {
            let days = if left == 1 { "1 day".to_owned() } else { format!("{left} days") };
            Some((format!("certificate `{name}` ends on {}, in {days}", day(*until_s)), false))
        } else {
            None
        }
    }
}

/// `2026-11-27`
fn day(unix_s: i64) -> String {
    let text = rfc3339(unix_s.saturating_mul(1_000));
    text.split_once('T').map_or(text.clone(), |(day, _)| day.to_owned())
}

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// The one of several servers whose certificate ends first. `judge`: whether we look at its end when we connect, and the fix.
fn of_servers(id: &'static str, servers: &[Address], begins: Begins, judge: (bool, Fix)) -> Check {
    let (is_checked, fix) = judge;
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
        Some((*server, Validity::of(chain)?))
    });
    let Some((server, first)) = seen.min_by_key(|(_, validity)| validity.until_s) else {
        let why = answers.iter().find_map(|(_, answer)| answer.as_ref().err());
        let why = why.map_or("its certificate cannot be read", String::as_str);
        return Check::unknown(id, format!("no certificate was seen: {why}"));
    };
    let Address { host, port, .. } = server;
    match first.wrong(now_s()) {
        None => Check::pass(
            id,
            format!("the certificate of {host}:{port} is good until {}", day(first.until_s)),
        ),
        Some((what, true)) if is_checked => {
            Check::fail(id, format!("{host}:{port} presents what the relay refuses: {what}"), fix)
        }
        Some((what, _)) => Check::warn(id, format!("{host}:{port}: {what}"), fix),
    }
}

/// One of ours in a PEM file.
fn of_file(id: &'static str, certificate: &Path, key: Option<&Path>) -> Check {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let shown = certificate.display().to_string();
    let chain = match chain {
        Ok(chain) => chain,
        Err(error) => return Check::unknown(id, format!("{shown} cannot be read: {error}")),
    };
    let copy = |what: &str, file: &Path| format!("cp {what} {}", word_of_shell(file));
    let step = |fix: Fix, text| fix.then(StepKind::Shell, Place::Relay, text);
    let fix = Fix::from("put a renewed certificate and its key in the place of the old ones: ");
    let mut fix = step(fix, copy("NEW_CERTIFICATE", certificate));
    if let Some(key) = key {
        fix = step(fix, copy("NEW_KEY", key));
    }
    of_ours(id, &shown, &chain, fix.say("; then restart the relay"))
}

fn of_ours(
    id: &'static str,
    place: &str,
    chain: &[CertificateDer<'_>],
    fix: impl Into<Fix>,
) -> Check {
    let Some(validity) = Validity::of(chain) else {
        return Check::unknown(id, format!("{place} holds no certificate that can be read"));
    };
    match validity.wrong(now_s()) {
        None => Check::pass(id, format!("our certificate is good until {}", day(validity.until_s))),
        Some((what, true)) => Check::fail(id, format!("{place}: our {what}"), fix),
        Some((what, false)) => Check::warn(id, format!("{place}: our {what}"), fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_a_month_before_and_by_its_day() {
        let validity = Validity { name: "CN=db".to_owned(), from_s: 0, until_s: 100 * DAY_S };
        let wrong = |day: i64| validity.wrong(day * DAY_S);
        assert_eq!(wrong(70), None);
        let (what, is_over) = wrong(71).unwrap();
        assert_eq!(
            (what.as_str(), is_over),
            ("certificate `CN=db` ends on 1970-04-11, in 29 days", false)
        );
        assert!(wrong(99).unwrap().0.ends_with("in 1 day"));
        let (what, is_over) = wrong(101).unwrap();
        assert_eq!(
            (what.as_str(), is_over),
            ("certificate `CN=db` has expired on 1970-04-11", true)
        );
        let early = Validity { from_s: 90 * DAY_S, ..validity.clone() };
        assert!(early.wrong(80 * DAY_S).unwrap().1);
    }

    #[test]
    fn addresses_of_brokers_are_understood_as_the_client_understands_them() {
        let texts = ["a", "b:9093", "[::1]:9094", "[::1]"].map(str::to_owned);
        let found = configured(&texts);
        let parts: Vec<_> = found.iter().map(|one| (one.host.as_str(), one.port)).collect();
        assert_eq!(parts, [("a", 9_092), ("b", 9_093), ("::1", 9_094), ("::1", 9_092)]);
    }
}
