//! Brokers that do not answer, do not let us in, or do not have the topic.

use std::time::{Duration, Instant};

use postrider::sandbox::port;

use super::attempt::{CANARY, assert_no_secret, is_warning, refused};
use super::outbox::Outbox;
use support::kafka::{self, ALLOWED_USER, DENIED_USER, Kafka, PASSWORD};
use support::relay::{Outcome, Relay, Running};
use support::wait::stays;
use support::{postgres, topic};

fn log_in(outbox: &Outbox, kafka: &Kafka, user: &str, password: &str) -> Relay {
    outbox
        .relay_to(&outbox.database.address(), &kafka.sasl_bootstrap())
        .log_in(&kafka.sasl_bootstrap(), user, password)
        // How long a topic may be unknown before that is an error; 30 s would make a long test.
        .property("topic.metadata.propagation.max.ms", "500")
        .set("retry.max", "500ms")
        // A busy machine takes longer than the ten seconds after which a warning comes again.
        .set("log.repeat_interval", "1h")
        // That the topic for dead letters is missing or forbidden is told sooner or later.
        .allow_log("dead-letters")
}

fn nowhere() -> String {
    format!("127.0.0.1:{}", port::free().unwrap())
}

/// What a stop says that leaves records unconfirmed, and the help that goes with it.
const OWES: &str = "\"code\":\"PR-X011\"";
const OWES_HELP: &str = "\"help\":\"nothing is lost";
/// Time for several attempts, each half a second after the one before at the latest: a warning that came
/// with each would be seen.
const RETRIED: Duration = Duration::from_secs(3);

/// Lets it retry for a while after all warnings and stops it; the only ones are `warnings`, each once.
fn stopped_after(mut running: Running, warnings: &[&str]) -> Outcome {
    // Some come from a look beside the sessions, which asks again after five seconds.
    for words in warnings {
        if !running.has_logged(words) {
            running.wait_for_log(words);
        }
    }
    stays("the relay tries again", RETRIED, || !running.has_ended());
    running.signal(rustix::process::Signal::TERM);
    let outcome = running.outcome();
    assert_no_secret(&outcome);
    // A stop that leaves records unconfirmed says so; before any was sent there are none.
    let owes = outcome.log.iter().any(|line| line.contains(OWES));
    let wanted = if owes { 69 } else { 0 };
    assert_eq!(outcome.status.code(), Some(wanted), "{}", outcome.log.join("\n"));
    assert_warnings(&outcome.log, warnings);
    outcome
}

/// Exactly these warnings, each once and with its help.
fn assert_warnings(log: &[String], warnings: &[&str]) {
    let found: Vec<serde_json::Value> = log
        .iter()
        .filter(|line| !line.starts_with(OWES) && !line.starts_with(OWES_HELP))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .filter(is_warning)
        .collect();
    assert_eq!(found.len(), warnings.len(), "{found:#?}");
    for words in warnings {
        let matching = found.iter().filter(|line| line["message"].to_string().contains(words));
        let [line] = matching.collect::<Vec<_>>()[..] else { panic!("`{words}`: {found:#?}") };
        assert_ne!(line["help"].as_str().unwrap_or_default(), "", "no help: {line:#}");
    }
}

#[test]
fn brokers_that_never_answer_end_a_relay_that_may_not_wait_for_ever() {
    let outbox = Outbox::ready(postgres::installed(), "nobody");
    outbox.write();
    let relay = outbox.relay_to(&outbox.database.address(), &nowhere());
    let relay = relay.set("retry.give_up_after", "2s");
    let begun = Instant::now();
    for arguments in [&["run"][..], &["run", "--once"]] {
        let refusal = refused(&relay, arguments, 69);
        assert_eq!(refusal.code, "PR-K020", "{}", refusal.text);
        for words in ["no Kafka broker has answered", "kafka.brokers", "nothing is lost"] {
            assert!(refusal.text.contains(words), "{}", refusal.text);
        }
        assert_eq!(refusal.warnings.len(), 1, "{:#?}", refusal.warnings);
    }
    assert!(begun.elapsed() < Duration::from_mins(1));
    outbox.assert_delivered_by(&outbox.relay());
}

#[test]
fn brokers_that_do_not_answer_are_waited_for() {
    let outbox = Outbox::ready(postgres::installed(), "patience");
    outbox.write();
    let relay = outbox.relay_to(&outbox.database.address(), &nowhere()).set("shutdown.grace", "0s");
    let mut running = relay.run();
    running.wait_for_log("cannot reach Kafka");
    stays("the relay waits", RETRIED, || !running.has_ended());
    running.signal(rustix::process::Signal::TERM);
    let outcome = running.outcome();
    // Nothing of the row was sent, so that nothing is unconfirmed: the slot keeps it.
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.log.join("\n"));
    assert_warnings(&outcome.log, &["cannot reach Kafka"]);
    outbox.assert_delivered_by(&outbox.relay());
}

#[test]
fn a_password_that_the_brokers_refuse_is_a_definite_error() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "sasl");
    outbox.write();
    let good = log_in(&outbox, kafka, ALLOWED_USER, PASSWORD);
    for (user, password) in [(ALLOWED_USER, CANARY), ("nobody", PASSWORD)] {
        let refusal = refused(&log_in(&outbox, kafka, user, password), &["run"], 77);
        refusal.assert("PR-K003", &["refused our credentials", "sasl.password"]);
    }
    topic::create(&kafka.bootstrap(), &outbox.topic(), 1, &[]);
    good.run_once();
    outbox.assert_delivered_to(&kafka.bootstrap());
}

/// Whichever command meets it: a supervisor that starts it again helps nobody.
#[test]
fn a_password_that_the_brokers_refuse_is_one_error_in_every_command() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "everywhere");
    let relay = log_in(&outbox, kafka, ALLOWED_USER, CANARY);
    let keeping = relay.clone().set("kafka.delivery", "exactly_once");
    for (relay, arguments) in [
        (&relay, &["tail", "orders", "-e"][..]),
        (&relay, &["dead-letters", "list"]),
        (&relay, &["dead-letters", "retry", "--code", "refused"]),
        (&relay, &["adopt"]),
        (&keeping, &["adopt"]),
        (&relay.clone().set("progress.at_least_once", "true"), &["run"]),
    ] {
        let refusal = refused(relay, arguments, 77);
        assert_eq!(refusal.code, "PR-K003", "{arguments:?}: {}", refusal.text);
        assert!(refusal.text.contains("sasl.password"), "{arguments:?}: {}", refusal.text);
    }
    // It says what it has made before.
    let outcome = relay.start(&["setup", "--topics=orders", "--output", "json"]).outcome();
    assert_eq!(outcome.status.code(), Some(77), "{}", outcome.log.join("\n"));
    assert!(outcome.log.iter().any(|line| line.contains("PR-K003")), "{:?}", outcome.log);
    assert_no_secret(&outcome);
}

/// The progress topic is made for a stream that begins, not for a name that was mistyped.
#[test]
fn a_mistyped_slot_leaves_no_topic_behind() {
    let Some(kafka) = kafka::shared() else { return };
    let outbox = Outbox::ready(postgres::installed(), "mistyped");
    let relay = outbox.relay_to(&outbox.database.address(), &kafka.bootstrap());
    let relay = relay.set("kafka.delivery", "exactly_once").set("source.slot", "no_such_slot");
    let progress = format!("{}progress", outbox.topic());
    refused(&relay.set("progress.topic", &progress), &["run"], 78).assert("PR-P039", &["right?"]);
    assert!(topic::names(&kafka.bootstrap(), &progress).is_empty());
}

#[test]
fn a_login_at_a_listener_that_takes_none_is_named() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "nologin");
    outbox.write();
    for delivery in ["at_least_once", "exactly_once"] {
        let relay = log_in(&outbox, kafka, ALLOWED_USER, PASSWORD)
            .set("kafka.brokers", &kafka.bootstrap())
            .set("kafka.delivery", delivery)
            .unprepared();
        let refusal = refused(&relay, &["run"], 78);
        refusal
            .assert("PR-K009", &["listener accepts no login (SASL)", "PLAINTEXT", "kafka.brokers"]);
        assert!(!refusal.text.contains("credentials"), "{}", refusal.text);
    }
}

#[test]
fn a_login_that_is_not_used_is_told() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "unused");
    let relay = log_in(&outbox, kafka, ALLOWED_USER, PASSWORD)
        .property("security.protocol", "PLAINTEXT")
        .expect_log("recommend setting `security.protocol` to SASL_SSL")
        .expect_log("cannot reach Kafka");
    outbox.write();
    let mut running = relay.set("shutdown.grace", "0s").run();
    running.wait_for_log("it may require a login (SASL)");
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
    topic::create(&kafka.bootstrap(), &outbox.topic(), 1, &[]);
    log_in(&outbox, kafka, ALLOWED_USER, PASSWORD).run_once();
    outbox.assert_delivered_to(&kafka.bootstrap());
}

#[test]
fn a_topic_nobody_created_is_waited_for() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "unknown");
    let relay = log_in(&outbox, kafka, ALLOWED_USER, PASSWORD).set("route.missing_topic", "wait");
    outbox.write();
    let warning = format!("topic `{}` does not exist", outbox.topic());
    let dead_letters = "dead-letters` does not exist";
    let outcome = stopped_after(relay.run(), &[&warning, dead_letters]);
    assert!(outcome.log.iter().any(|line| line.contains("kafka-topics.sh")));
    // And without being stopped.
    let mut running = relay.expect_log(&warning).run();
    running.wait_for_log(&warning);
    topic::create(&kafka.bootstrap(), &outbox.topic(), 1, &[]);
    running.wait_for_log("caught up");
    running.stop();
    outbox.assert_delivered_to(&kafka.bootstrap());
}

#[test]
fn waiting_for_a_topic_repeats_nothing_of_the_others() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "others");
    let elsewhere = outbox.topic().replace("placed", "paid");
    topic::create(&kafka.bootstrap(), &elsewhere, 3, &[]);
    let write_elsewhere = || {
        outbox.run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 'order', n % 10, 'paid', to_jsonb(n) FROM generate_series(1, 100) AS n",
        );
    };
    write_elsewhere();
    outbox.write();
    write_elsewhere();
    let warning = format!("topic `{}` does not exist", outbox.topic());
    let relay = log_in(&outbox, kafka, ALLOWED_USER, PASSWORD).set("route.missing_topic", "wait");
    for _ in 0..2 {
        let mut running = relay.clone().expect_log(&warning).run();
        running.wait_for_log(&warning);
        running.stop();
    }
    topic::create(&kafka.bootstrap(), &outbox.topic(), 1, &[]);
    relay.run_once();
    outbox.assert_delivered_to(&kafka.bootstrap());
    assert_eq!(topic::read(&kafka.bootstrap(), &[elsewhere]).len(), 200);
}

#[test]
fn a_topic_we_may_not_write_to_is_waited_for() {
    let Some(kafka) = kafka::strict() else { return };
    let outbox = Outbox::ready(postgres::installed(), "denied");
    topic::create(&kafka.bootstrap(), &outbox.topic(), 1, &[]);
    outbox.write();
    let relay = log_in(&outbox, kafka, DENIED_USER, PASSWORD).set("route.missing_topic", "wait");
    // The brokers tell it of the topic, of producing at all, or of both.
    let relay = relay.expect_log("kafka-acls.sh");
    let mut running = relay.run();
    running.wait_for_log("kafka-acls.sh");
    stays("the relay waits", RETRIED, || !running.has_ended());
    running.signal(rustix::process::Signal::TERM);
    // Nothing was sent.
    assert_eq!(running.wait().code(), Some(0));
    let refusal = refused(&relay.set("retry.give_up_after", "1s"), &["run"], 77);
    assert!(refusal.text.contains("kafka-acls.sh"), "{}", refusal.text);
    log_in(&outbox, kafka, ALLOWED_USER, PASSWORD).run_once();
    outbox.assert_delivered_to(&kafka.bootstrap());
}

/// A name with two addresses of which the first is dead, as `localhost` is where the broker listens
/// on IPv4 only.
#[test]
fn a_normal_start_warns_of_nothing() {
    for name in ["localhost", "127.0.0.1"] {
        let outbox = Outbox::ready(postgres::installed(), "normal");
        outbox.write();
        let bootstrap = outbox.bootstrap().replace("127.0.0.1", name);
        let relay = outbox.relay_to(&outbox.database.address(), &bootstrap);
        outbox.assert_delivered_by(&relay);
    }
}
