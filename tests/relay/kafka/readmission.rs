//! Brokers that let the relay in before and do not now: a password that is changed under a relay that
//! runs, and a login that ends in the middle.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::stage::Stage;
use support::kafka::{self, ALLOWED_USER, Kafka, Options, PASSWORD, PLAIN_LOGINS, plain_logins};
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::requests::{self, Ask};
use support::wait::stays;
use support::{is_full, postgres};

/// Exactly once, whose client asks the brokers more; with `FULL=1` at least once too.
fn deliveries() -> &'static [&'static str] {
    if is_full() { &["at_least_once", "exactly_once"] } else { &["exactly_once"] }
}

/// Names the file that `sasl.password` is in.
const PASSWORD_FILE: &str = "POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD_FILE";

/// A broker that wants a login, and the file of a relay's password.
struct Vault {
    kafka: Kafka,
    folder: tempfile::TempDir,
}

impl Vault {
    fn open() -> Option<Self> {
        let kafka = kafka::start(&Options { sasl: true, ..Options::default() })?;
        let vault = Self { kafka, folder: tempfile::tempdir().unwrap() };
        vault.change_file(PASSWORD);
        Some(vault)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("password")
    }

    /// The way secrets are replaced: another file takes the name.
    fn change_file(&self, password: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, password).unwrap();
        fs::rename(next, self.file()).unwrap();
    }

    /// The account has this password from now on, and everybody logs in anew.
    fn change_user(&mut self, password: &str) {
        self.kafka.kill_broker(0);
        self.kafka.configure(0, PLAIN_LOGINS, &plain_logins(password));
        self.kafka.start_broker(0);
    }

    /// A stage before these brokers.
    fn stage(&self) -> Stage {
        let stage = Stage::new(postgres::installed(), &self.kafka.bootstrap(), "readmission");
        stage.insert("A", 1);
        stage
    }

    /// A relay of the stage that knows no password.
    fn relay(&self, stage: &Stage, delivery: &str) -> Relay {
        log_in(stage.relay(), &self.kafka.sasl_bootstrap()).set("kafka.delivery", delivery)
    }
}

/// A relay that has all of a login but the password; it may say what it likes.
fn log_in(relay: Relay, brokers: &str) -> Relay {
    relay
        .set("kafka.brokers", brokers)
        .property("security.protocol", "SASL_PLAINTEXT")
        .property("sasl.mechanism", "PLAIN")
        .property("sasl.username", ALLOWED_USER)
        .set("retry.max", "500ms")
        .allow_log("")
}

/// One row more arrives, and it still runs.
fn delivers(stage: &Stage, running: &mut Running, rows: usize) {
    stage.insert("A", 1);
    stage.wait_for_records(rows);
    stage.wait_acknowledged(stage.log_end());
    assert!(!running.has_ended());
}

/// The user's password changes, the brokers restart, the secret comes late: nothing but a delay.
#[test]
fn a_password_of_the_brokers_that_is_rotated_under_a_relay_costs_a_delay() {
    let Some(mut vault) = Vault::open() else { return };
    let file = vault.file().display().to_string();
    let mut running_with = PASSWORD;
    for (delivery, by_command, next) in
        [("at_least_once", false, "second"), ("exactly_once", true, "third")]
    {
        vault.change_file(running_with);
        let stage = vault.stage();
        let relay = vault.relay(&stage, delivery);
        let relay = if by_command {
            relay.set("kafka.password_command", &format!("cat,{file}"))
        } else {
            relay.variable(PASSWORD_FILE, &file)
        };
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        delivers(&stage, &mut running, 2);
        vault.change_user(next);
        running.wait_for_log("the brokers refuse a login that they accepted before");
        stage.insert("A", 1);
        stays("it goes on", Duration::from_secs(2), || !running.has_ended());
        vault.change_file(next);
        delivers(&stage, &mut running, 4);
        running.stop();
        running_with = next;
    }
}

/// What was typed cannot change, and yet was right before: brokers whose accounts are away look like
/// this, so it is an outage, of which the log says what it is.
#[test]
fn a_password_that_was_typed_and_is_refused_later_is_waited_for() {
    let Some(mut vault) = Vault::open() else { return };
    for delivery in deliveries() {
        let stage = vault.stage();
        let relay = vault.relay(&stage, delivery).property("sasl.password", PASSWORD);
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("\"streaming\"");
        delivers(&stage, &mut running, 2);
        vault.change_user("another");
        stage.insert("A", 1);
        face.wait_ready(503);
        running.wait_for_log("uthentication");
        vault.change_user(PASSWORD);
        delivers(&stage, &mut running, 4);
        running.stop();
    }
}

/// A password that stays wrong is final in the end.
#[test]
fn a_password_of_the_brokers_that_stays_wrong_ends_a_relay_that_runs() {
    let Some(mut vault) = Vault::open() else { return };
    let stage = vault.stage();
    let relay = vault.relay(&stage, "at_least_once");
    let file = vault.file().display().to_string();
    let relay = relay.variable(PASSWORD_FILE, &file);
    let mut running = relay.set("retry.login_give_up_after", "1s").run();
    running.wait_for_log("\"streaming\"");
    delivers(&stage, &mut running, 2);
    vault.change_user("another");
    let outcome = running.outcome();
    let log = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(77), "{log}");
    assert!(log.contains("reading the secret again") && log.contains("PR-K003"), "{log}");
    assert!(!log.contains(PASSWORD), "{log}");
}

/// A broker that restarts, or what stands before it, may end a connection just then.
#[test]
fn a_broker_that_hangs_up_in_the_middle_of_a_login_is_an_outage() {
    let map = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
               PROXIED:SASL_PLAINTEXT";
    let settings = vec![
        ("listener.security.protocol.map", map.to_owned()),
        ("listener.name.proxied.plain.sasl.jaas.config", plain_logins(PASSWORD)),
    ];
    let options = Options { sasl: true, settings, ..Options::default() };
    let Some((kafka, requests)) = requests::start(&options) else { return };
    for delivery in deliveries() {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "hang_up");
        let relay = log_in(stage.relay(), &requests.bootstrap());
        let relay = relay.property("sasl.password", PASSWORD).set("kafka.delivery", delivery);
        relay.prepare();
        for let_in_before in [true, false] {
            if !let_in_before {
                requests.hang_up_at(Ask::SaslHandshake);
            }
            let mut running = relay.run();
            if let_in_before {
                running.wait_for_log("\"streaming\"");
                requests.hang_up_at(Ask::SaslHandshake);
                requests.cut();
            }
            stage.insert("A", 1);
            // In the session that runs, and in those that follow.
            requests.wait_for(3, Ask::SaslHandshake);
            let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                       WHERE slot_name = current_database() AND active";
            stage.sql().run(end);
            requests.wait_for(30, Ask::SaslHandshake);
            assert!(!running.has_ended(), "{delivery}, let in before: {let_in_before}");
            requests.pass();
            stage.wait_acknowledged(stage.log_end());
            running.stop();
        }
        assert!(stage.records().len() >= 2);
    }
}
