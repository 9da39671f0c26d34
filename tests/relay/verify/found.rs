//! Each kind of finding, planted.

use serde_json::{Value, json};

use super::{Verified, found, named, verify};
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::topic::{self, Stored};
use support::wait::wait_until;

fn id(record: &Stored) -> String {
    record.header("id").unwrap().to_owned()
}

#[test]
fn verify_of_a_clean_system_finds_nothing() {
    for broker in Broker::all() {
        let verified = Verified::with(broker, "verify_clean");
        verified.deliver(300);
        verified.pass();
        let (status, json) = verified.verify("--all-rows-kept --duplicates forbid");
        assert_eq!((status, &json["clean"], found(&json)), (0, &json!(true), vec![]), "{json}");
        assert_eq!((&json["rows"], &json["records"]), (&json!(300), &json!(300)));
        assert_eq!((&json["ordered"], &json["unordered"]), (&json!(300), &json!(0)));
        let text = verified.outcome("").stdout;
        assert!(text.starts_with("verify: clean\n"), "{text}");
    }
}

#[test]
fn verify_finds_what_is_lost_repeated_out_of_order_changed_and_made_up() {
    let verified = Verified::new("verify_planted");
    verified.deliver(300);
    verified.pass();
    let mut records = verified.records();
    // Of each of these the place of a record that has others of its key behind it.
    let of_key = |records: &[Stored], key: &str| -> Vec<usize> {
        let is_of = |record: &Stored| {
            record.key.as_deref() == Some(key.as_bytes()) && record.topic.ends_with('B')
        };
        (0..records.len()).filter(|at| is_of(&records[*at])).collect()
    };
    let swapped = of_key(&records, "1");
    records.swap(swapped[3], swapped[4]);
    let late = id(&records[swapped[4]]);
    let changed = of_key(&records, "2")[0];
    records[changed].value.as_mut().unwrap()[0] = b'[';
    let other_header = of_key(&records, "2")[1];
    records[other_header].headers.push(("more".into(), None));
    let different = [id(&records[changed]), id(&records[other_header])];
    let mut made_up = records[*of_key(&records, "4").last().unwrap()].clone();
    made_up.headers[0].1 = Some(b"never-written".to_vec());
    let repeated = records[of_key(&records, "5")[0]].clone();
    let lost = of_key(&records, "3")[2];
    let lost = id(&records.remove(lost));
    let twice = id(&repeated);
    records.extend([repeated, made_up]);
    let copy = verified.copied(&records);
    let (status, json) = verify(&copy, "--all-rows-kept --duplicates forbid");
    let wanted = [
        ("lost", 1),
        ("duplicated", 1),
        ("reordered", 1),
        ("phantom", 1),
        ("different", 2),
        ("without_row", 1),
    ];
    assert_eq!((status, found(&json)), (1, wanted.to_vec()), "{json}");
    assert_eq!(named(&json, "lost"), [lost]);
    assert_eq!(named(&json, "duplicated"), [twice]);
    assert_eq!(named(&json, "reordered"), [late]);
    assert_eq!(named(&json, "phantom"), ["never-written"]);
    let mut named = named(&json, "different");
    named.sort();
    let mut different = different.to_vec();
    different.sort();
    assert_eq!(named, different);
    let text = super::outcome(&copy, "--grace 0s --all-rows-kept").stdout;
    let first = text.lines().next().unwrap();
    let wanted = "verify: NOT clean: 1 lost, 1 duplicated, 1 reordered, 1 phantom, 2 different";
    assert_eq!(first, wanted, "{text}");
    // Without being told so it is not known that no row is deleted, and at least once may repeat.
    let (_, json) = verify(&copy, "");
    assert_eq!((&json["phantom"], &json["without_row"]), (&json!(0), &json!(1)));
}

#[test]
fn repeats_are_a_finding_where_they_are_not_allowed() {
    let verified = Verified::new("verify_repeats");
    verified.deliver(30);
    verified.pass();
    let mut records = verified.records();
    records.extend(records[..5].to_vec());
    let copy = verified.copied(&records);
    let (status, json) = verify(&copy, "");
    assert_eq!((status, found(&json)), (0, vec![("duplicated", 5)]));
    for (relay, words) in [
        (copy.clone(), "--duplicates forbid"),
        (copy.clone().set("kafka.delivery", "exactly_once"), ""),
    ] {
        let (status, json) = verify(&relay, words);
        assert_eq!((status, found(&json)), (1, vec![("duplicated", 5)]), "{words}");
    }
    let exactly_once = copy.set("kafka.delivery", "exactly_once");
    assert_eq!(verify(&exactly_once, "--duplicates allow").0, 0);
}

#[test]
fn a_dead_letter_is_no_loss_and_a_row_that_changed_is_told() {
    let verified = Verified::new("verify_letters");
    verified.stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', 'a', 'bad/topic', '1'), ('t', 'a', 'A', '2'), ('t', 'a', 'A', '3')",
    );
    verified.relay.clone().expect_log("became a dead letter").run_once();
    verified.pass();
    let (status, json) = verified.verify("--all-rows-kept");
    assert_eq!((status, found(&json)), (0, vec![("dead_lettered", 1)]), "{json}");
    let topics = ["A", "dead-letters"].map(|name| verified.stage.topic(name));
    let records = topic::read(&verified.broker.bootstrap(), &topics);
    let of_former_slot = verified.copied(&records.iter().map(with_former_slot).collect::<Vec<_>>());
    let letters = verified.stage.topic("copy.dead-letters");
    let (status, json) = verify(&of_former_slot.set("dead_letters.topic", &letters), "");
    assert_eq!((status, found(&json)), (0, vec![("dead_lettered", 1)]), "{json}");
    verified.stage.sql().run("UPDATE outbox SET payload = '4' WHERE payload = '3'");
    verified.stage.sql().run("DELETE FROM outbox WHERE payload = '2'");
    verified.pass();
    let (status, json) = verified.verify("");
    let wanted = vec![("different", 1), ("dead_lettered", 1), ("without_row", 1)];
    assert_eq!((status, found(&json)), (1, wanted), "{json}");
    // A dead letter that was sent again, mended, is neither a repeat nor other than expected.
    let retried = verified.relay.start(&[
        "dead-letters",
        "retry",
        "--execute",
        "--to",
        &verified.stage.topic("A"),
    ]);
    assert!(retried.outcome().status.success());
    let (_, json) = verified.verify("");
    assert_eq!(found(&json), [("different", 1), ("without_row", 1), ("sent_again", 1)], "{json}");
}

/// Streams of several databases share the topic for dead letters by default.
#[test]
fn dead_letters_of_another_stream_are_no_finding() {
    let verified = Verified::new("verify_shared");
    let bootstrap = verified.broker.bootstrap();
    let letters = verified.stage.topic("dead-letters");
    let other = Stage::new(postgres::installed(), &bootstrap, "verify_other");
    other.sql().run(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; \
         INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT '00000000-0000-0000-0000-00000000000a', 't', 'a', 'bad/topic', '1' FROM generate_series(1, 2)",
    );
    let relay = other.relay().set("dead_letters.topic", &letters);
    relay.expect_log("became a dead letter").run_once();
    let written = topic::read(&bootstrap, &[letters]);
    assert_eq!(written.len(), 2);
    let system = other.sql().value("SELECT system_identifier FROM pg_control_system()");
    for letter in &written {
        let named =
            ["postrider-system", "postrider-database", "postrider-slot", "postrider-stream"];
        let named = named.map(|name| letter.header(name));
        assert_eq!(named, [Some(system.as_str()), Some(other.slot()), Some(other.slot()), None]);
    }
    verified.deliver(30);
    verified.pass();
    let relay = verified.relay.clone().set("kafka.delivery", "exactly_once");
    let (status, json) = verify(&relay, "--all-rows-kept");
    assert_eq!((status, found(&json)), (0, Vec::new()), "{json}");
    // An earlier version did not say where they are from.
    let older: Vec<Stored> = written.iter().map(without_source).collect();
    let of_older =
        verified.copied(&older).set("route.topic", &verified.stage.topic("${routedByValue}"));
    let relay = of_older.set("dead_letters.topic", &verified.stage.topic("copy.dead-letters"));
    let relay = relay.set("kafka.delivery", "exactly_once");
    let (status, json) = verify(&relay, "--all-rows-kept");
    assert_eq!((status, found(&json)), (0, vec![("without_row", 1)]), "{json}");
}

/// As if the slot had been renamed since.
fn with_former_slot(letter: &Stored) -> Stored {
    let mut letter = letter.clone();
    if let Some((_, slot)) = letter.headers.iter_mut().find(|(name, _)| name == "postrider-slot") {
        *slot = Some(b"former".to_vec());
    }
    letter
}

fn without_source(letter: &Stored) -> Stored {
    let mut letter = letter.clone();
    let source = ["postrider-system", "postrider-database", "postrider-slot"];
    letter.headers.retain(|(name, _)| !source.contains(&name.as_str()));
    letter
}

#[test]
fn the_order_is_judged_by_a_column_where_there_is_one() {
    let verified = Verified::new("verify_order");
    verified.stage.sql().run("ALTER TABLE outbox ADD number bigint GENERATED ALWAYS AS IDENTITY");
    let relay = verified.relay.clone().set("route.position_header", "false");
    verified.insert(60);
    relay.run_once();
    verified.pass();
    let (status, json) = verify(&relay, "");
    assert_eq!((status, &json["unordered"]), (0, &json!(60)), "{json}");
    let (status, json) = verify(&relay, "--order-column number");
    assert_eq!((status, &json["ordered"]), (0, &json!(60)), "{json}");
    verified.stage.sql().run(
        "UPDATE outbox SET number = DEFAULT WHERE id = \
         (SELECT id FROM outbox WHERE aggregate_id = '1' AND event_type = 'B' ORDER BY number LIMIT 1)",
    );
    let (status, json) = verify(&relay, "--order-column number");
    let late = json["reordered"].as_u64().unwrap();
    assert!(status == 1 && late > 0, "{json}");
}

#[test]
fn ids_that_several_rows_have_are_told_and_not_judged() {
    let verified = Verified::new("verify_ids");
    verified.stage.sql().run("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey");
    verified.insert(20);
    verified.stage.sql().run("INSERT INTO outbox SELECT * FROM outbox LIMIT 1");
    verified.relay.run_once();
    verified.pass();
    let (status, json) = verified.verify("--duplicates forbid");
    assert_eq!((status, found(&json)), (1, vec![("not_unique", 1)]), "{json}");
}

#[test]
fn events_that_carry_the_time_of_their_commit_are_what_the_routing_gives() {
    for format in ["cloudevents_binary", "cloudevents_structured"] {
        let verified = Verified::new("verify_events");
        let relay = verified.relay.clone().set("format.value", format);
        verified.insert(30);
        relay.run_once();
        verified.pass();
        let (status, json) = verify(&relay, "");
        assert_eq!((status, found(&json)), (0, vec![]), "{format}: {json}");
        // The other format is another content.
        let (status, json) = verified.verify("");
        assert_eq!((status, found(&json)), (1, vec![("different", 30)]), "{format}: {json}");
    }
}

/// A snapshot from before a rewrite sees no row after it.
#[test]
fn a_table_that_is_rewritten_meanwhile_is_read_whole() {
    let verified = Verified::new("verify_rewrite");
    verified.deliver(50);
    let sql = verified.stage.sql();
    sql.run("BEGIN; ALTER TABLE outbox ALTER COLUMN payload TYPE json");
    let running = verified.relay.start(&["verify", "--output", "json", "--all-rows-kept"]);
    let waits =
        "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'outbox'::regclass";
    wait_until("verify to wait for the table", || verified.stage.sql().value(waits) == "t");
    sql.run("COMMIT");
    let outcome = running.outcome();
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["rows"], 50, "{json}");
    assert_eq!(json["phantom"], 0, "{json}");
}
