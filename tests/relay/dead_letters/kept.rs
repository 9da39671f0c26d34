//! What a dead letter keeps of a row.

use postrider::route::{ERROR_CODE_HEADER, ERROR_HEADER};

use crate::stage::Stage;
use support::topic::Stored;
use support::{kafka, postgres, topic};

/// So many bytes that do not compress.
fn random(bytes: usize) -> String {
    let pieces = bytes / 32;
    format!(
        "(SELECT to_jsonb(string_agg(md5(random()::text || n), '')) \
         FROM generate_series(1, {pieces}) AS n)"
    )
}

fn insert(stage: &Stage, event_type: &str, payload: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', 'k', '{event_type}', {payload})"
    ));
}

fn letters(stage: &Stage) -> Vec<Stored> {
    let topic = stage.topic("dead-letters");
    stage.records().into_iter().filter(|record| record.topic == topic).collect()
}

fn value(letter: &Stored) -> &[u8] {
    letter.value.as_deref().unwrap()
}

/// Its size is that before compression, so that the topic might have taken it.
#[test]
fn g4_a_row_that_is_not_sent_for_its_size_keeps_its_body() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "unsent");
        let name = stage.topic("A");
        topic::create(&kafka.bootstrap(), &name, 1, &[("max.message.bytes", "20000")]);
        let relay = stage.relay().set("kafka.delivery", delivery).allow_log("refused a batch");
        let relay = relay.allow_log("takes records of at most").expect_log("became a dead letter");
        for _ in 0..2 {
            insert(&stage, "A", &random(60_000));
        }
        insert(&stage, "A", "to_jsonb(repeat('compressible', 8000))");
        insert(&stage, "A", "'\"small\"'");
        let running = relay.run();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let letters = letters(&stage);
        let (unsent, refused): (Vec<_>, Vec<_>) = letters.iter().partition(|letter| {
            letter.header(ERROR_HEADER).is_some_and(|reason| reason.contains("it was not sent"))
        });
        assert!(refused.len() >= 2, "{delivery}: {}", refused.len());
        for letter in refused {
            assert_eq!(letter.header(ERROR_CODE_HEADER), Some("too_large"), "{delivery}");
        }
        let [unsent, ..] = unsent.as_slice() else { panic!("{delivery}: it was sent") };
        assert_eq!(unsent.header(ERROR_CODE_HEADER), Some("refused"), "{delivery}");
        assert_eq!(value(unsent).len(), 8_000 * "compressible".len() + 2, "{delivery}");

        let retry = ["dead-letters", "retry", "--code", "refused", "--execute"];
        let outcome = stage.relay().start(&retry).outcome();
        assert!(outcome.status.success(), "{delivery}: {}", outcome.stdout);
        let stored = stage.records();
        let again =
            stored.iter().filter(|record| record.topic == name && record.value == unsent.value);
        assert_eq!(again.count(), 1, "{delivery}: the topic takes it");
    }
}

/// A row that cannot be routed and that the dead-letter topic finds too large, too.
#[test]
fn g4_a_letter_too_large_for_its_topic_is_cut_and_stops_nobody() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "cut");
        let settings = [("max.message.bytes", "20000")];
        topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 1, &settings);
        stage.insert("A", 3);
        for _ in 0..5 {
            insert(&stage, "not a topic", &random(60_000));
        }
        insert(&stage, "not a topic", "'\"small\"'");
        stage.insert("A", 3);
        let relay = stage.relay().set("kafka.delivery", delivery).allow_log("refused a batch");
        let relay = relay.allow_log("takes records of at most").expect_log("became a dead letter");
        let running = relay.run();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let (mut cut, mut whole) = (0, 0);
        for letter in letters(&stage) {
            assert_eq!(letter.header(ERROR_CODE_HEADER), Some("invalid_topic"), "{delivery}");
            let note: serde_json::Value = serde_json::from_slice(value(&letter)).unwrap();
            if note["size"] == 60_002 {
                assert_eq!(note["sha256"].as_str().map(str::len), Some(64), "{delivery}: {note}");
                cut += 1;
            } else {
                assert_eq!(note, "small", "{delivery}");
                whole += 1;
            }
        }
        assert!(cut >= 5 && whole >= 1, "{delivery}: {cut} and {whole}");
        let name = stage.topic("A");
        assert!(stage.records().iter().filter(|record| record.topic == name).count() >= 6);
    }
}
