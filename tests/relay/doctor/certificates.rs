//! Certificates that end soon or have ended, on both sides of a connection: told by the day, and well after the literal
//! steps of the fix.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use postrider::sandbox::postgres::{Cluster, Options, Tls};

use super::Report;
use super::steps::World;
use crate::stage::Stage;
use support::kafka::{self, ALLOWED_USER, Options as KafkaOptions, PASSWORD};
use support::secured::{Authority, authority, issue, issue_for_days};
use support::wait::wait_until;
use support::{postgres, relay::Relay};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

fn told(world: &World<'_>, id: &str) -> Report {
    Report::asked(&world.relay, &["--only", id])
}

/// The finding, its fix, and the check again.
fn hold(world: &mut World<'_>, id: &str, status: &str, words: &str) {
    let report = told(world, id);
    assert_eq!(report.status(id), status, "{:#}", report.find(id));
    let finding = report.find(id)["finding"].as_str().unwrap().to_owned();
    assert!(finding.contains(words), "{finding}");
    world.fix(&report, id);
    wait_until("the check to pass", || told(world, id).all_pass(id));
}

/// The first fix that is printed is the right one.
fn names_the_renewal(report: &Report, id: &str, subject: &str, fix: &str) {
    let text = report.find(id).to_string();
    for words in [subject, "expired on 2", "(UTC)", fix] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for wrong in ["sslrootcert", "ssl.ca.location"] {
        assert!(!text.contains(wrong), "{text}");
    }
}

/// A file that others may not read.
fn file(world: &World<'_>, name: &str, text: &str) -> String {
    let path = world.folder.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A renewed one, for the steps.
fn renew(world: &mut World<'_>, authority: &Authority, common_name: &str) {
    let (certificate, key) = issue(authority, common_name, &NAMES);
    world.placeholders = vec![
        ("NEW_CERTIFICATE", file(world, "new.crt", &certificate)),
        ("NEW_KEY", file(world, "new.key", &key)),
        ("NEW_KEYSTORE", file(world, "new.pem", &format!("{key}{certificate}"))),
    ];
}

#[test]
fn a_postgres_certificate_that_ends_is_told_and_renewed() {
    let authority = authority("certificates of Postgres");
    let (certificate, key) = issue_for_days(&authority, "db.example", &NAMES, 10);
    let tls = Some(Tls { certificate, key, client_authority: None });
    let cluster = Cluster::start(&Options { tls, ..Options::default() }).unwrap();
    let stage = Stage::migrated(&cluster, "127.0.0.1:1", "certificates");
    let mut world = World::new(stage);
    renew(&mut world, &authority, "db.example");
    let [certificate, key] = ["ssl_cert_file", "ssl_key_file"].map(|setting| {
        let sql = world.stage.sql();
        let folder = sql.value("SHOW data_directory");
        Path::new(&folder).join(sql.value(&format!("SHOW {setting}"))).to_str().unwrap().to_owned()
    });
    world.placeholders.push(("CERTIFICATE_FILE", certificate.clone()));
    world.placeholders.push(("KEY_FILE", key.clone()));
    hold(&mut world, "postgres.certificate", "warn", "certificate `CN=db.example` expires on 2");

    // One that has expired, before a relay that looks at it.
    let root = file(&world, "root.crt", &authority.pem());
    let url = world.stage.database.address().url();
    let joint = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{joint}sslmode=verify-full&sslrootcert={root}");
    world.relay = world.relay.clone().set("source.url", &url);
    let (expired, expired_key) = issue_for_days(&authority, "db.example", &NAMES, -1);
    fs::write(&certificate, expired).unwrap();
    fs::write(&key, expired_key).unwrap();
    world.stage.sql().run("SELECT pg_reload_conf()");
    wait_until("the server to present it", || {
        told(&world, "postgres.certificate").status("postgres.certificate") == "fail"
    });
    let report = told(&world, "postgres");
    assert_eq!(report.status("postgres.reachable"), "fail", "{:?}", report.wrong());
    names_the_renewal(&report, "postgres.reachable", "CN=db.example", "pg_reload_conf");
    hold(&mut world, "postgres.certificate", "fail", "expired on 2");
    assert!(told(&world, "postgres.reachable").all_pass("postgres.reachable"));
}

#[test]
fn a_certificate_of_ours_for_postgres_that_ends_is_told_and_renewed() {
    let authority = authority("certificates of clients");
    let stage = Stage::migrated(postgres::installed(), "127.0.0.1:1", "certificate");
    let mut world = World::new(stage);
    renew(&mut world, &authority, "relay");
    for (days, status, words) in
        [(3, "warn", "`CN=relay` expires on 2"), (-1, "fail", "expired on 2")]
    {
        let (certificate, key) = issue_for_days(&authority, "relay", &[], days);
        let certificate = file(&world, "ours.crt", &certificate);
        let key = file(&world, "ours.key", &key);
        let relay = world.relay.clone();
        world.relay = relay.variable("PGSSLCERT", &certificate).variable("PGSSLKEY", &key);
        hold(&mut world, "postgres.client_certificate", status, words);
    }
}

fn encrypted(world: &World<'_>, root: &str) -> Relay {
    let kafka = world.own_kafka.as_ref().unwrap();
    world
        .stage
        .relay()
        .log_in(&kafka.tls_bootstrap(), ALLOWED_USER, PASSWORD)
        .property("security.protocol", "SASL_SSL")
        .property("sasl.mechanism", "SCRAM-SHA-512")
        .property("ssl.ca.location", root)
}

#[test]
fn a_brokers_certificate_that_ends_is_told_and_renewed() {
    let authority = authority("certificates of brokers");
    let issued = issue_for_days(&authority, "kafka.example", &NAMES, 10);
    let options = KafkaOptions { tls: Some(issued), ..KafkaOptions::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    let stage = Stage::migrated(postgres::installed(), &kafka.bootstrap(), "certificate");
    let keystore = kafka.keystore(0).to_str().unwrap().to_owned();
    let mut world = World { own_kafka: Some(kafka), ..World::new(stage) };
    renew(&mut world, &authority, "kafka.example");
    world.placeholders.push(("KEYSTORE_FILE", keystore.clone()));
    world.placeholders.push(("DIRECTORY", String::new()));
    let root = file(&world, "root.crt", &authority.pem());
    world.relay = encrypted(&world, &root);
    hold(&mut world, "kafka.certificate", "warn", "certificate `CN=kafka.example` expires on 2");

    // One that has expired: nobody gets in, and this says why.
    let (certificate, key) = issue_for_days(&authority, "kafka.example", &NAMES, -1);
    fs::write(&keystore, format!("{key}{certificate}")).unwrap();
    let kafka = world.own_kafka.as_mut().unwrap();
    kafka.kill_broker(0);
    kafka.start_broker(0);
    let report = told(&world, "kafka");
    assert_eq!(report.status("kafka.reachable"), "fail", "{:?}", report.wrong());
    names_the_renewal(&report, "kafka.reachable", "CN=kafka.example", "ssl.keystore.location");
    hold(&mut world, "kafka.certificate", "fail", "expired on 2");
    assert!(told(&world, "kafka.reachable").all_pass("kafka.reachable"));

    // Ours for it.
    let (certificate, key) = issue_for_days(&authority, "relay", &[], 5);
    let certificate = file(&world, "ours.crt", &certificate);
    let key = file(&world, "ours.key", &key);
    let relay = world.relay.clone().property("ssl.certificate.location", &certificate);
    world.relay = relay.property("ssl.key.location", &key);
    hold(&mut world, "kafka.client_certificate", "warn", "`CN=relay` expires on 2");
}
