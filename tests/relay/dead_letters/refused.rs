//! Records that the brokers refuse by the dozen: what they have in common is found out in a few sessions.

use std::collections::{BTreeMap, BTreeSet};

use crate::stage::Stage;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::topic::Stored;
use support::{kafka, postgres, topic};

const DELIVERIES: [&str; 2] = ["at_least_once", "exactly_once"];

fn relay(stage: &Stage, delivery: &str) -> Relay {
    stage
        .relay()
        .set("kafka.delivery", delivery)
        .expect_log("refused a batch")
        .expect_log("became a dead letter")
        .allow_log("takes records of at most")
}

/// How many sessions ended for a refused batch, once all that is committed is acknowledged.
fn sessions_ended(stage: &Stage, face: &RelayHttp) -> u64 {
    stage.wait_acknowledged(stage.log_end());
    face.count("postrider_restarts_total{reason=\"batch_refused\"}").unwrap()
}

/// The rows' numbers by topic and whether they are dead letters, each once.
fn numbers(stage: &Stage) -> BTreeMap<(String, bool), BTreeSet<u64>> {
    let letters = stage.topic("dead-letters");
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for Stored { topic, value, .. } in stage.records() {
        let number = String::from_utf8(value.unwrap()).unwrap().trim().parse().unwrap();
        let is_letter = topic == letters;
        let topic = topic.trim_start_matches(&stage.topic("")).to_owned();
        found.entry((topic, is_letter)).or_default().insert(number);
    }
    found
}

/// A batch of thousands was refused for one record that is larger than all others together: it is the
/// one that is tried alone.
#[test]
fn g4_one_large_record_among_thousands_costs_a_few_sessions() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "one_large");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[("max.message.bytes", "100000")]);
        // So many small rows may come to a batch that the topic does not take, too.
        let relay = relay(&stage, delivery).allow_log("accepts only smaller batches");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("streaming");
        stage.insert("A", 10);
        stage.wait_acknowledged(stage.log_end());
        stage.sql().run(
            "WITH large AS (SELECT string_agg(md5(i::text), '') AS text FROM generate_series(1, 14000) AS i)
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 't', n % 10, 'A', CASE n WHEN 3000 THEN to_jsonb(text) ELSE to_jsonb(n) END
             FROM large, generate_series(1, 6000) AS n",
        );
        let ended = sessions_ended(&stage, &face);
        assert!((1..=6).contains(&ended), "{delivery}: {ended}");
        running.stop();
        let letters = stage.topic("dead-letters");
        let records = stage.records();
        let letter = |one: &&Stored| one.topic == letters;
        let ids = |letters: bool| {
            let records = records.iter().filter(|one| letter(one) == letters);
            records.map(|one| one.header("id").unwrap()).collect::<BTreeSet<_>>().len()
        };
        assert_eq!((ids(false), ids(true)), (10 + 5_999, 1), "{delivery}");
    }
}

/// A compacted topic takes no record without a key.
#[test]
fn g4_rows_without_a_key_for_a_compacted_topic_cost_a_few_sessions() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "keyless");
        topic::create(&kafka.bootstrap(), &stage.topic("C"), 6, &[("cleanup.policy", "compact")]);
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
        stage.sql().run("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL");
        let mut running = relay(&stage, delivery).run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("streaming");
        // All at once, and then one by one.
        let rows = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 't', CASE WHEN n % 3 = 0 THEN n::text END, CASE n % 5 WHEN 0 THEN 'A' ELSE 'C' END,
                    to_jsonb(n) FROM generate_series";
        stage.sql().run(&format!("{rows}(1, 1000) AS n"));
        for n in 1_001..1_060 {
            stage.sql().run(&format!("{rows}({n}, {n}) AS n"));
        }
        let ended = sessions_ended(&stage, &face);
        eprintln!("{delivery}: {ended} sessions ended");
        assert!((1..=10).contains(&ended), "{delivery}: {ended}");
        running.stop();
        let rows = |is_wanted: fn(u64) -> bool| (1..1_060).filter(|n| is_wanted(*n)).collect();
        let wanted: BTreeMap<(String, bool), BTreeSet<u64>> = [
            (("A".to_owned(), false), rows(|n| n % 5 == 0)),
            (("C".to_owned(), false), rows(|n| n % 5 != 0 && n % 3 == 0)),
            (("dead-letters".to_owned(), true), rows(|n| n % 5 != 0 && n % 3 != 0)),
        ]
        .into();
        assert_eq!(numbers(&stage), wanted, "{delivery}");
    }
}

/// Brokers take no record from the future, an hour ahead at most by default.
#[test]
fn g4_rows_of_a_time_that_the_topic_does_not_take_cost_a_few_sessions() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "due");
        for name in ["A", "B"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
        }
        stage.sql().run("ALTER TABLE outbox ADD COLUMN due timestamptz");
        let mut running = relay(&stage, delivery).set("outbox.timestamp", "due").run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("streaming");
        for n in 1..=40 {
            stage.sql().run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, due)
                 VALUES ('t', '{n}', 'A', to_jsonb({n}), now() + interval '2 days'),
                        ('t', '{n}', 'A', to_jsonb({n} + 100), now() + interval '1 minute'),
                        ('t', '{n}', 'B', to_jsonb({n} + 200), now())"
            ));
        }
        let ended = sessions_ended(&stage, &face);
        eprintln!("{delivery}: {ended} sessions ended");
        assert!((1..=10).contains(&ended), "{delivery}: {ended}");
        running.stop();
        let wanted: BTreeMap<(String, bool), BTreeSet<u64>> = [
            (("A".to_owned(), false), (101..=140).collect()),
            (("B".to_owned(), false), (201..=240).collect()),
            (("dead-letters".to_owned(), true), (1..=40).collect()),
        ]
        .into();
        assert_eq!(numbers(&stage), wanted, "{delivery}");
    }
}

/// A session that is past the first of them ends at the second, and what it sent for the first is lost
/// with its Kafka transaction.
#[test]
fn g4_g6_two_refused_rows_of_different_commits_in_one_batch_end_a_few_sessions() {
    let Some(kafka) = kafka::shared() else { return };
    for (delivery, policy) in [("at_least_once", "dead_letter"), ("exactly_once", "skip")] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "two_refused");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[("max.message.bytes", "20000")]);
        for n in 1..=200 {
            let payload = match n {
                50 | 150 => {
                    "(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 2000) AS i)"
                        .to_owned()
                }
                _ => format!("to_jsonb({n})"),
            };
            stage.sql().run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('t', 'k', 'A', {payload})"
            ));
        }
        let relay = stage.relay().set("kafka.delivery", delivery).set("route.rejected", policy);
        let relay =
            relay.set("kafka.linger", "100ms").expect_log("refused a batch").allow_log("a row");
        let relay =
            relay.allow_log("takes records of at most").allow_log("accepts only smaller batches");
        let mut running = relay.run();
        let ended = sessions_ended(&stage, &RelayHttp::of(&mut running));
        eprintln!("{delivery}: {ended} sessions ended");
        assert!((1..=12).contains(&ended), "{delivery}: {ended}");
        running.stop();
        let a = stage.topic("A");
        let records = stage.records();
        let good = || records.iter().filter(|one| one.topic == a);
        let ids: BTreeSet<_> = good().map(|one| one.header("id").unwrap()).collect();
        assert_eq!(ids.len(), 198, "{delivery}");
        assert!(delivery == "at_least_once" || good().count() == 198, "{delivery}");
    }
}

/// With several records at fault the library names no time: rows without a key are none the less not taken
/// for rows that need one, in a topic that is not compacted. Rows that grow old in a backlog are found out too.
#[test]
fn g4_refusals_for_a_time_make_no_dead_letters_of_good_rows() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "mistaken");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
        let bound = [("message.timestamp.before.max.ms", "3600000")];
        topic::create(&kafka.bootstrap(), &stage.topic("B"), 1, &bound);
        stage.sql().run(
            "ALTER TABLE outbox ADD COLUMN due timestamptz;
             ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL;
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, due)
             SELECT 't', CASE WHEN n <= 2 THEN 'k' END, 'A', to_jsonb(n),
                    now() + CASE WHEN n <= 2 THEN '0' ELSE '1 day' END::interval
             FROM generate_series(1, 6) AS n;
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, due)
             SELECT 't', 'k', 'B', to_jsonb(n), now() - interval '2 hours' + n * interval '1 second'
             FROM generate_series(1001, 1150) AS n",
        );
        let mut running = relay(&stage, delivery).set("outbox.timestamp", "due").run();
        let face = RelayHttp::of(&mut running);
        stage.wait_acknowledged(stage.log_end());
        for n in 11..=30 {
            stage.sql().run(&format!(
                "INSERT INTO outbox (aggregate_type, event_type, payload, due)
                 VALUES ('t', 'A', to_jsonb({n}), now())"
            ));
        }
        let ended = sessions_ended(&stage, &face);
        eprintln!("{delivery}: {ended} sessions ended");
        assert!((1..=30).contains(&ended), "{delivery}: {ended}");
        running.stop();
        let wanted: BTreeMap<(String, bool), BTreeSet<u64>> = [
            (("A".to_owned(), false), (1..=2).chain(11..=30).collect()),
            (("dead-letters".to_owned(), true), (3..=6).chain(1_001..=1_150).collect()),
        ]
        .into();
        assert_eq!(numbers(&stage), wanted, "{delivery}");
    }
}
