//! What a restart must not pass over.

use crate::delivery::idle::impatient;
use crate::trial::{DELIVERIES, TOPIC, Trial, trials};
use support::cutting_proxy::CuttingProxy;
use support::sql::Sql;
use support::{kafka, unique, wait_for};

/// A transaction on a session of its own, with one row, left open.
fn open_transaction(trial: &Trial) -> Sql {
    let sql = trial.stage.sql();
    sql.run(&format!("BEGIN; {}", row("early")));
    sql
}

/// A statement that writes a row with this key.
fn row(key: &str) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', '{key}', '{TOPIC}', '{{}}')"
    )
}

/// What was flushed to Postgres was the position last read, not the one that Kafka had.
/// Here the rows that a silent broker has not answered for would be lost by the restart.
#[test]
fn dbz_7816_what_was_read_but_not_stored_comes_again_after_a_restart() {
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    for delivery in DELIVERIES {
        let trial = Trial::blind(&kafka.bootstrap(), "not_stored", delivery);
        trial.create_topics(&[TOPIC, "dead-letters"]);
        let relay = impatient(trial.relay()).allow_log("roker");
        let running = relay.run();
        trial.stage.insert(TOPIC, 10);
        trial.wait_settled();
        kafka.freeze_broker(0);
        trial.stage.insert(TOPIC, 30);
        let end = trial.oracle.committed()[1].end_lsn;
        let has_read = || trial.tap.statuses().iter().any(|status| status.write >= end);
        wait_for("the rows to be read", || has_read().then_some(()));
        assert!(trial.stage.acknowledged() < end);
        running.kill();
        kafka.resume_broker(0);
        relay.run_once();
        assert_eq!(trial.assert_kept_unseen().delivered, 40);
    }
}

/// A Begin has the position of the row behind it; whoever had seen one skipped the other.
/// Here the row would be lost whose Begin was the last thing that several sessions saw.
#[test]
fn dbz_5915_the_first_row_is_delivered_though_its_begin_was_seen_before() {
    for trial in trials("begun") {
        // Before anything is cut.
        trial.relay().prepare();
        let proxy = CuttingProxy::behind_begin(5);
        let address = proxy.before(&trial.stage.database.address());
        let relay = trial.relay().set("source.url", &format!("{}?sslmode=disable", address.url()));
        // A cut while a session begins may look like a slot that was taken away.
        let relay = relay.set("log.repeat_interval", "0s").allow_log("trying again");
        trial.stage.insert(TOPIC, 1);
        trial.stage.insert(TOPIC, 2);
        let running = relay.run();
        trial.wait_settled();
        running.stop();
        assert_eq!(proxy.left(), 0, "cut too seldom to show anything");
        assert_eq!(trial.assert_once().delivered, 3);
    }
}

/// A transaction that had begun before a restart and was partly delivered was passed over after it.
/// Here the rows of the transaction in whose midst the relay was killed would be lost.
#[test]
fn dbz_8312_a_transaction_in_whose_midst_the_relay_ended_is_delivered_whole() {
    for trial in trials("in_its_midst") {
        let relay = trial.relay().set("kafka.max_in_flight", "1MiB");
        let running = relay.run();
        trial.stage.insert(TOPIC, 10);
        trial.wait_settled();
        let early = open_transaction(&trial);
        trial.stage.insert(TOPIC, 40_000);
        early.run("COMMIT");
        if trial.delivery == "at_least_once" {
            trial.stage.wait_for_records(200);
        }
        running.kill();
        assert!(trial.stage.records().len() < 40_000, "killed too late to show anything");
        relay.run_once();
        assert_eq!(trial.assert_kept().delivered, 40_011);
    }
}

/// The position of a change inside an open transaction was committed; its neighbours were skipped.
/// Here a transaction open at the restart, older than what was acknowledged, would be lost.
#[test]
fn dbz_9149_a_transaction_open_at_a_restart_is_delivered_when_it_commits() {
    for trial in trials("still_open") {
        let relay = trial.relay();
        let (first, second) = (open_transaction(&trial), open_transaction(&trial));
        let running = relay.run();
        trial.stage.insert(TOPIC, 20);
        // Its rows are younger than those of the open ones, and acknowledged before them.
        trial.stage.wait_for_records(20);
        wait_for("the acknowledgement", || (acknowledged_rows(&trial) == 20).then_some(()));
        running.kill();
        first.run(&format!("{}; COMMIT", row("late")));
        trial.stage.insert(TOPIC, 1);
        let running = relay.run();
        second.run(&format!("SAVEPOINT s; {}; RELEASE s; COMMIT", row("later")));
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_kept().delivered, 25);
    }
}

/// Rows that are committed and acknowledged.
fn acknowledged_rows(trial: &Trial) -> usize {
    let position = trial.stage.acknowledged();
    let committed = trial.oracle.committed();
    committed.iter().filter(|it| it.end_lsn <= position).map(|it| it.ids.len()).sum()
}

/// All rows of a COPY may have one position; after the first of them the position counted as done.
/// Here the rest of a COPY in whose midst the relay was killed would be lost.
#[test]
fn dbz_1554_rows_of_one_copy_are_all_delivered_across_a_restart() {
    for trial in trials("copied") {
        let relay = trial.relay().set("kafka.max_in_flight", "1MiB");
        let running = relay.run();
        trial.stage.insert(TOPIC, 10);
        trial.wait_settled();
        let file = trial.stage.database.address().socket_folder.join(unique("copy"));
        let sql = trial.stage.sql();
        // The server writes and reads the file: COPY it is, not INSERT.
        sql.run(&format!(
            "COPY (SELECT gen_random_uuid(), 't', n % 10, '{TOPIC}', '{{}}' \
             FROM generate_series(1, 100000) AS n) TO '{0}'; \
             COPY outbox (id, aggregate_type, aggregate_id, event_type, payload) FROM '{0}'",
            file.display()
        ));
        if trial.delivery == "at_least_once" {
            trial.stage.wait_for_records(200);
        }
        running.kill();
        assert!(trial.stage.records().len() < 100_000, "killed too late to show anything");
        relay.run_once();
        assert_eq!(trial.assert_kept().delivered, 100_010);
    }
}

/// A logical message carries the position of its end, so the row behind it counted as known.
/// Here the row after a message, in the same transaction or the next, would be lost by a restart.
#[test]
fn dbz_2058_rows_after_a_logical_message_are_delivered_across_a_restart() {
    for trial in trials("after_a_message") {
        let relay = trial.relay();
        let sql = trial.stage.sql();
        for transactional in [true, false] {
            for others in ["outbox", "of somebody else"] {
                let message = format!(
                    "SELECT pg_logical_emit_message({transactional}, '{others}', 'heartbeat')"
                );
                let relay = relay.clone().set("messages.prefixes", "postman").run();
                sql.run(&message);
                trial.wait_settled();
                // What was last read is a message; then the relay ends, and a row follows.
                relay.kill();
                sql.run(&format!("BEGIN; {message}; {}; {message}; {0}; COMMIT", row("k")));
                sql.run(&row("k"));
            }
        }
        relay.set("messages.prefixes", "postman").run_once();
        assert_eq!(trial.assert_kept().delivered, 12);
    }
}
