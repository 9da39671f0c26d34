//! Tests of `postrider replay`.

use super::{OTHERS_WRITE, empty_stage, insert_in_time, json};
use crate::stage::Stage;
use support::{kafka, postgres, topic};

#[test]
fn what_is_sent_again_is_what_sql_counts_and_is_marked() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "replay");
    for name in ["A", "B", "again", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    insert_in_time(&stage, "A", 30);
    let moment = stage.sql().value("SELECT clock_timestamp()");
    insert_in_time(&stage, "B", 25);
    let id = stage
        .sql()
        .value("SELECT id FROM outbox WHERE event_type = 'B' ORDER BY created_at LIMIT 1");
    let relay = stage.relay();
    let before = stage.slot_value("confirmed_flush_lsn");
    let mut sent = 0;
    for (filter, condition) in [
        (vec!["--all"], "true".to_owned()),
        (vec!["--since", &moment], format!("created_at >= '{moment}'")),
        (
            vec!["--until", &moment, "--key", "3"],
            format!("created_at < '{moment}' AND aggregate_id = '3'"),
        ),
        (
            vec!["--type", "A", "--key", "3", "--key", "4"],
            "event_type = 'A' AND aggregate_id IN ('3', '4')".to_owned(),
        ),
        (vec!["--id", &id], format!("id = '{id}'")),
        (vec!["--since", "1h", "--type", "B"], "event_type = 'B'".to_owned()),
        (vec!["--type", "it's \"none\" \\"], "false".to_owned()),
    ] {
        let wanted: usize = stage
            .sql()
            .value(&format!("SELECT count(*) FROM outbox WHERE {condition}"))
            .parse()
            .unwrap();
        let plan = json(&relay, &[&["replay"], filter.as_slice()].concat());
        assert_eq!(plan["rows"], wanted, "{filter:?}");
        assert_eq!(stage.records().len(), sent, "a plan sends nothing");
        let done = json(&relay, &[&["replay", "--execute"], filter.as_slice()].concat());
        assert_eq!(
            (&done["summary"]["confirmed"], &done["finished"]),
            (&wanted.into(), &true.into())
        );
        sent += wanted;
        assert_eq!(stage.records().len(), sent, "{filter:?}");
    }
    let again = stage.topic("again");
    json(&relay, &["replay", "--execute", "--all", "--to", &again]);
    let moved = topic::read(&kafka.bootstrap(), &[again]);
    assert_eq!(moved.len(), 55);
    for record in stage.records() {
        assert_eq!(record.header("postrider-origin"), Some("replay"));
        assert_eq!(record.header("postrider-lsn"), None);
    }
    assert_eq!(stage.slot_value("confirmed_flush_lsn"), before, "the slot is where it was");
    relay.run_once();
    assert_eq!(stage.records().len(), sent + 55 + 55);
}

#[test]
fn a_missing_topic_is_refused_before_the_first_row() {
    // The brokers of the one create topics, those of the other do not.
    let (Some(lenient), Some(strict)) = (kafka::shared(), kafka::strict()) else { return };
    for bootstrap in [lenient.bootstrap(), strict.bootstrap()] {
        let stage = Stage::new(postgres::installed(), &bootstrap, "replay_nowhere");
        for name in ["A", "dead-letters"] {
            topic::create(&bootstrap, &stage.topic(name), 1, &[]);
        }
        stage.insert("A", 5);
        let relay = stage.relay().set("kafka.properties.allow_auto_create_topics", "true");
        let nowhere = stage.topic("nowhere");
        for command in [&["replay", "--all"][..], &["dead-letters", "retry", "--all"]] {
            let command = [command, &["--to", &nowhere, "--execute"]].concat();
            let refused = relay.start(&command).outcome();
            let said = refused.log.join("\n");
            assert_eq!(refused.status.code(), Some(69), "{command:?}: {said}");
            assert!(said.contains("PR-K005") && said.contains(&nowhere), "{said}");
            assert!(said.contains("kafka-topics.sh"), "{said}");
        }
        assert_eq!(stage.records(), [], "no row became a dead letter");
        assert!(!topic::names(&bootstrap, &nowhere).contains(&nowhere), "it was created");
    }
}

#[test]
fn a_reserved_topic_is_refused_by_the_plan_as_well() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "replay_reserved");
    stage.insert("A", 5);
    let relay = stage.relay();
    for to in [stage.topic("dead-letters"), "postrider.progress.x".into(), "__offsets".into()] {
        for execute in [&[][..], &["--execute"]] {
            let command = [&["replay", "--all", "--to", &to], execute].concat();
            let refused = relay.start(&command).outcome();
            let said = refused.log.join("\n");
            assert_eq!(refused.status.code(), Some(2), "{command:?}: {said}");
            assert!(said.contains("is not for rows") && said.contains("--to"), "{said}");
        }
    }
    assert_eq!(stage.records(), [], "no row became a dead letter");
}

/// Every row names an invalid topic.
#[test]
fn a_job_whose_rows_all_became_dead_letters_is_no_success() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "replay_in_vain");
    stage.insert("not a topic", 5);
    let relay = stage.relay().allow_log("became a dead letter").allow_log(OTHERS_WRITE);
    for command in [&["backfill", "--execute"][..], &["replay", "--all", "--execute"]] {
        let outcome = relay.start(command).outcome();
        let said = outcome.log.join("\n");
        assert_eq!(outcome.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("PR-D012") && said.contains("dead-letters list"), "{said}");
        assert!(outcome.stdout.contains("5 dead letters"), "{}", outcome.stdout);
    }
    // One that arrives is a success.
    stage.insert("A", 1);
    let done = json(&relay, &["replay", "--all", "--execute"]);
    assert_eq!(done["summary"]["dead_letters"], 5, "{done}");
}

#[test]
fn a_filter_that_postgres_cannot_read_is_a_mistake_of_the_command_line() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "replay_mistyped");
    let relay = stage.relay();
    for filter in [["--id", "abc"], ["--since", "5parsecs"]] {
        for execute in [&[] as &[&str], &["--execute"]] {
            let refused =
                relay.start(&[&["replay"], filter.as_slice(), execute].concat()).outcome();
            let said = refused.log.join("\n");
            assert_eq!(refused.status.code(), Some(2), "{filter:?}: {said}");
            assert!(said.contains(filter[1]) && said.contains("how long ago"), "{said}");
        }
    }
    assert_eq!(stage.records(), []);
}

/// The moment of a value without a time zone depends on the session that wrote it.
#[test]
fn a_window_by_a_time_without_zone_is_refused_by_replay_and_verify() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::migrated(postgres::installed(), &kafka.bootstrap(), "replay_zone");
    stage.sql().run(
        "ALTER TABLE outbox ALTER COLUMN created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC'",
    );
    stage.create_slot();
    stage.insert("A", 3);
    let relay = stage.relay();
    for command in [["replay", "--since", "2h"], ["verify", "--since", "2h"]] {
        let refused = relay.start(&command).outcome();
        let said = refused.log.join("\n");
        assert_eq!(refused.status.code(), Some(78), "{command:?}: {said}");
        assert!(said.contains("PR-P108") && said.contains("AT TIME ZONE"), "{said}");
    }
    assert_eq!(json(&relay, &["replay", "--key", "1"])["rows"], 1);
}
