//! Rows larger than the relay reads unless it is told to.

use super::stage::Stage;
use crate::support::broker::Broker;
use crate::support::postgres;

/// 70 MiB between quotes: more than the default of 64 MiB.
const LARGE: &str = "to_jsonb(repeat('x', 70 * 1024 * 1024))";
const LARGE_BYTES: usize = 70 * 1024 * 1024 + 2;

/// Nothing is passed over: with a higher limit the row is read, and is then one that no broker takes.
#[test]
fn g1_g3_g4_a_row_beyond_the_limit_ends_the_relay_and_is_a_dead_letter_below_a_higher_one() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "large");
    let oracle = stage.oracle();
    let tap = stage.tap();
    // The migration keeps such a row out; an outbox of the application's own may not.
    stage.sql().run("ALTER TABLE outbox DROP CONSTRAINT outbox_payload_check");
    stage.insert("A", 3);
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', 'k', 'A', {LARGE})"
    ));
    stage.insert("A", 2);
    let relay = stage.relay_at(&tap.address());
    let limited = relay.clone().expect_log("PR-P015");
    let mut running = limited.start(&["--output", "json", "run", "--once"]);
    let error = running.wait_for_log("PR-P015");
    assert!(error.contains("source.frame_max"), "{error}");
    assert_eq!(running.wait().code(), Some(78));

    relay.set("source.frame_max", "128MiB").expect_log("became a dead letter").run_once();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_at_least_once();
    assert_eq!((verdict.committed, verdict.delivered), (6, 6));
    let records = stage.records();
    let letters = stage.topic("dead-letters");
    let letters: Vec<_> = records.iter().filter(|record| record.topic == letters).collect();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!(letter.header("postrider-error-code"), Some("too_large"));
    let note: serde_json::Value = serde_json::from_slice(letter.value.as_ref().unwrap()).unwrap();
    assert_eq!(note["size"], LARGE_BYTES);
}
