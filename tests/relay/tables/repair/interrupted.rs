//! A repair that is killed, or meets another one, or tables that are not what they were.

use std::os::unix::process::ExitStatusExt as _;

use postrider::sandbox::postgres::Options;
use rustix::process::Signal;
use support::relay::Relay;
use support::wait::wait_until;
use support::{is_full, kafka, postgres, topic, wait_for};

use super::{
    MODES, Mode, advance, assert_each_once, assert_not_needed, begin, drop_slot, free, has_slot,
    lost, plan, refused, relay, repair, wait_passed,
};
use crate::stage::Stage;
use crate::tables::{Writer, insert_in_time, json};

/// A row that is made larger than a frame may be.
const LARGE: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
     VALUES ('t', '1', 'A', '{\"n\": \"large\"}', clock_timestamp())";

/// More than a few Kafka transactions hold.
const MISSING: usize = 12_000;

fn kill(relay: &Relay, failpoint: &str) {
    let doomed = relay.clone().variable("FAILPOINT", failpoint);
    // However fast the brokers are, it is killed before all rows are delivered.
    let arguments = ["repair", "--execute", "--drop-slot", "--rate", "2000"];
    let outcome = doomed.start(&arguments).outcome();
    assert_eq!(outcome.status.signal(), Some(9), "{failpoint}: {:?}", outcome.log);
}

#[test]
fn g6_a_repair_that_is_killed_goes_on_and_repeats_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    // At least once with progress passes the places of the others.
    for mode in MODES.into_iter().filter(|mode| is_full() || *mode != Mode::Kept) {
        let stage = super::empty_stage(&kafka.bootstrap(), "killed");
        let oracle = stage.oracle();
        let relay = relay(&stage, mode);
        begin(&stage, &relay);
        insert_in_time(&stage, "A", 1_000);
        relay.run_once();
        drop_slot(&stage);
        insert_in_time(&stage, "A", MISSING);
        let writer = Writer::start(&stage, "A");
        let once =
            ["progress_sent=kill@2", "committed=kill@3", "commit_due=kill@2", "commit_asked=kill"];
        let always = ["backfill_slot_made=kill", "repair_compared=kill", "record_sent=kill@700"];
        let of_mode: &[&str] = match mode {
            Mode::Once => &once,
            Mode::Kept => &["status_sent=kill@4"],
            Mode::Plain => &["repair_slot_dropped=kill", "status_due=kill@2"],
        };
        // Only exactly once a record passes there.
        let always =
            always.iter().filter(|place| mode == Mode::Once || !place.starts_with("record"));
        kill(&relay, "backfill_intended=kill");
        for failpoint in always.chain(of_mode) {
            kill(&relay, failpoint);
            free(&stage);
            if mode != Mode::Plain && has_slot(&stage) {
                let outcome = refused(&relay, &["run"], 70, "PR-P100");
                assert!(outcome.log.concat().contains("postrider repair"), "{:?}", outcome.log);
            }
        }
        if mode != Mode::Plain {
            refused(&relay, &["backfill", "--execute"], 70, "PR-P100");
            refused(&relay, &["backfill", "--restart", "--execute"], 70, "PR-P100");
            assert_eq!(plan(&relay, &[])["begun"], true);
        }
        assert_eq!(repair(&relay, &[])["finished"], true);
        let running = relay.run();
        writer.stop();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let verdict = stage.verdict(&oracle, &[]);
        verdict.assert_exactly_once();
    }
}

/// What was missing has come, and that the stream follows was not noted: the next attempt ends it.
#[test]
fn g6_a_repair_that_has_nothing_left_to_send_ends() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "last", mode, (20, 30));
        kill(&relay, "repair_compared=kill");
        let since = stage
            .sql()
            .value("SELECT created_at FROM outbox ORDER BY created_at OFFSET 20 LIMIT 1");
        assert_eq!(
            json(&relay, &["replay", "--execute", "--since", &since])["summary"]["confirmed"],
            30
        );
        free(&stage);
        if mode == Mode::Plain {
            assert_not_needed(&relay);
        } else {
            assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 0);
        }
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// Options are those that it was begun with: `2h` is as long ago as it was then.
#[test]
fn g6_a_repair_goes_on_with_the_rows_that_it_was_begun_for() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "scope", Mode::Once, (20, 3_000));
    stage.sql().run(
        "UPDATE outbox SET created_at = created_at - interval '3 hours' WHERE id IN \
         (SELECT id FROM outbox ORDER BY created_at DESC LIMIT 10)",
    );
    refused(&relay, &["repair", "--execute", "--since", "tomorrowish"], 2, "PR-V003");
    refused(&relay, &["repair", "--execute", "--since", "2h", "--until", "later"], 2, "PR-V003");
    assert!(!has_slot(&stage), "what is no time makes nothing");
    let doomed = relay.clone().variable("FAILPOINT", "committed=kill");
    doomed.start(&["repair", "--execute", "--since", "2h", "--rate", "1000"]).outcome();
    free(&stage);
    let sent = stage.records().len() - 20;
    assert!((1..2_990).contains(&sent), "{sent}");
    let outcome = refused(&relay, &["repair", "--execute"], 78, "PR-P103");
    assert!(outcome.log.concat().contains("--since '2h'"), "{:?}", outcome.log);
    refused(&relay, &["repair", "--since", "1h"], 78, "PR-P103");
    assert_eq!(stage.records().len(), 20 + sent);
    free(&stage);
    assert_eq!(repair(&relay, &["--since", "2h"])["summary"]["confirmed"], 2_990 - sent);
    free(&stage);
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 10);
    assert_each_once(&stage, &["outbox"]);
}

/// Two at once: the slot is the lock, and who has lost it sends nothing more.
#[test]
fn g6_of_two_repairs_at_once_one_sends() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "both", mode, (20, 300));
        // Stopped as it knows what is missing.
        let stopped = relay.clone().variable("FAILPOINT", "repair_compared=stop").allow_log("");
        let first = stopped.start(&["repair", "--execute"]);
        first.wait_frozen();
        refused(&relay, &["repair", "--execute"], 75, "PR-P009");
        stage.sql().run(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
             WHERE slot_name = current_database()",
        );
        free(&stage);
        assert_eq!(repair(&relay, &[])["finished"], true, "{mode:?}");
        first.signal(Signal::CONT);
        let outcome = first.outcome();
        // It may look again, and find that nothing is missing.
        let is_done = outcome.stdout.contains("nothing is to be repaired");
        assert_eq!(outcome.status.success(), is_done, "{mode:?}: {outcome:?}");
        assert_each_once(&stage, &["outbox"]);
        // What it leaves behind is a stream that goes on.
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// The second one takes the slot that the first one has made and does not hold yet.
#[test]
fn g6_a_repair_that_is_overtaken_by_another_leaves_it_alone() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "overtaken", mode, (20, 300));
        let stopped = relay.clone().variable("FAILPOINT", "backfill_slot_made=stop").allow_log("");
        let first = stopped.start(&["repair", "--execute"]);
        first.wait_frozen();
        assert_eq!(repair(&relay, &[])["finished"], true, "{mode:?}");
        first.signal(Signal::CONT);
        let outcome = first.outcome();
        let is_done = outcome.stdout.contains("nothing is to be repaired");
        assert_eq!(outcome.status.success(), is_done, "{mode:?}: {outcome:?}");
        free(&stage);
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// The server has ended the slot's connection meanwhile: it is begun again, and nothing comes twice.
#[test]
fn g6_a_slot_that_is_taken_away_while_topics_are_compared_is_noticed() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "away", mode, (20, 300));
        let stopped = relay.clone().variable("FAILPOINT", "backfill_slot_made=stop").allow_log("");
        let running = stopped.start(&["repair", "--execute"]);
        running.wait_frozen();
        // It takes the slot only now; as soon as it has, that is taken away again.
        running.signal(Signal::CONT);
        let ended = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                     WHERE slot_name = current_database() AND active";
        wait_for("the slot to be held", || (!stage.sql().rows(ended).is_empty()).then_some(()));
        let outcome = running.outcome();
        assert!(outcome.status.success(), "{mode:?}: {:?}", outcome.log);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// What was committed meanwhile may be neither of before the slot nor in its stream.
#[test]
fn g6_a_repair_does_not_go_on_with_other_tables() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "tables", Mode::Once, (20, 30));
    stage.sql().run(
        "CREATE TABLE another (LIKE outbox INCLUDING ALL); ALTER PUBLICATION postrider ADD TABLE another",
    );
    kill(&relay, "repair_compared=kill");
    free(&stage);
    let both = relay.clone().set("source.tables", "public.outbox,public.another");
    let outcome = refused(&both, &["repair", "--execute"], 78, "PR-P091");
    assert!(outcome.log.concat().contains("postrider repair --execute"), "{:?}", outcome.log);
    free(&stage);
    // Or the table is rewritten, so that nobody can tell which rows were there before.
    stage.sql().run("ALTER TABLE outbox ALTER COLUMN payload TYPE json");
    let outcome = refused(&relay, &["repair", "--execute"], 70, "PR-P097");
    let log = outcome.log.concat();
    assert!(log.contains("postrider repair --execute") && !log.contains("--restart"), "{log}");
    assert_eq!(stage.records().len(), 20, "nothing was sent");
    // As the hint says: it compares anew.
    drop_slot(&stage);
    assert_eq!(repair(&both, &[])["summary"]["confirmed"], 30);
    both.run_once();
    assert_each_once(&stage, &["outbox", "another"]);
}

/// A slot that could not be made anew is not dropped.
#[test]
fn g6_a_slot_that_is_there_is_not_dropped_while_none_can_be_made() {
    let Some(kafka) = kafka::shared() else { return };
    // A cluster of its own: the transactions of no other test are open.
    let cluster = postgres::start(&Options::default());
    for mode in MODES {
        let stage = Stage::migrated(&cluster, &kafka.bootstrap(), "kept");
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
        }
        let relay = relay(&stage, mode);
        begin(&stage, &relay);
        insert_in_time(&stage, "A", 10);
        advance(&stage);
        let at = stage.slot_value("confirmed_flush_lsn");
        let open = stage.sql();
        open.run("BEGIN; DELETE FROM outbox");
        let patient = relay.clone().set("retry.give_up_after", "1s");
        refused(&patient, &["repair", "--execute", "--drop-slot"], 69, "PR-P042");
        assert_eq!(stage.slot_value("confirmed_flush_lsn"), at, "{mode:?}: it is where it was");
        open.run("ROLLBACK");
        free(&stage);
        // A comparison may take longer than that: it is no outage.
        assert_eq!(repair(&patient, &[])["summary"]["confirmed"], 10, "{mode:?}");
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
        drop_slot(&stage);
    }
}

/// A stop is obeyed while topics are compared, and says that it has not ended.
#[test]
fn g8_a_repair_that_is_stopped_says_so_and_goes_on_later() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "stopped", mode, (20, 300));
        let frozen = relay.clone().variable("FAILPOINT", "backfill_slot_made=stop");
        let running = frozen.start(&["repair", "--execute"]);
        running.wait_frozen();
        running.signal(Signal::TERM);
        running.signal(Signal::CONT);
        let outcome = running.outcome();
        assert_eq!(outcome.status.code(), Some(69), "{mode:?}: {:?}", outcome.log);
        assert!(outcome.stdout.contains("resume it before `postrider run`"), "{}", outcome.stdout);
        assert!(has_slot(&stage), "{mode:?}");
        assert_eq!(stage.records().len(), 20, "nothing was sent");
        free(&stage);
        assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 300);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}

/// A server without room for the slot.
#[test]
fn g6_where_no_slot_is_free_nothing_is_sent_and_it_is_done_later() {
    let Some(kafka) = kafka::shared() else { return };
    let cluster = postgres::start(&Options::default().with("max_replication_slots", "1"));
    let stage = Stage::migrated(&cluster, &kafka.bootstrap(), "room");
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    let relay = relay(&stage, Mode::Once);
    begin(&stage, &relay);
    drop_slot(&stage);
    insert_in_time(&stage, "A", 10);
    stage.sql().run("SELECT pg_create_physical_replication_slot('other')");
    let planned = plan(&relay, &[]);
    let action = planned["action"].as_str().unwrap();
    assert!(action.contains("PR-P043") && action.contains("max_replication_slots"), "{action}");
    refused(&relay, &["repair", "--execute"], 78, "PR-P043");
    assert_eq!(stage.records().len(), 0);
    refused(&relay, &["run"], 70, "PR-P100");
    stage.sql().run("SELECT pg_drop_replication_slot('other')");
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 10);
    relay.run_once();
    free(&stage);
    // One that is there is replaced all the same, though there is no room for another one meanwhile.
    insert_in_time(&stage, "A", 5);
    advance(&stage);
    wait_passed(&stage);
    let planned = relay.start(&["repair"]).outcome().log.concat();
    assert!(planned.contains("can be read is not known"), "a plan does not take it: {planned}");
    let planned = plan(&relay, &[]);
    let action = planned["action"].as_str().unwrap();
    assert!(
        action.contains("is not known") && action.contains("max_replication_slots"),
        "{action}"
    );
    assert_eq!(json(&relay, &["repair", "--execute"])["summary"]["confirmed"], 5);
    relay.run_once();
    assert_each_once(&stage, &["outbox"]);
}

/// What has ended with an error leaves the slot, and is done again.
#[test]
fn g6_a_repair_that_fails_keeps_the_slot_that_it_has_made() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let (stage, relay) = lost(&kafka.bootstrap(), "fails", mode, (20, 300));
        refused(&relay, &["repair", "--execute", "--work-dir", "/nowhere/at/all"], 1, "PR-V001");
        assert!(!has_slot(&stage), "{mode:?}: what can be known before is");
        // A row that cannot be read ends it behind the slot.
        let enlarge = "UPDATE outbox SET payload = to_jsonb(repeat('x', 3000000)) WHERE payload->>'n' = 'large'";
        stage.sql().run(&format!("{LARGE}; {enlarge}"));
        let small = relay.clone().set("source.frame_max", "1MiB");
        refused(&small, &["repair", "--execute"], 78, "PR-P081");
        // Where no progress is kept, rows are compared before there is a slot.
        assert_eq!(has_slot(&stage), mode != Mode::Plain, "{mode:?}");
        stage.sql().run("DELETE FROM outbox WHERE octet_length(payload::text) > 1000000");
        let at = (mode != Mode::Plain).then(|| stage.slot_value("confirmed_flush_lsn"));
        insert_in_time(&stage, "A", 5);
        if let Some(at) = at {
            free(&stage);
            assert_eq!(repair(&relay, &[])["finished"], true);
            assert_eq!(stage.slot_value("confirmed_flush_lsn"), at, "the same slot");
        } else {
            assert_eq!(repair(&relay, &[])["finished"], true);
        }
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
        wait_until("the slot to be free", || stage.slot_value("active") == "f");
    }
}
