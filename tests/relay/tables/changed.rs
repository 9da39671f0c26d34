//! What is changed while rows are read, or between two attempts: tables, and the order in which they are named.

use postrider::sandbox::postgres::Options;
use rustix::process::Signal;

use super::{OTHERS_WRITE, empty_stage, insert_in_time, json};
use crate::stage::Stage;
use support::relay::Relay;
use support::wait::wait_until;
use support::{kafka, postgres, topic};

const ROWS: usize = 3_000;
const REWRITE: &str = "ALTER TABLE outbox ALTER COLUMN payload TYPE json";

fn exactly_once(stage: &Stage) -> Relay {
    let relay = stage.relay().allow_log(OTHERS_WRITE);
    relay.set("kafka.delivery", "exactly_once").set("kafka.transaction_age", "1ms")
}

fn kill(relay: &Relay, failpoint: &str) {
    let doomed = relay.clone().variable("FAILPOINT", failpoint);
    doomed.start(&["backfill", "--execute", "--rate", "2000"]).outcome();
}

fn assert_rewritten(relay: &Relay) {
    let refused = relay.start(&["backfill", "--execute"]).outcome();
    assert_eq!(refused.status.code(), Some(70), "{:?}", refused.log);
    assert!(refused.log.concat().contains("PR-P097"), "{:?}", refused.log);
}

/// Whichever is named first: what was delivered of one table says nothing of the others.
#[test]
fn g6_the_order_of_the_tables_in_the_configuration_does_not_matter() {
    let Some(kafka) = kafka::shared() else { return };
    for failpoint in ["committed=kill@3", "record_sent=kill@3500"] {
        let stage = empty_stage(&kafka.bootstrap(), "swapped");
        stage.sql().run(
            "CREATE TABLE another (LIKE outbox INCLUDING ALL); ALTER PUBLICATION postrider ADD TABLE another",
        );
        insert_in_time(&stage, "A", ROWS);
        stage.sql().run(
            "INSERT INTO another SELECT * FROM outbox; UPDATE another SET id = gen_random_uuid()",
        );
        let relay = exactly_once(&stage);
        kill(&relay.clone().set("source.tables", "public.outbox,public.another"), failpoint);
        let swapped = relay.set("source.tables", "public.another,public.outbox");
        assert_eq!(json(&swapped, &["backfill", "--execute"])["finished"], true);
        assert_eq!(stage.records().len(), 2 * ROWS, "{failpoint}");
    }
}

/// A rewrite gives every row the number of its own transaction, so that none seems to be of before the slot.
#[test]
fn g6_a_table_that_is_rewritten_between_two_attempts_is_refused() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "rewritten");
    insert_in_time(&stage, "A", ROWS);
    let relay = exactly_once(&stage);
    kill(&relay, "committed=kill@1");
    stage.sql().run(REWRITE);
    assert_rewritten(&relay);
    let run = relay.clone().unprepared().run().outcome();
    assert!(run.log.concat().contains("PR-P080"), "no relay goes on: {:?}", run.log);
    wait_until("the slot to be free", || stage.slot_value("active") == "f");
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{}')", stage.slot()));
    let again = json(&relay, &["backfill", "--restart", "--execute"]);
    assert_eq!(again["summary"]["confirmed"], ROWS);
}

/// The slot's snapshot is older than the rows, and does not see them.
#[test]
fn g6_a_table_that_is_rewritten_just_after_the_slot_was_made_is_refused() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "rewritten_soon");
    insert_in_time(&stage, "A", ROWS);
    let relay = exactly_once(&stage);
    let stopped = relay.clone().variable("FAILPOINT", "backfill_slot_made=stop");
    let running = stopped.start(&["backfill", "--execute"]);
    running.wait_frozen();
    stage.sql().run(REWRITE);
    running.signal(Signal::CONT);
    let refused = running.outcome();
    assert_eq!(refused.status.code(), Some(70), "{:?}", refused.log);
    assert!(refused.log.concat().contains("PR-P097"), "{:?}", refused.log);
    assert_eq!(topic::read(&kafka.bootstrap(), &[stage.topic("A")]).len(), 0);
    assert_rewritten(&relay);
}

/// Rows of a table that inherits are its own, whether or not it is delivered too.
#[test]
fn g6_rows_of_tables_that_inherit_come_once() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "inherits");
    stage.sql().run(
        "CREATE TABLE child (LIKE outbox INCLUDING ALL) INHERITS (outbox); ALTER PUBLICATION postrider ADD TABLE child",
    );
    insert_in_time(&stage, "A", 10);
    stage.sql().run(
        "INSERT INTO child SELECT * FROM ONLY outbox; UPDATE child SET id = gen_random_uuid()",
    );
    let relay = exactly_once(&stage).set("source.tables", "public.outbox,public.child");
    let plan = json(&relay, &["backfill"]);
    assert_eq!((&plan["tables"][0]["rows"], &plan["tables"][1]["rows"]), (&10.into(), &10.into()));
    assert_eq!(json(&relay, &["backfill", "--execute"])["summary"]["confirmed"], 20);
}

/// A column is a number of the order only if it is a number.
#[test]
fn g6_a_column_sequence_that_is_no_number_is_no_order() {
    let Some(kafka) = kafka::shared() else { return };
    for (kind, order) in
        [("uuid", "created_at"), ("bigint", "sequence"), ("numeric NOT NULL", "sequence")]
    {
        let stage = empty_stage(&kafka.bootstrap(), "sequences");
        let default = if kind.starts_with("numeric") { "DEFAULT 1" } else { "" };
        stage.sql().run(&format!("ALTER TABLE outbox DROP COLUMN IF EXISTS sequence; ALTER TABLE outbox ADD sequence {kind} {default}"));
        insert_in_time(&stage, "A", 10);
        let relay = exactly_once(&stage);
        let plan = json(&relay, &["backfill"]);
        assert_eq!(plan["tables"][0]["order_by"][0], order, "{kind}");
        assert_eq!(json(&relay, &["backfill", "--execute"])["summary"]["confirmed"], 10);
    }
}

/// Postgres waits for what is open, and says so to nobody.
#[test]
fn a_transaction_that_stays_open_is_named_and_a_stop_is_obeyed_meanwhile() {
    let Some(kafka) = kafka::shared() else { return };
    // A cluster of its own: no other test's slot could be made meanwhile.
    let cluster = postgres::start(&Options::default());
    let stage = Stage::migrated(&cluster, &kafka.bootstrap(), "blocked");
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    insert_in_time(&stage, "A", 10);
    let open = stage.sql();
    open.run("BEGIN; DELETE FROM outbox");
    let relay = exactly_once(&stage);
    let patient = relay.clone().set("retry.give_up_after", "1s");
    let named = patient.start(&["backfill", "--execute"]).outcome();
    assert_eq!(named.status.code(), Some(69), "{:?}", named.log);
    for words in ["PR-P042", "process "] {
        assert!(named.log.concat().contains(words), "{words}: {:?}", named.log);
    }
    let stopped = relay.start(&["backfill", "--execute"]);
    wait_until("the slot that waits", || stage.slot_value("count(*)") == "1");
    stopped.signal(Signal::TERM);
    stopped.outcome();
    assert_eq!(stage.slot_value("count(*)"), "0", "no slot is left half made");
    open.run("COMMIT");
}

/// Its transaction has ended when the brokers answer: none of the others of it is refused with it.
#[test]
fn g4_a_refused_row_takes_none_of_its_transaction_with_it() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::migrated(postgres::installed(), &kafka.bootstrap(), "refused_row");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[("max.message.bytes", "20000")]);
    topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 1, &[]);
    insert_in_time(&stage, "A", 60);
    stage.sql().run(
        "UPDATE outbox SET payload = to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) AS n)) \
         WHERE id = (SELECT id FROM outbox ORDER BY created_at OFFSET 30 LIMIT 1)",
    );
    let relay = stage.relay().allow_log("").set("kafka.compression", "none");
    let relay = relay.set("kafka.linger", "300ms");
    // Transactions of ten rows, which take a tenth of a second.
    let done = relay.start(&["backfill", "--execute", "--rate", "100"]).outcome();
    assert!(done.status.success(), "{:?}", done.log);
    let letters = topic::read(&kafka.bootstrap(), &[stage.topic("dead-letters")]).len();
    let ids: std::collections::BTreeSet<_> =
        stage.records().iter().map(|one| one.header("id").unwrap().to_owned()).collect();
    assert_eq!((ids.len(), letters), (60, 1));
}
