//! Brokers that take tokens (SASL/OAUTHBEARER), checked by Kafka's own validator: renewals lose and repeat nothing,
//! and whatever the token endpoint does is waited for and told.

use std::sync::OnceLock;
use std::time::Duration;

use super::outbox::Outbox;
use crate::operate::Desk;
use crate::streams::{file_of, relay, stages, start};
use support::kafka::{self, Kafka};
use support::postgres;
use support::relay::Relay;
use support::token_provider::{CLIENT, Mood, SECRET, TokenProvider};
use support::topic;
use support::wait::{let_pass, wait_until};

/// Some renewals fit into a test.
const LIFETIME: Duration = Duration::from_secs(12);
/// What a test waits for to expire.
const SHORT_LIFETIME: Duration = Duration::from_secs(5);

struct Site {
    kafka: Kafka,
    provider: TokenProvider,
}

impl Site {
    fn start(lifetime: Duration) -> Option<Self> {
        let provider = TokenProvider::start(lifetime);
        let token_keys = Some(provider.keys_endpoint());
        let options = kafka::Options { sasl: true, token_keys, ..kafka::Options::default() };
        Some(Self { kafka: kafka::start(&options)?, provider })
    }

    fn log_in(&self, outbox: &Outbox) -> Relay {
        outbox
            .relay_to(&outbox.database.address(), &self.kafka.sasl_bootstrap())
            .set("kafka.oauth.method", "oidc")
            .set("kafka.oauth.endpoint", &self.provider.token_endpoint())
            .set("kafka.oauth.client_id", CLIENT)
            .set("kafka.oauth.client_secret", SECRET)
            .property("security.protocol", "SASL_PLAINTEXT")
    }
}

/// Of those who leave the provider in its mood.
fn shared() -> Option<&'static Site> {
    static SITE: OnceLock<Option<Site>> = OnceLock::new();
    SITE.get_or_init(|| Site::start(LIFETIME)).as_ref()
}

/// Exactly once, so that a repeat shows; and no line of the log at WARN, so that no session was started again.
#[test]
fn g6_tokens_are_renewed_within_a_session() {
    let Some(site) = shared() else { return };
    let outbox = Outbox::ready(postgres::installed(), "renewals");
    let relay = site.log_in(&outbox).set("kafka.delivery", "exactly_once");
    let running = relay.run();
    let before = site.provider.issued();
    let renewals = || site.provider.issued() - before;
    while renewals() < 4 {
        outbox.write();
        let_pass(Duration::from_millis(20), "some fifty rows a second");
    }
    running.stop();
    relay.run_once();
    outbox.assert_delivered_to(&site.kafka.bootstrap());
}

#[test]
fn every_command_logs_in_by_token() {
    let Some(site) = shared() else { return };
    let outbox = Outbox::ready(postgres::installed(), "commands");
    outbox.write();
    let relay = site.log_in(&outbox);
    relay.run_once();
    for arguments in [&["doctor", "--output", "json"][..], &["tail", &outbox.topic(), "--exit"]] {
        let outcome = relay.start(arguments).outcome();
        let said = outcome.log.join("\n");
        assert!(!said.contains("SASL") && !said.contains(SECRET), "{arguments:?}: {said}");
    }
    outbox.assert_delivered_to(&site.kafka.bootstrap());
}

/// Longer than a token lives: the brokers end the connections, and the relay waits.
#[test]
fn g1_a_token_endpoint_that_is_away_slow_or_wrong_is_waited_for() {
    let Some(site) = Site::start(SHORT_LIFETIME) else { return };
    let outbox = Outbox::ready(postgres::installed(), "moods");
    let relay = site
        .log_in(&outbox)
        .expect_log("no new token for the brokers")
        .allow_log("refuse")
        .allow_log("token")
        .allow_log("broker")
        .allow_log("kafka: ");
    let mut running = relay.run();
    for (mood, words) in [
        (Mood::Away, "HTTP status 503"),
        (Mood::Lying, "expired already"),
        (Mood::Silent, "timeout"),
    ] {
        outbox.write();
        site.provider.set(mood);
        running.wait_for_log(words);
        let_pass(SHORT_LIFETIME, "the token that is left expires");
        outbox.write();
        site.provider.set(Mood::Well);
        wait_until("the rows arrive", || {
            let there = topic::read(&site.kafka.bootstrap(), &[outbox.topic()]);
            there.len() >= outbox.written()
        });
    }
    running.stop();
    outbox.assert_delivered_to(&site.kafka.bootstrap());
}

/// The provider has another key, so that brokers refuse tokens which would have been good for an hour.
#[test]
fn a_token_that_the_brokers_refuse_is_fetched_again_before_it_expires() {
    let Some(mut site) = Site::start(Duration::from_hours(1)) else { return };
    let outbox = Outbox::ready(postgres::installed(), "refused_tokens");
    let running = site.log_in(&outbox).allow_log("").run();
    let arrive = |kafka: &Kafka| {
        wait_until("the rows arrive", || {
            topic::read(&kafka.bootstrap(), &[outbox.topic()]).len() >= outbox.written()
        });
    };
    outbox.write();
    arrive(&site.kafka);
    site.provider.change_key();
    // The brokers fetch the keys when they start.
    site.kafka.kill_broker(0);
    site.kafka.start_broker(0);
    outbox.write();
    arrive(&site.kafka);
    running.stop();
    outbox.assert_delivered_to(&site.kafka.bootstrap());
}

/// Passwords and the client's secret are in files that the configuration names; one is replaced while rows flow.
#[test]
fn streams_share_one_token_and_have_their_secrets_from_files() {
    let Some(site) = Site::start(Duration::from_hours(1)) else { return };
    let streams = stages(postgres::installed(), &site.kafka.bootstrap(), &["one", "two", "three"]);
    let desk = Desk::new();
    let secret = |name: &str, text: &str| {
        let path = desk.file().with_file_name(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let top = format!(
        "[kafka]\nbrokers = [\"{}\"]\n[kafka.properties]\n\"security.protocol\" = \"SASL_PLAINTEXT\"\n[kafka.oauth]\n\
         method = \"oidc\"\nendpoint = \"{}\"\nclient_id = \"{CLIENT}\"\nclient_secret_file = \"{}\"\n",
        site.kafka.sasl_bootstrap(),
        site.provider.token_endpoint(),
        secret("client", SECRET)
    );
    let mut text = file_of(&top, &streams);
    let role = support::unique("tenant");
    let address = streams[0].1.database.create_role(&role, "SUPERUSER REPLICATION");
    let sql = streams[0].1.sql();
    let log_in = |password: &str| {
        sql.run(&format!("ALTER ROLE {role} PASSWORD '{password}'"));
        secret("url", &address.clone().login_as(&role, Some(password)).url())
    };
    let url = streams[0].1.database.address().url();
    text = text.replace(
        &format!("source.url = \"{url}\""),
        &format!("source.url_file = \"{}\"", log_in("before")),
    );
    desk.write(&text);
    let relay = relay(&streams).unset("kafka.brokers").allow_log("");
    let running = start(&relay, &desk.file(), &["run"]);
    for (_, stage) in &streams {
        stage.insert("A", 5);
        stage.wait_for_records(5);
    }
    assert_eq!(site.provider.issued(), 1, "tokens for three streams");
    log_in("after");
    sql.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    ));
    streams[0].1.insert("A", 5);
    streams[0].1.wait_for_records(10);
    running.stop();
}
