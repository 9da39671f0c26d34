//! Rows that were committed before the stream began, and that it was never to deliver.

use support::kafka;
use support::relay::Relay;

use super::{Mode, advance, copies, drop_slot, free, plan, refused, relay, repair, wait_passed};
use crate::stage::Stage;
use crate::tables::{empty_stage, insert_in_time, json};

/// Where progress is kept.
const KEPT: [Mode; 2] = [Mode::Once, Mode::Kept];

/// A stream that `setup` has made beside seven rows that are there already.
fn skipped(bootstrap: &str, stem: &str, mode: Mode) -> (Stage, Relay) {
    let stage = empty_stage(bootstrap, stem);
    let relay = relay(&stage, mode);
    insert_in_time(&stage, "A", 7);
    let topics = format!("--topics={}", stage.topic("A"));
    let outcome = relay.start(&["setup", &topics, "--existing", "skip"]).outcome();
    assert!(outcome.status.success(), "{:?}", outcome.log);
    free(&stage);
    (stage, relay)
}

fn assert_planned(relay: &Relay, (delivered, missing, before): (u64, u64, u64)) {
    let planned = plan(relay, &[]);
    let count = |name: &str| planned[name].as_u64();
    let counts = ["delivered", "missing", "unknown", "pending"].map(count);
    assert_eq!(counts, [delivered, missing, before, 0].map(Some), "{planned}");
    let of_reason = planned["unknown_because"]["before_stream"].as_u64();
    assert_eq!(of_reason.unwrap_or_default(), before, "{planned}");
}

/// How many rows are in the topics, none of them twice.
fn sent(stage: &Stage) -> usize {
    let copies = copies(stage);
    assert!(copies.values().all(|times| *times == 1), "{copies:?}");
    copies.len()
}

#[test]
fn g6_of_a_lost_slot_only_rows_of_after_its_beginning_are_sent() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in KEPT {
        let (stage, relay) = skipped(&kafka.bootstrap(), "skipped", mode);
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        drop_slot(&stage);
        insert_in_time(&stage, "A", 5);
        assert_planned(&relay, (10, 5, 7));
        let outcome = refused(&relay, &["repair", "--execute"], 78, "PR-P102");
        assert!(outcome.log.concat().contains("before the stream began"), "{:?}", outcome.log);
        free(&stage);
        // The attempt has made the slot, and noted what it knew.
        assert_planned(&relay, (10, 5, 7));
        assert_eq!(repair(&relay, &["--unknown", "skip"])["summary"]["confirmed"], 5, "{mode:?}");
        insert_in_time(&stage, "A", 2);
        relay.run_once();
        assert_eq!(sent(&stage), 17, "{mode:?}");
        // When the stream began is handed on.
        drop_slot(&stage);
        insert_in_time(&stage, "A", 3);
        assert_planned(&relay, (17, 3, 7));
        assert_eq!(repair(&relay, &["--unknown", "send"])["summary"]["confirmed"], 10, "{mode:?}");
        relay.run_once();
        assert_eq!(sent(&stage), 27);
        drop_slot(&stage);
        assert_planned(&relay, (27, 0, 0));
    }
}

#[test]
fn g6_a_slot_that_is_lost_before_it_has_delivered_has_a_beginning() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in KEPT {
        let (stage, relay) = skipped(&kafka.bootstrap(), "skipped_at_once", mode);
        drop_slot(&stage);
        insert_in_time(&stage, "A", 5);
        assert_planned(&relay, (0, 5, 7));
        assert_eq!(repair(&relay, &["--unknown", "skip"])["summary"]["confirmed"], 5, "{mode:?}");
        relay.run_once();
        assert_eq!(sent(&stage), 5, "{mode:?}");
    }
}

/// It is moved over rows, which are missing, and carried on with before anybody looks.
#[test]
fn g6_beside_a_slot_that_is_there_rows_of_before_the_stream_are_sent_when_somebody_says_so() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in KEPT {
        let (stage, relay) = skipped(&kafka.bootstrap(), "skipped_moved", mode);
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        free(&stage);
        insert_in_time(&stage, "A", 5);
        advance(&stage);
        if mode == Mode::Once {
            let adopted = relay.clone().allow_log("").start(&["adopt", "--execute"]).outcome();
            assert!(adopted.status.success(), "{adopted:?}");
        }
        insert_in_time(&stage, "A", 2);
        relay.clone().allow_log("").run_once();
        wait_passed(&stage);
        assert_planned(&relay, (12, 5, 7));
        refused(&relay, &["repair", "--execute"], 78, "PR-P102");
        free(&stage);
        assert_eq!(repair(&relay, &["--unknown", "skip"])["summary"]["confirmed"], 5, "{mode:?}");
        let mut running = relay.run();
        running.wait_for_log("streaming");
        wait_passed(&stage);
        running.stop();
        free(&stage);
        assert_planned(&relay, (17, 0, 7));
        refused(&relay, &["repair", "--execute"], 78, "PR-P102");
        free(&stage);
        let done = repair(&relay, &["--unknown", "skip"]);
        assert_eq!((&done["finished"], &done["needed"]), (&true.into(), &false.into()), "{done}");
        free(&stage);
        let done = json(&relay, &["repair", "--execute", "--unknown", "send"]);
        assert_eq!(done["summary"]["confirmed"], 7, "{mode:?}");
        relay.run_once();
        assert_eq!(sent(&stage), 24);
    }
}

/// Whatever Postgres has told of the slot: the progress says that it has left out no row since it was made.
#[test]
fn a_slot_that_has_passed_nothing_needs_no_repair() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in KEPT {
        let (stage, relay) = skipped(&kafka.bootstrap(), "skipped_waits", mode);
        insert_in_time(&stage, "A", 5);
        let at = stage.slot_value("confirmed_flush_lsn");
        let planned = plan(&relay, &["--unknown", "skip"]);
        let counts = ["missing", "unknown", "pending", "undecided"].map(|name| &planned[name]);
        assert_eq!(counts, [0, 7, 5, 0].map(serde_json::Value::from).each_ref(), "{planned}");
        assert_eq!(planned["needed"], false, "{planned}");
        let done = repair(&relay, &["--unknown", "skip"]);
        assert_eq!((&done["finished"], &done["needed"]), (&true.into(), &false.into()), "{done}");
        assert_eq!(stage.slot_value("confirmed_flush_lsn"), at);
        free(&stage);
        relay.run_once();
        assert_eq!(sent(&stage), 5, "{mode:?}");
    }
}

/// They are rows of the stream like all others.
#[test]
fn g6_rows_that_a_backfill_has_delivered_are_no_rows_of_before_the_stream() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in KEPT {
        let stage = empty_stage(&kafka.bootstrap(), "not_skipped");
        let relay = relay(&stage, mode);
        insert_in_time(&stage, "A", 7);
        assert_eq!(json(&relay, &["backfill", "--execute"])["summary"]["confirmed"], 7);
        drop_slot(&stage);
        insert_in_time(&stage, "A", 5);
        assert_planned(&relay, (7, 5, 0));
        assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 5, "{mode:?}");
        relay.run_once();
        assert_eq!(sent(&stage), 12);
    }
}

/// Nothing says when the stream began.
#[test]
fn without_progress_rows_of_before_the_stream_count_as_missing() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = skipped(&kafka.bootstrap(), "skipped_plain", Mode::Plain);
    insert_in_time(&stage, "A", 10);
    relay.run_once();
    drop_slot(&stage);
    insert_in_time(&stage, "A", 5);
    assert_planned(&relay, (10, 12, 0));
}
