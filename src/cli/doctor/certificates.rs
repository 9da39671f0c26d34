//! Checks of `postrider doctor` for certificates of Postgres, brokers and the relay: one check per
//! side, for the one that ends first. A certificate that could not be seen is unknown.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::check::Check;
use super::fix::{Fix, Place, StepKind};
use postrider_kafka::KafkaSpec;
use postrider_postgres::certificate::{Validity, day, now_s};
use postrider_postgres::libpq::{ConnectInfo, SslMode};
use postrider_relay::certificates::{
    Address, Begins, first_to_expire, is_kafka_encrypted, is_kafka_verified, is_postgres_verified,
    postgres_servers,
};
use postrider_service::shell::shell_word;

const OF_POSTGRES: &str = "postgres.certificate";
const OF_KAFKA: &str = "kafka.certificate";
const OURS_FOR_POSTGRES: &str = "postgres.client_certificate";
const OURS_FOR_KAFKA: &str = "kafka.client_certificate";

/// Days of validity below which a certificate is reported. Automatic renewal happens a month before
/// the end.
const DAYS_MIN: i64 = 30;
const DAY_S: i64 = 86_400;

pub(super) fn of_postgres(connect: &ConnectInfo) -> Vec<Check> {
    let tls = &connect.tls;
    let is_checked = is_postgres_verified(connect);
    let (addresses, begins) = postgres_servers(connect);
    let server = if addresses.is_empty() {
        Check::pass(OF_POSTGRES, "the connection is not encrypted")
    } else {
        let fix = Fix::from("replace the old certificate and key with renewed ones: ")
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

pub(super) fn of_kafka(kafka: &KafkaSpec, addresses: &[Address]) -> Vec<Check> {
    let property = |name: &str| kafka.properties.get(name).map(String::as_str);
    if !is_kafka_encrypted(kafka) {
        let check = |id| Check::pass(id, "the connection is not encrypted");
        return vec![check(OF_KAFKA), check(OURS_FOR_KAFKA)];
    }
    let is_checked = is_kafka_verified(kafka);
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
            Check::unknown(OURS_FOR_KAFKA, "doctor does not read ssl.keystore.location")
        }
        (None, None) => Check::pass(OURS_FOR_KAFKA, "the relay presents no certificate"),
    };
    vec![brokers, ours]
}

/// The fault, and whether every peer refuses the certificate.
fn wrong(validity: &Validity, now_s: i64) -> Option<(String, bool)> {
    let Validity { subject, until_s, .. } = validity;
    let left = (until_s - now_s).div_euclid(DAY_S);
    if let Some(fault) = validity.fault(now_s) {
        Some((format!("certificate `{subject}` {fault}"), true))
    } else if left < DAYS_MIN {
        let days = if left == 1 { "1 day".to_owned() } else { format!("{left} days") };
        Some((format!("certificate `{subject}` expires on {}, in {days}", day(*until_s)), false))
    } else {
        None
    }
}

/// `judge`: whether the relay verifies this certificate, and the fix.
fn of_servers(id: &'static str, servers: &[Address], begins: Begins, judge: (bool, Fix)) -> Check {
    let (is_checked, fix) = judge;
    let (server, first) = match first_to_expire(servers, begins) {
        Ok(first) => first,
        Err(why) => return Check::unknown(id, format!("no certificate was seen: {why}")),
    };
    let Address { host, port, .. } = server;
    match wrong(&first, now_s()) {
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

/// Judges the relay's certificate in a PEM file.
fn of_file(id: &'static str, certificate: &Path, key: Option<&Path>) -> Check {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let shown = certificate.display().to_string();
    let chain = match chain {
        Ok(chain) => chain,
        Err(error) => return Check::unknown(id, format!("{shown} cannot be read: {error}")),
    };
    let copy =
        |what: &str, file: &Path| format!("cp {what} {}", shell_word(&file.display().to_string()));
    let step = |fix: Fix, text| fix.then(StepKind::Shell, Place::Relay, text);
    let fix = Fix::from("replace the old certificate and key with renewed ones: ");
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
    match wrong(&validity, now_s()) {
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
        let validity = Validity { subject: "CN=db".to_owned(), from_s: 0, until_s: 100 * DAY_S };
        let at = |day: i64| wrong(&validity, day * DAY_S);
        assert_eq!(at(70), None);
        let (what, is_over) = at(71).unwrap();
        assert_eq!(
            (what.as_str(), is_over),
            ("certificate `CN=db` expires on 1970-04-11, in 29 days", false)
        );
        assert!(at(99).unwrap().0.ends_with("in 1 day"));
        let (what, is_over) = at(101).unwrap();
        assert_eq!(
            (what.as_str(), is_over),
            ("certificate `CN=db` expired on 1970-04-11 (UTC)", true)
        );
        let early = Validity { from_s: 90 * DAY_S, ..validity.clone() };
        assert!(wrong(&early, 80 * DAY_S).unwrap().1);
    }
}
