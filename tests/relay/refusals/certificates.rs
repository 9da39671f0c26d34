//! Brokers that want a certificate of their clients (mutual TLS): in PEM and in PKCS#12, and replaced while the relay
//! runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::outbox::Outbox;
use support::kafka::{self, ALLOWED_USER, Kafka, PASSWORD};
use support::postgres;
use support::relay::Relay;
use support::secured::{authority, issue, issue_for_days};
use support::topic;
use support::wait::wait_until;

/// Whom the brokers' listener trusts.
const TRUSTED: &str = "listener.name.sasl_ssl.ssl.truststore.certificates";
/// What keytool wants at least.
const STORE_PASSWORD: &str = "open-sesame";

/// Brokers that trust the clients of one authority, and the files of a client.
struct Site {
    kafka: Kafka,
    folder: tempfile::TempDir,
}

/// As a properties file writes what has several lines.
fn one_line(pem: &str) -> String {
    pem.replace('\r', "").trim().replace('\n', "\\n")
}

impl Site {
    /// The brokers trust clients by these certificates of authorities.
    fn start(trusted: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let of_brokers = authority("authority of the brokers");
        std::fs::write(folder.path().join("root.crt"), of_brokers.pem()).unwrap();
        let settings = vec![
            ("listener.name.sasl_ssl.ssl.client.auth", "required".to_owned()),
            ("listener.name.sasl_ssl.ssl.truststore.type", "PEM".to_owned()),
            (TRUSTED, one_line(trusted)),
        ];
        let tls = Some(issue(&of_brokers, "broker", &["localhost"]));
        let kafka = kafka::start(&kafka::Options { tls, settings, ..kafka::Options::default() })?;
        Some(Self { kafka, folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The client's certificate and key, in place of those that were there.
    fn write(&self, (certificate, key): (String, String)) {
        for (name, text) in [("client.crt", certificate), ("client.key", key)] {
            std::fs::write(self.file("next"), text).unwrap();
            std::fs::rename(self.file("next"), self.file(name)).unwrap();
        }
    }

    fn relay(&self, outbox: &Outbox) -> Relay {
        let root = self.file("root.crt").display().to_string();
        outbox
            .relay_to(&outbox.database.address(), &self.kafka.tls_bootstrap())
            // A first handshake may take longer on a busy machine.
            .allow_log("cannot reach Kafka")
            .property("security.protocol", "SASL_SSL")
            .property("sasl.mechanism", "SCRAM-SHA-512")
            .property("sasl.username", ALLOWED_USER)
            .property("sasl.password", PASSWORD)
            .property("ssl.ca.location", &root)
    }

    fn relay_of_client(&self, outbox: &Outbox) -> Relay {
        self.relay(outbox)
            .property("ssl.certificate.location", &self.file("client.crt").display().to_string())
            .property("ssl.key.location", &self.file("client.key").display().to_string())
    }

    fn wait_for(&self, outbox: &Outbox) {
        wait_until("the rows arrive", || {
            topic::read(&self.kafka.bootstrap(), &[outbox.topic()]).len() >= outbox.written()
        });
    }
}

/// The brokers trust another authority from their restart on, and the client's new certificate comes later. Without
/// another session, the relay would show the old one for ever.
#[test]
fn a_client_certificate_that_is_replaced_is_shown_by_the_next_session() {
    let (first, second) = (authority("first authority"), authority("second authority"));
    let Some(mut site) = Site::start(&first.pem()) else { return };
    site.write(issue(&first, "relay", &[]));
    let outbox = Outbox::ready(postgres::installed(), "certificates");
    let relay = site.relay_of_client(&outbox).allow_log("");
    let mut running = relay.run();
    outbox.write();
    site.wait_for(&outbox);
    site.kafka.configure(0, TRUSTED, &one_line(&second.pem()));
    site.kafka.kill_broker(0);
    site.kafka.start_broker(0);
    outbox.write();
    let refused = running.wait_for_log("refuse the client certificate");
    assert!(refused.contains("trying again"), "{refused}");
    site.write(issue(&second, "relay", &[]));
    site.wait_for(&outbox);
    assert!(!running.has_ended());
    running.stop();
}

/// Two files are replaced one after the other, and a session begins in between.
#[test]
fn a_certificate_whose_key_comes_a_moment_later_is_waited_for() {
    let first = authority("first authority");
    let Some(site) = Site::start(&first.pem()) else { return };
    site.write(issue(&first, "relay", &[]));
    let outbox = Outbox::ready(postgres::installed(), "half_certificates");
    let mut running = site.relay_of_client(&outbox).allow_log("").run();
    outbox.write();
    site.wait_for(&outbox);
    let (certificate, key) = issue(&first, "relay", &[]);
    std::fs::write(site.file("client.crt"), certificate).unwrap();
    outbox.run(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
         WHERE slot_name = current_database()",
    );
    let refused = running.wait_for_log("key values mismatch");
    assert!(refused.contains("trying again"), "{refused}");
    std::fs::write(site.file("client.key"), key).unwrap();
    outbox.write();
    site.wait_for(&outbox);
    assert!(!running.has_ended());
    running.stop();
}

/// The broker's certificate expires under a relay that runs, and is renewed later. Sessions that begin meanwhile are
/// refused at the handshake.
#[test]
fn a_brokers_certificate_that_expires_is_named_and_waited_for() {
    let of_brokers = authority("authority of the brokers");
    let tls = Some(issue(&of_brokers, "broker", &["localhost"]));
    let options = kafka::Options { tls, ..kafka::Options::default() };
    let Some(mut kafka) = kafka::start(&options) else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    std::fs::write(&root, of_brokers.pem()).unwrap();
    let outbox = Outbox::ready(postgres::installed(), "broker_expires");
    let relay = outbox
        .relay_to(&outbox.database.address(), &kafka.tls_bootstrap())
        .log_in(&kafka.tls_bootstrap(), ALLOWED_USER, PASSWORD)
        .property("security.protocol", "SASL_SSL")
        .property("sasl.mechanism", "SCRAM-SHA-512")
        .property("ssl.ca.location", &root.display().to_string())
        .set("retry.max", "500ms")
        .allow_log("");
    let mut running = relay.run();
    outbox.write();
    let arrive = |kafka: &Kafka| {
        wait_until("the rows arrive", || {
            topic::read(&kafka.bootstrap(), &[outbox.topic()]).len() >= outbox.written()
        });
    };
    arrive(&kafka);
    let present = |kafka: &mut Kafka, (certificate, key): (String, String)| {
        std::fs::write(kafka.keystore(0), format!("{key}{certificate}")).unwrap();
        kafka.kill_broker(0);
        kafka.start_broker(0);
    };
    present(&mut kafka, issue_for_days(&of_brokers, "broker", &["localhost"], -1));
    // The session lasts, since it waits for brokers; the log names the certificate all the same.
    let named = running.wait_for_log("the certificate `CN=broker` of localhost:");
    assert!(named.contains("expired on 2") && named.contains("ssl.keystore.location"), "{named}");
    outbox.run(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
         WHERE slot_name = current_database()",
    );
    outbox.write();
    let refused = running.wait_for_log("no secure connection to the brokers");
    let words = ["`CN=broker` of localhost:", "expired on 2", "(UTC)", "ssl.keystore.location"];
    for word in words.iter().chain(&["trying again"]) {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    // A command that starts now ends at once, and says the same.
    let setup = format!("--topics={}", outbox.topic());
    let commands = [
        &["run"][..],
        &["setup", &setup],
        &["tail", &outbox.topic()],
        &["verify"],
        &["dead-letters", "list"],
        &["replay", "--all", "--execute"],
    ];
    // All at once, for each waits for the brokers.
    let started = commands.map(|command| (command, relay.start(command)));
    for (command, started) in started {
        let outcome = started.outcome();
        let log = outcome.log.join("\n");
        assert_eq!(outcome.status.code(), Some(78), "{command:?}: {log}");
        let is_named = words.iter().all(|word| log.contains(word));
        assert!(is_named && !log.contains("ssl.ca.location"), "{command:?}: {log}");
    }
    present(&mut kafka, issue(&of_brokers, "broker", &["localhost"]));
    arrive(&kafka);
    assert!(!running.has_ended());
    running.stop();
}

/// Keys as Java keeps them.
#[test]
fn a_client_certificate_in_pkcs12_is_shown() {
    let store = tempfile::tempdir().unwrap();
    let store = store.path().join("client.p12");
    let Some(own) = key_store(&store) else { return };
    let Some(site) = Site::start(&own) else { return };
    let outbox = Outbox::ready(postgres::installed(), "pkcs12");
    outbox.write();
    let relay = site
        .relay(&outbox)
        .property("ssl.keystore.location", &store.display().to_string())
        .property("ssl.keystore.password", STORE_PASSWORD);
    relay.run_once();
    outbox.assert_delivered_to(&site.kafka.bootstrap());
}

/// A key store with a certificate that signs itself, which is returned. Where Kafka cannot be run, nothing.
fn key_store(path: &Path) -> Option<String> {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("keytool");
        command.args(arguments).args(["-alias", "relay", "-storepass", STORE_PASSWORD]);
        let output = command.arg("-keystore").arg(path).output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "keytool: {said}");
        Some(said)
    };
    let name = ["-dname", "CN=relay", "-validity", "3650"];
    run(&[&["-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12"][..], &name].concat())?;
    run(&["-exportcert", "-rfc"])
}
