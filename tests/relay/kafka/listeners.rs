//! Listeners of real brokers that want something else than they are sent.

use std::time::{Duration, Instant};

use crate::stage::Stage;
use support::kafka::{self, Options};
use support::postgres;
use support::relay_http::RelayHttp;
use support::secured::{authority, issue};

/// How soon the log names what is wrong.
const NAMED: Duration = Duration::from_secs(40);

#[test]
fn a_listener_that_wants_tls_or_a_login_is_named_within_seconds() {
    let root = authority("listeners' authority");
    let tls = Some(issue(&root, "localhost", &["localhost", "127.0.0.1"]));
    let Some(kafka) = kafka::start(&Options { sasl: true, tls, ..Options::default() }) else {
        return;
    };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "listeners");
    for delivery in ["at_least_once", "exactly_once"] {
        for (brokers, words, help) in [
            (kafka.tls_bootstrap(), "it may require TLS", "security.protocol = \\\"SSL\\\""),
            (kafka.sasl_bootstrap(), "require a login (SASL)", "SASL_PLAINTEXT"),
        ] {
            let relay =
                stage.relay().set("kafka.delivery", delivery).set("kafka.brokers", &brokers);
            let relay =
                relay.unprepared().expect_log(words).allow_log("").set("shutdown.grace", "0s");
            let begun = Instant::now();
            let mut running = relay.run();
            let line = running.wait_for_log(words);
            let took = begun.elapsed();
            eprintln!("{delivery}: named after {took:?}");
            assert!(line.contains(help), "{line}");
            assert!(took < NAMED, "{took:?}");
            running.signal(rustix::process::Signal::TERM);
            assert_eq!(running.wait().code(), Some(0));
        }
    }
}

/// Nothing answers, and nobody hangs up.
#[test]
fn a_broker_that_falls_silent_makes_the_relay_unready_until_it_speaks_again() {
    let Some(kafka) = kafka::start(&Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "frozen");
    let oracle = stage.oracle();
    let mut running = stage.relay().allow_log("").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 10);
    stage.wait_for_records(10);
    face.wait_ready(200);
    kafka.freeze_broker(0);
    let begun = Instant::now();
    stage.insert("A", 10);
    let health = face.wait_ready(503);
    eprintln!("unready after {:?}: {health}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    assert_eq!(face.get("/livez").0, 200);
    kafka.resume_broker(0);
    face.wait_ready(200);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}
