//! Getting in to Postgres, or not: passwords, TLS, names.

use super::attempt::{CANARY, assert_no_secret, refused};
use super::outbox::Outbox;
use support::postgres;
use support::relay::Relay;
use support::secured::{PASSWORD, SecuredServer, secured_server};

/// A relay that logs in as `ROLE_role` to the outbox's database.
fn relay(secured: &SecuredServer, outbox: &Outbox, role: &str, extra: &str) -> Relay {
    let address = secured.address(role, &format!("dbname={} {extra}", outbox.database.name()));
    outbox.relay().set("source.url", &address)
}

#[test]
fn every_way_in_delivers() {
    let secured = secured_server();
    for (role, extra) in [
        ("scram", ""),
        ("scram", "sslmode=require"),
        ("scram", "sslmode=verify-ca sslrootcert=$root.crt"),
        ("scram", "sslmode=verify-full sslrootcert=$root.crt"),
        ("scram", "sslmode=verify-full sslrootcert=$root.crt channel_binding=require"),
        ("md5", "sslmode=require"),
        ("password", "sslmode=require"),
        (
            "cert",
            "sslmode=verify-full sslrootcert=$root.crt sslcert=$client.crt sslkey=$client.key",
        ),
        ("plain", "sslmode=prefer"),
    ] {
        let outbox = Outbox::ready(&secured.cluster, "way_in");
        outbox.write();
        outbox.assert_delivered_by(&relay(secured, &outbox, role, extra));
    }
}

/// A way in that is barred: role, further parameters, exit code, code, words.
type Barred = (&'static str, &'static str, i32, &'static str, &'static [&'static str]);

const BARRED: [Barred; 15] = [
    (
        "scram",
        "password=canary-in-a-coal-mine",
        77,
        "PR-P021",
        &["scram_role", "the password is wrong"],
    ),
    (
        "md5",
        "password=canary-in-a-coal-mine",
        77,
        "PR-P021",
        &["md5_role", "the password is wrong"],
    ),
    (
        "scram",
        "password=''",
        77,
        "PR-P006",
        &["asks for a password for user `scram_role`", "PGPASSWORD"],
    ),
    (
        "scram",
        "dbname=nowhere",
        78,
        "PR-P022",
        &["database \"nowhere\" does not exist", "PGDATABASE"],
    ),
    ("stranger", "", 77, "PR-P021", &["stranger_role"]),
    ("reject", "", 77, "PR-P021", &["pg_hba.conf"]),
    ("plain", "sslmode=require", 77, "PR-P021", &["pg_hba.conf"]),
    (
        "scram",
        "sslmode=verify-full sslrootcert=$root.crt host=other.example",
        78,
        "PR-P004",
        &["other.example", "verify-full"],
    ),
    (
        "scram",
        "sslmode=verify-ca sslrootcert=$stranger.crt",
        78,
        "PR-P004",
        &["certificate", "sslrootcert must hold the authority"],
    ),
    (
        "scram",
        "sslmode=verify-full",
        78,
        "PR-P005",
        &["no root certificate is given", "sslrootcert"],
    ),
    (
        "scram",
        "sslmode=verify-full sslrootcert=$missing.crt",
        78,
        "PR-P005",
        &["cannot use sslrootcert", "missing.crt"],
    ),
    ("cert", "sslmode=require", 77, "PR-P021", &["certificate", "sslcert"]),
    (
        "md5",
        "channel_binding=require",
        77,
        "PR-P007",
        &["channel_binding=require", "scram-sha-256"],
    ),
    (
        "md5",
        "require_auth=scram-sha-256",
        77,
        "PR-P007",
        &["asks for an MD5 hash", "require_auth=scram-sha-256", "pg_hba.conf"],
    ),
    ("trust", "require_auth=!none", 77, "PR-P007", &["asks for no authentication", "pg_hba.conf"]),
];

#[test]
fn every_barred_way_in_is_refused_and_nothing_is_lost() {
    let secured = secured_server();
    let outbox = Outbox::ready(&secured.cluster, "barred");
    outbox.write();
    for (role, extra, exit, code, words) in BARRED {
        let relay = relay(secured, &outbox, role, extra);
        let refusal = refused(&relay, &["run"], exit);
        refusal.assert(code, words);
    }
    outbox.assert_delivered_by(&relay(secured, &outbox, "scram", ""));
}

#[test]
fn a_server_without_tls_is_refused_where_tls_is_demanded() {
    let outbox = Outbox::ready(postgres::installed(), "bare");
    outbox.write();
    let url = outbox.database.address().url();
    for mode in ["require", "verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt"] {
        let relay = outbox.relay().set("source.url", &format!("{url}?sslmode={mode}"));
        let words = ["does not offer TLS, and sslmode demands it", "ssl = on"];
        refused(&relay, &["run"], 78).assert("PR-P003", &words);
    }
    outbox.assert_delivered_by(&outbox.relay());
}

/// `-vv` and every debug line of the Kafka client: what is logged then has no secret either.
#[test]
fn the_most_talkative_log_keeps_secrets() {
    let secured = secured_server();
    let outbox = Outbox::ready(&secured.cluster, "talkative");
    outbox.write();
    for password in [CANARY, PASSWORD] {
        let relay = relay(secured, &outbox, "scram", "")
            .variable("PGPASSWORD", password)
            .property("sasl.username", "nobody")
            .property("sasl.password", CANARY)
            .property("debug", "all");
        let password = password.replace('\'', "\\'");
        let address = secured.address("scram", "sslmode=require");
        let wrong = relay.clone().set("source.url", &format!("{address} password='{password}'"));
        for relay in [relay, wrong] {
            let outcome = relay.start(&["run", "--once", "-vv"]).outcome();
            assert_no_secret(&outcome);
            assert!(outcome.log.iter().any(|line| line.contains("DEBUG")), "not talkative");
        }
    }
}

/// A log in JSON stays one, to its last line.
#[test]
fn every_line_of_a_log_in_json_is_json() {
    let outbox = Outbox::ready(postgres::installed(), "lines");
    outbox.run("ALTER PUBLICATION postrider DROP TABLE outbox");
    let wrong = outbox.relay().set("source.slot", "no slot");
    let usage: &[&str] = &["run", "--no-such-flag"];
    for (relay, arguments, exit, code) in [
        (outbox.relay(), &["run"][..], 78, "PR-P036"),
        (wrong, &["run"], 78, "PR-C005"),
        (outbox.relay(), usage, 2, "PR-X004"),
    ] {
        let outcome = relay.start(arguments).outcome();
        let parsed = outcome.log.iter().map(|line| serde_json::from_str(line));
        let lines: Vec<serde_json::Value> = parsed.collect::<Result<_, _>>().unwrap();
        let last = lines.last().unwrap();
        assert_eq!((&last["level"], &last["code"]), (&"ERROR".into(), &code.into()), "{last}");
        assert_eq!(last["exit_code"], exit, "{last}");
        assert_eq!(outcome.status.code(), Some(exit));
        assert!(last["message"].as_str().is_some_and(|it| !it.is_empty()), "{last}");
    }
}

/// For a person, not for a script: the same in words.
#[test]
fn a_person_reads_what_why_and_help() {
    let outbox = Outbox::ready(postgres::installed(), "person");
    outbox.run("ALTER PUBLICATION postrider DROP TABLE outbox");
    let outcome = outbox.relay().unset("log.format").start(&["run"]).outcome();
    let text = outcome.log.join("\n");
    assert!(text.contains("error[PR-P036]: publication `postrider` does not contain"), "{text}");
    assert!(text.contains("\n  help: ALTER PUBLICATION"), "{text}");
}
