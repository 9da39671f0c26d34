//! A primary and a standby that copies its slot, for tests of failovers.
//!
//! Input: a server's binaries, brokers. Output: both servers with a database each, and a relay that knows both.

use std::collections::BTreeSet;

use postrider::sandbox::postgres::{Cluster, Options, Stop};

use crate::stage::Stage;
use support::relay::Relay;
use support::{postgres, wait_for};

/// See the module.
pub(super) struct Pair {
    pub(super) primary: Cluster,
    pub(super) standby: Cluster,
    /// The database at the primary.
    pub(super) stage: Stage,
    /// The same at the standby.
    pub(super) after: Stage,
}

impl Pair {
    /// The two, whose slot standbys copy or not.
    pub(super) fn start(options: &Options, bootstrap: &str, stem: &str, follows: bool) -> Self {
        let mut primary = postgres::start(options);
        let stage = Stage::migrated(&primary, bootstrap, stem);
        let slot = stage.slot();
        stage.sql().run(&format!(
            "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => {follows})"
        ));
        let standby = postgres::standby_of(&mut primary, options);
        let after = Stage::before(stage.database.at(&standby), bootstrap);
        Self { primary, standby, stage, after }
    }

    /// A relay that follows the primary; one of its two hosts takes no writes, or does not answer.
    pub(super) fn relay(&self, delivery: &str) -> Relay {
        let url = both(&self.stage, &self.primary, &self.standby);
        self.stage
            .relay()
            .set("source.url", &format!("{url}?target_session_attrs=read-write"))
            .set("kafka.delivery", delivery)
            .set("retry.max", "500ms")
            .allow_log("trying again")
    }

    /// Takes the primary's power away, and lets the standby take its place.
    pub(super) fn fail_over(&mut self) {
        self.primary.stop(Stop::Kill).unwrap();
        self.promote();
    }

    /// Lets the standby take the primary's place, whatever that does.
    pub(super) fn promote(&self) {
        assert_eq!(self.after.sql().value("SELECT pg_promote()"), "t");
    }

    /// Waits until the standby has replayed all that the primary has.
    pub(super) fn wait_replayed(&self) {
        let end = self.stage.sql().value("SELECT pg_current_wal_lsn()");
        let has = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        let sql = self.after.sql();
        wait_for("the standby to have it", || (sql.value(&has) == "t").then_some(()));
    }
}

/// A URL that names both servers, the primary first.
pub(super) fn both(stage: &Stage, primary: &Cluster, standby: &Cluster) -> String {
    let host = |cluster: &Cluster| format!("127.0.0.1:{}", cluster.port());
    let both = format!("{},{}", host(primary), host(standby));
    stage.database.address().url().replace(&host(primary), &both)
}

/// It is copied for good once it has moved past what the standby keeps.
pub(super) fn wait_for_copy(stage: &Stage, standby: &Stage) {
    wait_for("the standby's copy of the slot", || {
        stage.insert("A", 1);
        stage.sql().run("SELECT pg_log_standby_snapshot()");
        let copied = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        (standby.sql().value(copied) == "1").then_some(())
    });
}

/// The ids of the rows that a server has.
pub(super) fn rows(stage: &Stage) -> BTreeSet<String> {
    let rows = stage.sql().rows("SELECT id FROM outbox");
    rows.into_iter().map(|row| row.into_iter().next().flatten().unwrap()).collect()
}

/// The ids of the rows that were delivered, and the number of records.
pub(super) fn delivered(stage: &Stage) -> (BTreeSet<String>, usize) {
    let records = stage.records();
    let ids = records.iter().filter_map(|one| one.header("id").map(str::to_owned)).collect();
    (ids, records.len())
}
