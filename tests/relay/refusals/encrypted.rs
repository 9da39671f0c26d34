//! Brokers behind TLS and SCRAM, for builds that can: who is let in, and who is told what to fix.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::attempt::{CANARY, refused};
use super::outbox::Outbox;
use support::kafka::{self, ALLOWED_USER, Kafka, PASSWORD};
use support::postgres;
use support::relay::Relay;
use support::secured::{authority, issue};

/// Kafka with a certificate for `localhost`, and files of two authorities, one of them a stranger.
struct Vault {
    kafka: Kafka,
    folder: tempfile::TempDir,
}

fn vault() -> Option<&'static Vault> {
    static VAULT: OnceLock<Option<Vault>> = OnceLock::new();
    let start = || {
        let folder = tempfile::tempdir().unwrap();
        let authority = authority("postrider kafka authority");
        for (name, text) in [
            ("root.crt", authority.pem()),
            ("stranger.crt", self::authority("somebody else").pem()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let tls = Some(issue(&authority, "broker", &["localhost"]));
        let kafka = kafka::start(&kafka::Options { tls, ..kafka::Options::default() })?;
        Some(Vault { kafka, folder })
    };
    VAULT.get_or_init(start).as_ref()
}

impl Vault {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log_in(&self, outbox: &Outbox, authority: &str, password: &str) -> Relay {
        let relay = outbox.relay_to(&outbox.database.address(), &self.kafka.tls_bootstrap());
        let relay = match authority {
            "" => relay,
            _ => relay.property("ssl.ca.location", &self.file(authority).display().to_string()),
        };
        relay
            .property("security.protocol", "SASL_SSL")
            .property("sasl.mechanism", "SCRAM-SHA-512")
            .property("sasl.username", ALLOWED_USER)
            .property("sasl.password", password)
    }
}

#[test]
fn who_trusts_the_authority_and_knows_the_password_delivers() {
    let Some(vault) = vault() else { return };
    let outbox = Outbox::ready(postgres::installed(), "encrypted");
    outbox.write();
    vault.log_in(&outbox, "root.crt", PASSWORD).run_once();
    outbox.assert_delivered_to(&vault.kafka.bootstrap());
}

#[test]
fn authorities_are_named_by_the_variable_of_openssl_too() {
    let Some(vault) = vault() else { return };
    let outbox = Outbox::ready(postgres::installed(), "trusted");
    outbox.write();
    let root = vault.file("root.crt").display().to_string();
    vault.log_in(&outbox, "", PASSWORD).variable("SSL_CERT_FILE", &root).run_once();
    outbox.assert_delivered_to(&vault.kafka.bootstrap());
}

#[test]
fn a_password_that_scram_refuses_is_a_definite_error() {
    let Some(vault) = vault() else { return };
    let outbox = Outbox::ready(postgres::installed(), "scram");
    outbox.write();
    let refusal = refused(&vault.log_in(&outbox, "root.crt", CANARY), &["run"], 77);
    refusal.assert("PR-K003", &["refused our credentials", "sasl.password"]);
    vault.log_in(&outbox, "root.crt", PASSWORD).run_once();
    outbox.assert_delivered_to(&vault.kafka.bootstrap());
}

#[test]
fn brokers_that_nobody_we_trust_vouches_for_are_a_definite_error() {
    let Some(vault) = vault() else { return };
    let outbox = Outbox::ready(postgres::installed(), "stranger");
    outbox.write();
    let stranger = vault.log_in(&outbox, "stranger.crt", PASSWORD);
    // The certificate is for `localhost` and for no address.
    let address = vault.kafka.tls_bootstrap().replace("localhost", "127.0.0.1");
    let misnamed = vault.log_in(&outbox, "root.crt", PASSWORD).set("kafka.brokers", &address);
    for relay in [stranger, misnamed] {
        let refusal = refused(&relay, &["run"], 78);
        assert!(refusal.text.contains("ssl.ca.location"), "{}", refusal.text);
        assert!(refusal.warnings.is_empty(), "{:#?}", refusal.warnings);
    }
}

/// A client is not waited for when a command has failed: the process exits while a thread of librdkafka is in a
/// handshake. Of 120 such ends four were by SIGSEGV before OpenSSL was left alone at exit.
#[test]
fn a_refused_certificate_never_ends_by_a_signal() {
    let Some(vault) = vault() else { return };
    let outbox = Outbox::ready(postgres::installed(), "handshakes");
    let relay = vault.log_in(&outbox, "stranger.crt", PASSWORD);
    let ends = (0..60).map(|_| relay.start(&["run"]).outcome().status.code());
    assert_eq!(ends.filter(|code| *code != Some(78)).collect::<Vec<_>>(), []);
}
