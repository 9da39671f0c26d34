//! Acknowledged too early, and never.

use std::time::Duration;

use crate::delivery::idle::make_noise;
use crate::trial::{TOPIC, trials};

use super::held::{HELD, HeldTrial, held_trials};
use support::relay::Running;
use support::relay_http::RelayHttp;
use support::wait::{stays, wait_until};
use support::wait_for;

/// How often progress is written for its own sake, which an idle slot follows.
const IDLE_PROGRESS: Duration = Duration::from_secs(10);

/// Longer than the relay stays silent.
const A_WHILE: Duration = Duration::from_millis(2_500);

/// A relay before whose first row, to a topic that stores nothing yet, everything else must wait.
struct Waiting<'a> {
    running: Running,
    face: RelayHttp,
    /// The end of the log before that row was written.
    before: u64,
    trial: &'a HeldTrial,
}

impl<'a> Waiting<'a> {
    fn new(trial: &'a HeldTrial) -> Self {
        let mut running =
            trial.relay().allow_log("has tables that source.tables does not name").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        trial.stage.insert(TOPIC, 10);
        trial.wait_settled();
        let before = trial.stage.log_end();
        trial.stage.insert(HELD, 1);
        Self { running, face, before, trial }
    }

    /// The end of the row that waits.
    fn end(&self) -> u64 {
        let committed = self.trial.oracle.committed();
        committed.iter().find(|it| it.end_lsn > self.before).unwrap().end_lsn
    }

    /// The slot stays before the row for a while, though the relay has read past it and says so.
    fn assert_waits(&self) {
        let (end, told) = (self.end(), self.trial.tap.statuses().len());
        stays("the slot is before the row", A_WHILE, || self.trial.stage.acknowledged() < end);
        wait_until("a status update", || self.trial.tap.statuses().len() > told);
        let statuses = self.trial.tap.statuses();
        let latest = statuses.last().unwrap();
        assert!(latest.write >= end, "it has not even been read: {latest:X?}");
        assert!(statuses.iter().all(|status| status.flush < end), "acknowledged: {latest:X?}");
    }

    /// The topic stores again: everything arrives.
    fn end_well(self) {
        self.trial.release();
        self.running.stop();
        self.trial.assert_kept_unseen();
    }
}

/// The last callback to come decided what was flushed, and callbacks of two topics come in any order.
/// Here the slot would pass the waiting row as soon as rows behind it are stored in another topic.
#[test]
fn yugabyte_33126_a_later_confirmation_acknowledges_nothing_before_it() {
    for trial in held_trials("out_of_order") {
        let waiting = Waiting::new(&trial);
        trial.stage.insert(TOPIC, 20);
        trial.stage.insert(TOPIC, 20);
        if trial.delivery == "at_least_once" {
            waiting.face.wait_count("postrider_records_confirmed_total", 50);
        }
        waiting.assert_waits();
        waiting.end_well();
    }
}

/// A transaction without rows of ours advanced the position at once, over rows not delivered yet.
/// Here the slot would pass the waiting row with the next transaction of another table.
#[test]
fn spiceai_11582_an_empty_transaction_acknowledges_nothing_before_it() {
    for trial in held_trials("empty") {
        let sql = trial.stage.sql();
        // Postgres leaves out transactions of tables that are not published: this one is.
        sql.run("CREATE TABLE other (n int); ALTER PUBLICATION postrider ADD TABLE other");
        let waiting = Waiting::new(&trial);
        for n in 0..20 {
            sql.run(&format!("INSERT INTO other VALUES ({n})"));
        }
        waiting.assert_waits();
        waiting.end_well();
    }
}

/// Keepalives moved the position though the application had confirmed nothing that it was sent.
/// Here the slot would pass the waiting row with the log's own growth, which comes by keepalive only.
#[test]
fn psycopg2_940_a_keepalive_acknowledges_nothing_that_is_unconfirmed() {
    for trial in held_trials("keepalive") {
        let waiting = Waiting::new(&trial);
        let sql = trial.stage.sql();
        for _ in 0..5 {
            // No transaction of this database, so nothing but keepalives tells of it.
            sql.run("SELECT pg_switch_wal()");
            sql.run("CHECKPOINT");
        }
        waiting.assert_waits();
        waiting.end_well();
    }
}

/// The periodic status update reported what was received as flushed, though nobody had confirmed it.
/// Here the updates on the wire would say so; each of them is read and held against the row.
#[test]
fn pg_logical_replication_174_the_periodic_status_update_acknowledges_nothing_by_itself() {
    for trial in held_trials("periodic") {
        let waiting = Waiting::new(&trial);
        for _ in 0..2 {
            waiting.assert_waits();
        }
        waiting.end_well();
    }
}

/// The opposite: keepalives were never acknowledged, so an idle stream kept the log for ever.
/// Here the slot would stay where the last row was, however much the log grows behind it.
#[test]
fn rocicorp_3463_keepalives_are_acknowledged_when_nothing_waits() {
    for trial in trials("idle_stream") {
        let running = trial.relay().run();
        trial.stage.insert(TOPIC, 10);
        trial.wait_settled();
        let sql = trial.stage.sql();
        for _ in 0..3 {
            sql.run("SELECT pg_switch_wal()");
            sql.run("CHECKPOINT");
            let took = trial.stage.wait_acknowledged(trial.stage.log_end());
            assert!(took < IDLE_PROGRESS + Duration::from_secs(20), "{took:?}");
        }
        running.stop();
        trial.assert_once();
    }
}

/// Changes of tables that are filtered out were never acknowledged, and the log grew without bound.
/// Here neither position of the slot would follow the traffic of a table that is not published.
#[test]
fn dbz_800_traffic_of_other_tables_lets_the_log_go() {
    for trial in trials("filtered") {
        let running = trial.relay().run();
        trial.stage.insert(TOPIC, 10);
        trial.wait_settled();
        let written = trial.stage.log_end();
        for _ in 0..3 {
            make_noise(&trial.stage);
            trial.wait_settled();
        }
        let restart = || -> u64 { trial.stage.slot_value("restart_lsn - '0/0'").parse().unwrap() };
        // Postgres moves it with the snapshots that it logs every so often, and at checkpoints.
        wait_for("the log to be let go", || {
            trial.stage.sql().run("CHECKPOINT");
            (restart() > written).then_some(())
        });
        running.stop();
        assert_eq!(trial.assert_once().delivered, 10);
    }
}
