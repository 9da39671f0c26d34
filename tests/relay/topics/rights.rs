//! Rights at Kafka's brokers that a relay lacks, with real access lists.

use std::collections::BTreeSet;

use crate::stage::Stage;
use support::acl::{May, On, grant};
use support::kafka::{self, DENIED_USER, Kafka, PASSWORD};
use support::relay::{Outcome, Relay};
use support::relay_http::RelayHttp;
use support::{postgres, topic, wait_for};

const TO_WRITE: [May; 2] = [May::Write, May::Describe];

/// A stage with topics `A`, `B` and that for dead letters, and a relay that has no right at all.
fn stage(kafka: &Kafka, delivery: &str) -> (Stage, Relay) {
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "rights");
    for name in ["A", "B", "dead-letters"] {
        topic::create(stage.bootstrap(), &stage.topic(name), 1, &[]);
    }
    // As an administrator does it for a relay that gets few rights.
    stage.relay().set("kafka.delivery", delivery).prepare();
    let relay = stage
        .relay()
        .set("kafka.delivery", delivery)
        .log_in(&kafka.sasl_bootstrap(), DENIED_USER, PASSWORD)
        .unprepared();
    (stage, relay)
}

/// What a relay needs, but for one right or the other.
fn grant_all(stage: &Stage, delivery: &str) {
    for name in ["A", "dead-letters"] {
        grant(stage.bootstrap(), DENIED_USER, On::Topic, &stage.topic(name), &TO_WRITE);
    }
    if delivery == "exactly_once" {
        let progress = format!("postrider.progress.{}", stage.slot());
        let rights = [May::Write, May::Describe, May::Read, May::Create];
        grant(stage.bootstrap(), DENIED_USER, On::Topic, &progress, &rights);
    }
}

/// Rows of which there is a record in this topic.
fn count(stage: &Stage, name: &str) -> usize {
    let (wanted, records) = (stage.topic(name), stage.records());
    let records = records.iter().filter(|record| record.topic == wanted);
    records.filter_map(|record| record.header("id")).collect::<BTreeSet<_>>().len()
}

/// A relay without DESCRIBE_CONFIGS, too.
#[test]
fn g4_rows_for_a_topic_without_the_right_to_write_become_dead_letters() {
    let Some(kafka) = kafka::strict() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let (stage, relay) = stage(kafka, delivery);
        let oracle = stage.oracle();
        grant_all(&stage, delivery);
        if delivery == "exactly_once" {
            let id = stage.transactional_id();
            grant(stage.bootstrap(), DENIED_USER, On::TransactionalId, &id, &TO_WRITE);
        }
        // It may see the topic, and not write to it.
        grant(stage.bootstrap(), DENIED_USER, On::Topic, &stage.topic("B"), &[May::Describe]);
        let relay = relay.expect_log("became a dead letter").expect_log("kafka-acls.sh");
        let mut running = relay.allow_log("trying again").allow_log("WRITE").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        for _ in 0..20 {
            stage.insert("A", 1);
            stage.insert("B", 1);
        }
        wait_for("records and dead letters", || {
            (count(&stage, "A") == 20 && count(&stage, "dead-letters") == 20).then_some(())
        });
        let (_, health) = face.probe("/readyz");
        assert!(health.to_string().contains(&stage.topic("B")), "{health}");
        running.stop();
        let letters = stage.topic("dead-letters");
        for letter in stage.records().iter().filter(|record| record.topic == letters) {
            assert_eq!(
                letter.header("postrider-error-code"),
                Some("forbidden_topic"),
                "{letter:?}"
            );
        }
        stage.verdict(&oracle, &[]).assert_at_least_once();
    }
}

/// It is asked for again, as every right is, and the log says which.
#[test]
fn g6_a_transactional_id_without_the_right_to_it_is_named_and_used_once_it_is_granted() {
    let Some(kafka) = kafka::strict() else { return };
    let (stage, relay) = stage(kafka, "exactly_once");
    let oracle = stage.oracle();
    grant_all(&stage, "exactly_once");
    stage.insert("A", 3);
    let id = stage.transactional_id();
    let mut running = relay.expect_log("not authorised to use transactional id").run();
    let warning = running.wait_for_log("not authorised to use transactional id");
    assert!(warning.contains(&format!("--transactional-id '{id}'")), "{warning}");
    assert_eq!(stage.records().len(), 0);
    grant(stage.bootstrap(), DENIED_USER, On::TransactionalId, &id, &TO_WRITE);
    stage.wait_for_records(3);
    running.stop();
    stage.verdict(&oracle, &[]).assert_exactly_once();
    let refusal = relay_without_right(kafka);
    assert_eq!(refusal.status.code(), Some(77), "{:#?}", refusal.log);
}

/// One that may not retry for ever.
fn relay_without_right(kafka: &Kafka) -> Outcome {
    let (stage, relay) = stage(kafka, "exactly_once");
    grant_all(&stage, "exactly_once");
    relay.set("retry.give_up_after", "1s").run().outcome()
}
