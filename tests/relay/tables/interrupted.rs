//! A backfill that is killed, whose servers go away, or whose rows are refused.

use postrider::sandbox::postgres::{Options, Stop};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt as _;

use super::{OTHERS_WRITE, Writer, empty_stage, insert_in_time, json};
use crate::stage::Stage;
use support::relay::Relay;
use support::{kafka, postgres, topic, wait_for};

/// More than a few Kafka transactions hold.
const ROWS: usize = 30_000;
/// Where it is killed, one time after the other.
const KILLS: [&str; 8] = [
    "backfill_intended=kill",
    "backfill_slot_made=kill",
    "record_sent=kill@1500",
    "progress_sent=kill@2",
    "committed=kill@3",
    "commit_asked=kill",
    "commit_due=kill@2",
    "committed=kill",
];

/// Small Kafka transactions, which end within those of the rows, too.
fn exactly_once(stage: &Stage) -> Relay {
    let relay = stage.relay().allow_log(OTHERS_WRITE).set("kafka.delivery", "exactly_once");
    relay.set("kafka.transaction_age", "1ms").set("kafka.max_in_flight", "1MiB")
}

fn kill(relay: &Relay, failpoint: &str) {
    let doomed = relay.clone().variable("FAILPOINT", failpoint);
    // However fast the brokers are, it is killed before all rows are delivered.
    let status = doomed.start(&["backfill", "--execute", "--rate", "2000"]).outcome().status;
    assert_eq!(status.signal(), Some(9), "{failpoint}: {status}");
}

#[test]
fn g6_a_backfill_that_is_killed_goes_on_and_repeats_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "killed");
    let oracle = stage.oracle();
    insert_in_time(&stage, "A", ROWS);
    let relay = exactly_once(&stage);
    let writer = Writer::start(&stage, "A");
    for failpoint in KILLS {
        kill(&relay, failpoint);
    }
    let delivered = stage.records().len();
    assert!((1_000..ROWS).contains(&delivered), "{delivered} of {ROWS} before the last attempt");
    // The plan counts what is left, and none of the writer's rows of after the slot.
    let plan = json(&relay, &["backfill"]);
    let status = relay.start(&["status", "--output", "json"]).outcome().stdout;
    assert!(status.contains(r#""unfinished":"backfill""#), "{status}");
    // What is delivered may be deleted, and does not count.
    let some =
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY created_at LIMIT 500)";
    stage.sql().run(some);
    // No relay begins before the rows that came first are there.
    let refused = relay.clone().unprepared().run().outcome();
    assert_eq!(refused.status.code(), Some(70));
    assert!(refused.log.concat().contains("PR-P080"), "{:?}", refused.log);
    let done = json(&relay, &["backfill", "--execute"]);
    assert_eq!(done["finished"], true);
    assert_eq!(done["summary"]["confirmed"], plan["tables"][0]["rows"], "{plan}");
    let running = relay.clone().unprepared().run();
    writer.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

/// Transactions that are open while the slot is made are of the stream, and so are their savepoints, whoever asks
/// later by which number they wrote.
#[test]
fn g6_what_committed_after_the_slot_is_of_the_stream_though_it_began_before() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "open");
    let oracle = stage.oracle();
    insert_in_time(&stage, "A", 5_000);
    let relay = exactly_once(&stage);
    let stopped = relay
        .clone()
        .variable("FAILPOINT", "record_sent=stop@10")
        .start(&["backfill", "--execute"]);
    // The slot waits for transactions that are open when it is asked for; these begin just after that.
    let held = stage.sql();
    stopped.wait_frozen();
    held.run("BEGIN; SAVEPOINT one");
    held.run(&super::insert("A", 10));
    held.run("RELEASE SAVEPOINT one; SAVEPOINT two");
    held.run(&super::insert("A", 10));
    held.run("ROLLBACK TO SAVEPOINT two");
    held.run(&super::insert("A", 10));
    held.run("COMMIT");
    insert_in_time(&stage, "A", 10);
    stopped.kill();
    assert_eq!(json(&relay, &["backfill", "--execute"])["finished"], true);
    assert_eq!(stage.records().len(), 5_000);
    relay.clone().unprepared().run_once();
    let verdict = stage.verdict(&oracle, &[]);
    verdict.assert_exactly_once();
    assert_eq!(verdict.delivered, 5_030);
}

/// At least once the place is known in Kafka where progress is kept there, and to nobody else.
#[test]
fn at_least_once_a_backfill_goes_on_by_progress_or_begins_anew_when_told_to() {
    let Some(kafka) = kafka::shared() else { return };
    for keeps_progress in [true, false] {
        let stage = empty_stage(&kafka.bootstrap(), "again");
        let oracle = stage.oracle();
        insert_in_time(&stage, "A", ROWS);
        let relay = stage.relay().set("kafka.max_in_flight", "1MiB");
        let relay = relay.set("source.status_interval", "50ms");
        let relay = relay.set("progress.at_least_once", &keeps_progress.to_string());
        kill(&relay, "status_sent=kill@9");
        let delivered = stage.records().len();
        assert!(delivered < ROWS, "all of it was delivered too soon");
        let next = relay.start(&["backfill", "--execute"]).outcome();
        if keeps_progress {
            assert!(next.status.success(), "{:?}", next.log);
            let repeated = stage.records().len() - ROWS;
            assert!(repeated < ROWS, "{repeated} repeated, {delivered} were delivered");
        } else {
            assert_eq!(next.status.code(), Some(78));
            assert!(next.log.concat().contains("PR-P083"), "{:?}", next.log);
            assert_eq!(json(&relay, &["backfill", "--restart", "--execute"])["finished"], true);
        }
        stage.insert("A", 10);
        relay.run_once();
        stage.verdict(&oracle, &[]).assert_at_least_once();
    }
}

/// The second one drops the slot that the first one has made and not yet taken, and delivers all rows.
#[test]
fn g6_of_two_backfills_at_once_one_sends() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["exactly_once", "at_least_once"] {
        let stage = empty_stage(&kafka.bootstrap(), "two");
        insert_in_time(&stage, "A", 300);
        let relay = stage.relay().allow_log(OTHERS_WRITE).unprepared();
        let relay = relay.set("kafka.delivery", delivery).set("progress.at_least_once", "true");
        let stopped = relay.clone().variable("FAILPOINT", "backfill_slot_made=stop").allow_log("");
        let first = stopped.start(&["backfill", "--execute"]);
        first.wait_frozen();
        assert_eq!(json(&relay, &["backfill", "--execute"])["summary"]["confirmed"], 300);
        first.signal(Signal::CONT);
        let outcome = first.outcome();
        assert!(!outcome.status.success(), "{delivery}: {:?}", outcome.log);
        stage.insert("A", 10);
        wait_for("the slot to be free", || (stage.slot_value("active") == "f").then_some(()));
        relay.run_once();
        assert_eq!(stage.records().len(), 310, "{delivery}");
    }
}

/// Postgres restarts, and a batch is refused for one of its rows: it goes on by itself.
#[test]
fn g4_a_backfill_goes_on_over_a_restart_of_postgres_and_a_refused_row() {
    let Some(kafka) = kafka::shared() else { return };
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::migrated(&cluster, &kafka.bootstrap(), "restart");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[("max.message.bytes", "20000")]);
    topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 3, &[]);
    insert_in_time(&stage, "A", 3_000);
    stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 't', '3', 'A', to_jsonb(string_agg(md5(n::text), '')), clock_timestamp() \
         FROM generate_series(1, 2000) AS n",
    );
    insert_in_time(&stage, "A", 3_000);
    let relay = exactly_once(&stage).set("retry.initial", "50ms").set("kafka.compression", "none");
    let rated = relay.allow_log("").start(&["backfill", "--execute", "--rate", "1500"]);
    wait_for("the first rows", || (stage.records().len() > 500).then_some(()));
    cluster.restart(Stop::Fast).unwrap();
    let outcome = rated.outcome();
    assert!(outcome.status.success(), "{:?}", outcome.log);
    let records = stage.records();
    let is_letter = |one: &&topic::Stored| one.topic == stage.topic("dead-letters");
    let letters: Vec<_> = records.iter().filter(is_letter).collect();
    let first = letters.first().map(|letter| &letter.headers);
    assert_eq!((records.len(), letters.len()), (6_001, 1), "{first:?} {:?}", outcome.log);
}

/// Who drops the slot, or moves it, is told what is missing, and may begin anew.
#[test]
fn a_backfill_whose_slot_is_gone_begins_anew_only_when_told_to() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "dropped");
    insert_in_time(&stage, "A", ROWS);
    let relay = exactly_once(&stage);
    kill(&relay, "committed=kill@3");
    let refused = |code: &str| {
        let outcome = relay.start(&["backfill", "--execute"]).outcome();
        assert_eq!(outcome.status.code(), Some(70), "{:?}", outcome.log);
        assert!(outcome.log.concat().contains(code), "{code}: {:?}", outcome.log);
    };
    let slot = stage.slot();
    // Whoever had it is told a moment later that its client is gone.
    let free =
        || wait_for("the slot to be free", || (stage.slot_value("active") == "f").then_some(()));
    free();
    insert_in_time(&stage, "A", 1);
    stage.sql().run(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"));
    refused("PR-P084");
    free();
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    refused("PR-P084");
    let done = json(&relay, &["backfill", "--restart", "--execute"]);
    assert_eq!(
        (&done["finished"], &done["summary"]["confirmed"]),
        (&true.into(), &(ROWS + 1).into())
    );
    free();
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    refused("PR-P089");
}
