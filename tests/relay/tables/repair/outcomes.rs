//! What a repair does to a stream that is broken, and to one that is not.

use postrider::sandbox::postgres::Options;
use support::relay::Relay;
use support::{kafka, postgres, topic};

use super::{
    MODES, Mode, advance, assert_each_once, assert_not_needed, begin, copies, drop_slot, free,
    has_slot, lost, plan, refused, relay, repair, streamed, wait_passed,
};
use crate::stage::Stage;
use crate::tables::{Writer, insert_in_time, json};

/// The log of a command that decodes the slot.
const DECODES: &str = "looking whether the log of the slot can be read";

#[test]
fn g6_rows_that_a_dropped_slot_has_not_delivered_arrive_once_while_writers_run() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let stage = super::empty_stage(&kafka.bootstrap(), "repaired");
        let oracle = stage.oracle();
        let relay = relay(&stage, mode);
        begin(&stage, &relay);
        insert_in_time(&stage, "A", 500);
        relay.run_once();
        drop_slot(&stage);
        insert_in_time(&stage, "A", 300);
        let planned = plan(&relay, &[]);
        let of = |name: &str| planned[name].as_u64();
        assert_eq!((of("rows"), of("delivered"), of("missing")), (Some(800), Some(500), Some(300)));
        assert_eq!((&planned["slot"]["is"], of("unknown")), (&"missing".into(), Some(0)));
        assert!(!has_slot(&stage), "a plan makes no slot");
        assert_eq!(stage.records().len(), 500, "a plan sends nothing");
        let writer = Writer::start(&stage, "A");
        let done = repair(&relay, &[]);
        assert_eq!(done["finished"], true);
        let repaired = &done["summary"]["repaired"];
        assert_eq!(repaired["delivered"], 500);
        assert_eq!(repaired["missing"], done["summary"]["confirmed"], "{mode:?}");
        let sent = stage.records();
        let marked = sent.iter().filter(|one| one.header("postrider-origin") == Some("repair"));
        assert_eq!(Some(marked.count() as u64), done["summary"]["confirmed"].as_u64());
        let running = relay.run();
        writer.stop();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &[]).assert_exactly_once();
    }
}

/// `wal_status = lost`: the server has given it up.
#[test]
fn g6_a_slot_that_the_server_has_invalidated_is_made_anew() {
    let Some(kafka) = kafka::shared() else { return };
    let cluster = postgres::start(&Options::default().with("max_slot_wal_keep_size", "1MB"));
    for mode in [Mode::Once, Mode::Plain] {
        let stage = Stage::migrated(&cluster, &kafka.bootstrap(), "invalidated");
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
        }
        let relay = relay(&stage, mode);
        begin(&stage, &relay);
        insert_in_time(&stage, "A", 100);
        relay.run_once();
        free(&stage);
        insert_in_time(&stage, "A", 50);
        support::wait::wait_until("the slot to be lost", || {
            stage.sql().run("SELECT pg_switch_wal()");
            stage.sql().run("CREATE TABLE IF NOT EXISTS filler (n int); INSERT INTO filler SELECT generate_series(1, 10000)");
            stage.sql().run("CHECKPOINT");
            stage.slot_value("wal_status") == "lost"
        });
        let outcome = refused(&relay, &["run", "--once"], 70, "PR-P041");
        assert!(outcome.log.concat().contains("postrider repair"), "{:?}", outcome.log);
        let planned = plan(&relay, &[]);
        assert_eq!((&planned["slot"]["is"], &planned["missing"]), (&"lost".into(), &50.into()));
        assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 50);
        insert_in_time(&stage, "A", 20);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
        drop_slot(&stage);
    }
}

/// Made anew or advanced by hand: it has passed rows that nobody has delivered.
#[test]
fn g6_a_slot_that_was_moved_over_rows_is_made_anew_and_they_arrive() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        for advanced in [true, false] {
            let (stage, relay) = streamed(&kafka.bootstrap(), "moved", mode, 100);
            free(&stage);
            insert_in_time(&stage, "A", 50);
            if advanced {
                advance(&stage);
                wait_passed(&stage);
            } else {
                drop_slot(&stage);
                stage.create_slot();
            }
            if mode == Mode::Plain && !advanced {
                // Nothing else tells what the slot has passed.
                assert_undecided_or_needed(&relay);
                let running = relay.run();
                wait_passed(&stage);
                running.stop();
                free(&stage);
            }
            let before = stage.slot_value("confirmed_flush_lsn");
            let planned = plan(&relay, &[]);
            // Of one that was just made it may not be seen yet what it has passed: other tests have transactions open.
            let count = |name: &str| planned[name].as_u64().unwrap();
            assert_eq!(count("missing") + count("pending"), 50, "{mode:?} {advanced}: {planned}");
            assert!(!advanced || count("pending") == 0, "{planned}");
            assert_eq!(planned["slot"]["at"], before.clone());
            assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 50, "{mode:?} {advanced}");
            assert_ne!(stage.slot_value("confirmed_flush_lsn"), before);
            relay.run_once();
            assert_each_once(&stage, &["outbox"]);
        }
    }
}

/// Postgres tells late what a slot has passed: at any moment from now on.
fn assert_undecided_or_needed(relay: &Relay) {
    let planned = plan(relay, &[]);
    let action = planned["action"].as_str().unwrap();
    let is_undecided = planned["missing"] == 0;
    assert_eq!(action.contains("cannot be told yet"), is_undecided, "{planned}");
}

/// A slot has what no table has: rows that were deleted again, logical messages. It is not dropped with them.
#[test]
fn g1_a_slot_is_not_dropped_with_messages_that_were_not_delivered() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = streamed(&kafka.bootstrap(), "undrained", mode, 20);
        free(&stage);
        insert_in_time(&stage, "A", 5);
        advance(&stage);
        wait_passed(&stage);
        stage.sql().run(
            "BEGIN; INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('c0ffee00-0000-4000-8000-000000000001', 't', '1', 'A', '{\"n\": 0}'); \
             DELETE FROM outbox WHERE id = 'c0ffee00-0000-4000-8000-000000000001'; COMMIT",
        );
        let planned = plan(&relay, &[]);
        assert_eq!(planned["missing"], 5, "{mode:?}: {planned}");
        assert!(planned["action"].as_str().unwrap().contains("PR-P107"), "{planned}");
        refused(&relay, &["repair", "--execute"], 70, "PR-P107");
        assert!(has_slot(&stage));
        if mode != Mode::Plain {
            let adopted = relay.clone().allow_log("").start(&["adopt", "--execute"]).outcome();
            assert!(adopted.status.success(), "{adopted:?}");
        }
        relay.clone().allow_log("").run_once();
        free(&stage);
        let done = json(&relay, &["repair", "--execute"]);
        assert_eq!(done["summary"]["confirmed"], 5, "{mode:?}");
        let copies = copies(&stage);
        assert_eq!(copies.get("c0ffee00-0000-4000-8000-000000000001"), Some(&1), "{mode:?}");
        assert_eq!(copies.values().filter(|count| **count == 1).count(), 26, "{mode:?}");
    }
}

/// PostgreSQL 18 tells of a large transaction that was rolled back: a slot with nothing but that has nothing to lose.
#[test]
fn g1_a_slot_with_only_a_rolled_back_job_is_replaced() {
    let (Some(kafka), Some(cluster)) = (kafka::shared(), postgres::eighteen()) else { return };
    let stage = Stage::migrated(cluster, &kafka.bootstrap(), "aborted");
    let name = stage.database.name();
    stage.sql().run(&format!(
        "ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'; CREATE TABLE job (text text)"
    ));
    let relay = relay(&stage, Mode::Once);
    begin(&stage, &relay);
    insert_in_time(&stage, "A", 20);
    relay.run_once();
    free(&stage);
    insert_in_time(&stage, "A", 5);
    advance(&stage);
    wait_passed(&stage);
    stage.sql().run(
        "BEGIN; SAVEPOINT a; INSERT INTO job VALUES ('x'); RELEASE a; \
         INSERT INTO job SELECT repeat('x', 1000) FROM generate_series(1, 200); ROLLBACK",
    );
    assert_eq!(json(&relay, &["repair", "--execute"])["summary"]["confirmed"], 5);
    assert_each_once(&stage, &["outbox"]);
}

/// What commits after the slot was looked into, and before the new one has its name, is in the new one.
#[test]
fn g1_what_commits_while_a_slot_is_replaced_is_not_lost_with_it() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        for place in ["backfill_intended=stop", "repair_slot_dropped=stop"] {
            let (stage, relay) = streamed(&kafka.bootstrap(), "replaced", mode, 20);
            free(&stage);
            insert_in_time(&stage, "A", 5);
            advance(&stage);
            wait_passed(&stage);
            let running =
                relay.clone().variable("FAILPOINT", place).start(&["repair", "--execute"]);
            running.wait_frozen();
            stage.sql().run(
                "BEGIN; INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('c0ffee00-0000-4000-8000-000000000001', 't', '1', 'A', '{\"n\": 0}'); \
                 DELETE FROM outbox WHERE id = 'c0ffee00-0000-4000-8000-000000000001'; COMMIT",
            );
            running.signal(rustix::process::Signal::CONT);
            let outcome = running.outcome();
            assert!(outcome.status.success(), "{mode:?} {place}: {:?}", outcome.log);
            relay.run_once();
            let copies = copies(&stage);
            let hidden = copies.get("c0ffee00-0000-4000-8000-000000000001");
            assert_eq!((copies.len(), hidden), (26, Some(&1)), "{mode:?} {place}");
            let slots = format!(
                "SELECT count(*) FROM pg_replication_slots WHERE database = '{}'",
                stage.slot()
            );
            assert_eq!(stage.sql().value(&slots), "1", "the temporary one is gone");
        }
    }
}

/// Once more it does nothing; and what is lost again after it can be repaired again.
#[test]
fn g6_after_a_repair_there_is_nothing_to_repair_until_the_slot_is_lost_again() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "twice", mode, (50, 30));
        assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 30);
        free(&stage);
        let at = stage.slot_value("confirmed_flush_lsn");
        assert_not_needed(&relay);
        let planned = plan(&relay, &[]);
        assert!(planned["action"].as_str().unwrap().contains("do nothing"));
        assert_eq!(planned["needed"], false, "{planned}");
        assert_eq!((stage.records().len(), stage.slot_value("confirmed_flush_lsn")), (80, at));
        free(&stage);
        // What has committed since is of the slot.
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        free(&stage);
        assert_not_needed(&relay);
        drop_slot(&stage);
        insert_in_time(&stage, "A", 20);
        assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 20, "{mode:?}");
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// A slot that streams is nothing that a backfill or a repair takes away.
#[test]
fn g6_beside_a_slot_that_streams_nothing_is_begun() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = streamed(&kafka.bootstrap(), "streams", mode, 50);
        let mut running = relay.run();
        running.wait_for_log("streaming");
        for arguments in [
            vec!["repair", "--execute"],
            vec!["backfill", "--execute"],
            vec!["backfill", "--restart", "--execute"],
        ] {
            let log = refused(&relay, &arguments, 75, "PR-P009").log.concat();
            assert!(!log.contains(DECODES), "{log}");
        }
        assert_eq!(plan(&relay, &[])["slot"]["held"], true);
        let log = relay.start(&["repair"]).outcome().log.concat();
        assert!(!log.contains(DECODES), "{log}");
        running.stop();
        free(&stage);
        let log = relay.start(&["repair"]).outcome().log.concat();
        assert!(log.contains(DECODES), "{log}");
        if mode != Mode::Plain {
            refused(&relay, &["backfill", "--execute"], 78, "PR-P105");
            refused(&relay, &["backfill", "--restart", "--execute"], 78, "PR-P105");
        }
        assert_eq!(copies(&stage).len(), 50);
        assert_eq!(stage.records().len(), 50, "nothing was sent again");
    }
}

/// The hints of what is broken name the command, and it does what they say.
#[test]
fn g6_what_a_relay_refuses_for_a_lost_slot_is_repaired_as_its_hint_says() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "hints", Mode::Once, (50, 30));
    for (arguments, code) in [(vec!["run"], "PR-P066"), (vec!["backfill", "--execute"], "PR-P089")]
    {
        let outcome = refused(&relay, &arguments, 70, code);
        assert!(outcome.log.concat().contains("postrider repair"), "{:?}", outcome.log);
    }
    stage.create_slot();
    let outcome = refused(&relay, &["run"], 70, "PR-P063");
    assert!(outcome.log.concat().contains("postrider repair"), "{:?}", outcome.log);
    repair(&relay, &[]);
    relay.run_once();
    assert_each_once(&stage, &["outbox"]);
}

/// Whether its slot is there or not: what a backfill has left behind is completed without repeats.
#[test]
fn g6_a_backfill_that_cannot_go_on_is_completed_by_a_repair() {
    let Some(kafka) = kafka::shared() else { return };
    for (mode, failpoint) in [(Mode::Once, "committed=kill@2"), (Mode::Plain, "status_due=kill@2")]
    {
        let stage = super::empty_stage(&kafka.bootstrap(), "completed");
        let relay = relay(&stage, mode);
        insert_in_time(&stage, "A", 5_000);
        let doomed = relay.clone().variable("FAILPOINT", failpoint);
        doomed.start(&["backfill", "--execute", "--rate", "2000"]).outcome();
        free(&stage);
        if mode == Mode::Once {
            refused(&relay, &["repair", "--execute"], 70, "PR-P080");
            drop_slot(&stage);
        }
        assert!(copies(&stage).len() < 5_000, "{mode:?}: it was too fast");
        assert_eq!(repair(&relay, &[])["finished"], true);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// Rows of a key that come after newer ones are counted, for consumers that need their order.
#[test]
fn rows_that_come_after_newer_rows_of_their_key_are_counted() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "late", Mode::Plain, (10, 20));
    stage.create_slot();
    // Keys 1 to 5 have newer rows in Kafka, all others have none.
    insert_in_time(&stage, "A", 5);
    relay.run_once();
    // The table's file has the newer rows first.
    stage.sql().run(
        "UPDATE outbox SET payload = payload WHERE created_at < \
         (SELECT created_at FROM outbox ORDER BY created_at DESC OFFSET 4 LIMIT 1)",
    );
    wait_passed(&stage);
    let planned = plan(&relay, &[]);
    assert_eq!(planned["missing"], 20);
    let done = repair(&relay, &[]);
    let counted = [&planned, &done["summary"]["repaired"]].map(|counts| {
        (counts["missing"].as_u64(), counts["after_newer_rows_of_their_key"].as_u64())
    });
    assert_eq!(counted, [(Some(20), Some(10)); 2], "{planned} {done}");
    relay.run_once();
    assert_each_once(&stage, &["outbox"]);
}

/// What a repair of some rows leaves out counts for nobody as delivered.
#[test]
fn g1_prune_holds_back_what_a_repair_of_some_rows_has_left_out() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "window", Mode::Once, (10, 20));
    let moment = stage.sql().value("SELECT clock_timestamp()");
    insert_in_time(&stage, "A", 30);
    assert_eq!(repair(&relay, &["--since", &moment])["summary"]["confirmed"], 30);
    assert_eq!(prunable(&stage, &relay), 0);
    // The rest is found when it is looked for, and then all of it may go.
    free(&stage);
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 20);
    assert_eq!(prunable(&stage, &relay), 60);
    assert_each_once(&stage, &["outbox"]);
}

/// How many rows `prune` would delete once the slot has passed all of them.
fn prunable(stage: &Stage, relay: &Relay) -> u64 {
    let running = relay.run();
    let next = stage.sql().value("SELECT txid_snapshot_xmax(txid_current_snapshot())");
    support::wait::wait_until("the slot to pass", || {
        stage.sql().run("CHECKPOINT");
        stage.slot_value(&format!("catalog_xmin::text::bigint >= {next}")) == "t"
    });
    running.stop();
    free(stage);
    json(relay, &["prune", "--older-than", "0s"])["delete"].as_u64().unwrap()
}
