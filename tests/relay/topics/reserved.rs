//! Topics that no row may choose: the relay's own, other relays', Kafka's.

use crate::stage::Stage;
use support::topic::Stored;
use support::{kafka, postgres, topic};

/// Rows for these topics, each between two good ones, with the key that the stream's progress has.
fn attack(stage: &Stage, topics: &[String]) {
    let key = "(SELECT system_identifier || '/' || current_database() || '/' || current_database() \
               FROM pg_control_system())";
    for topic in topics {
        stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES
                 ('t', 'k', '{good}', '1'), ('t', {key}, '{topic}', '{{\"version\":1}}'),
                 ('t', 'k', '{good}', '2')",
            good = stage.topic("A")
        ));
    }
}

fn letters(stage: &Stage) -> Vec<Stored> {
    topic::read(stage.bootstrap(), &[stage.topic("dead-letters")])
}

#[test]
fn g4_g6_a_row_for_a_reserved_topic_is_a_dead_letter_and_forges_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "reserved");
        let oracle = stage.oracle();
        let own = format!("postrider.progress.{}", stage.slot());
        let others = ["__consumer_offsets", "__transaction_state", "postrider.progress.another"];
        let mut topics = vec![own.clone(), own.replace('.', "_"), stage.topic("dead-letters")];
        topics.extend(others.map(str::to_owned));
        let relay = stage.relay().set("route.topic", "${routedByValue}");
        let relay = relay.set("kafka.delivery", delivery).set("progress.at_least_once", "true");
        let relay = relay.expect_log("became a dead letter");
        // The second start reads the progress that the first one left.
        for run in 1..=2 {
            attack(&stage, &topics);
            relay.run_once();
            let letters = letters(&stage);
            assert_eq!(letters.len(), run * topics.len(), "{delivery}");
            for letter in &letters {
                assert_eq!(letter.header("postrider-error-code"), Some("invalid_topic"));
            }
        }
        stage.verdict(&oracle, &[]).assert_exactly_once();
        let progress = topic::read(stage.bootstrap(), &[own]);
        let rows = progress.iter().filter(|record| record.header("id").is_some()).count();
        assert_eq!(rows, 0, "{delivery}: {progress:?}");
        assert!(topic::names(stage.bootstrap(), "postrider.progress.another").is_empty());
    }
}

#[test]
fn g4_rows_go_to_topics_that_are_allowed_and_no_others() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "allowed");
    let allowed = format!("{},{}", stage.topic("A"), stage.topic("shop.*"));
    let relay = stage.relay().set("route.topics_allowed", &allowed);
    let relay = relay.expect_log("became a dead letter");
    for topic in ["A", "AB", "shop.x", "shop"] {
        stage.insert(topic, 1);
    }
    relay.run_once();
    let letters = letters(&stage);
    let mut meant: Vec<&str> =
        letters.iter().map(|letter| letter.header("postrider-topic").unwrap()).collect();
    meant.sort_unstable();
    assert_eq!(meant, [stage.topic("AB"), stage.topic("shop")]);

    // A retry leaves them where they are, unless it is told where to; but not to any place.
    let retry = |to: &[&str]| {
        let words = [&["dead-letters", "retry", "--execute"], to].concat();
        relay.start(&words).outcome()
    };
    assert_eq!(retry(&[]).status.code(), Some(1));
    assert!(topic::names(stage.bootstrap(), &stage.topic("AB")).is_empty());
    for reserved in ["__consumer_offsets", "postrider.progress.x"] {
        let outcome = retry(&["--to", reserved]);
        assert_eq!(outcome.status.code(), Some(2), "{:?}", outcome.log);
    }
    topic::create(stage.bootstrap(), &stage.topic("repaired"), 1, &[]);
    assert!(retry(&["--to", &stage.topic("repaired")]).status.success());
    assert_eq!(topic::read(stage.bootstrap(), &[stage.topic("repaired")]).len(), 2);
}
