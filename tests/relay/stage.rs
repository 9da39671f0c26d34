//! One test's part of the servers: a database with an outbox, a slot, topics with a prefix.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Address, Cluster};
use rdkafka::ClientContext;
use rdkafka::mocking::MockCluster;

use crate::delivery::idle::ALL;
use support::broker::take_down;
use support::judge::{Verdict, judge};
use support::oracle::{Committed, Oracle};
use support::postgres::Database;
use support::relay::Relay;
use support::sql::Sql;
use support::status_log::{Status, StatusLog};
use support::topic::{self, Stored};
use support::wait_for;

/// See the module.
pub(crate) struct Stage {
    pub(crate) database: Database,
    bootstrap: String,
    prefix: String,
}

impl Stage {
    /// A migrated database in `cluster` with a slot, before topics of `bootstrap`.
    pub(crate) fn new(cluster: &Cluster, bootstrap: &str, stem: &str) -> Self {
        let stage = Self::migrated(cluster, bootstrap, stem);
        stage.create_slot();
        stage
    }

    /// A database with table and publication, without slot.
    pub(crate) fn migrated(cluster: &Cluster, bootstrap: &str, stem: &str) -> Self {
        Self::before(Database::migrated(cluster, stem), bootstrap)
    }

    /// The same under the name that a stage in another cluster has.
    pub(crate) fn named(cluster: &Cluster, bootstrap: &str, name: &str) -> Self {
        Self::before(Database::migrated_named(cluster, name), bootstrap)
    }

    /// An empty database, without table, publication and slot.
    pub(crate) fn empty(cluster: &Cluster, bootstrap: &str, stem: &str) -> Self {
        Self::before(Database::create(cluster, stem), bootstrap)
    }

    /// A database that was made in a special way, before topics of `bootstrap`.
    pub(crate) fn before(database: Database, bootstrap: &str) -> Self {
        let prefix = format!("{}.", database.name());
        Self { database, bootstrap: bootstrap.to_owned(), prefix }
    }

    /// Creates the slot: what is committed from now on is kept for a relay.
    pub(crate) fn create_slot(&self) {
        let slot = self.slot();
        let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        self.sql().run(&create);
    }

    /// Slot and database have the same name.
    pub(crate) fn slot(&self) -> &str {
        self.database.name()
    }

    /// Its brokers, as `bootstrap.servers` wants them.
    pub(crate) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// A topic of this stage.
    pub(crate) fn topic(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A relay that connects to Postgres directly.
    pub(crate) fn relay(&self) -> Relay {
        self.relay_at(&self.database.address())
    }

    /// A relay that connects to something in between.
    pub(crate) fn relay_at(&self, address: &Address) -> Relay {
        Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            address,
            self.slot(),
            &self.bootstrap,
            &self.prefix,
        )
    }

    /// A proxy that sees every status update.
    pub(crate) fn tap(&self) -> StatusLog {
        StatusLog::start(&self.database.address(), &self.bootstrap, &self.prefix)
    }

    /// The account of what is committed from now on.
    pub(crate) fn oracle(&self) -> Oracle {
        Oracle::watch(&self.database, "public.outbox")
    }

    /// A session as the superuser.
    pub(crate) fn sql(&self) -> Sql {
        self.database.sql()
    }

    /// Commits `count` rows in one transaction, keys in turn `0` to `9`, routed to `topic`.
    pub(crate) fn insert(&self, topic: &str, count: usize) {
        self.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', n % 10, '{topic}', jsonb_build_object('n', n) \
             FROM generate_series(1, {count}) AS n"
        ));
    }

    /// Delivers a row of every key, takes the brokers away, and commits `count` rows more: they are
    /// sent at once, for the producer is known to every partition.
    pub(crate) fn strand(&self, mock: &MockCluster<'_, impl ClientContext>, count: usize) {
        self.insert("A", 10);
        self.wait_for_records(10);
        take_down(mock, ALL);
        self.insert("A", count);
    }

    /// Everything in the topics of this stage, dead letters included.
    pub(crate) fn records(&self) -> Vec<Stored> {
        topic::read(&self.bootstrap, &topic::names(&self.bootstrap, &self.prefix))
    }

    /// Waits until at least `count` records lie in the topics. First their ends are asked for, which costs less than to
    /// read all records again and again.
    pub(crate) fn wait_for_records(&self, count: usize) {
        topic::wait_for_offsets(&self.bootstrap, &self.prefix, count);
        wait_for("records", || (self.records().len() >= count).then_some(()));
    }

    /// What has become of all that the oracle saw.
    pub(crate) fn verdict(&self, oracle: &Oracle, statuses: &[Status]) -> Verdict {
        let committed = oracle.committed();
        let verdict = judge(&committed, &self.records(), statuses);
        for id in &verdict.lost {
            self.explain(id, &committed, statuses);
        }
        verdict
    }

    /// What is known about a row that never arrived.
    fn explain(&self, id: &str, committed: &[Committed], statuses: &[Status]) {
        let is_of = |one: &Committed| one.ids.iter().any(|known| known == id);
        let end = committed.iter().find(|one| is_of(one)).map_or(0, |one| one.end_lsn);
        let row = self.sql().rows(&format!(
            "SELECT event_type, aggregate_id, created_at FROM outbox WHERE id = '{id}'"
        ));
        let covering = statuses.iter().position(|status| status.flush >= end);
        let around = covering.map(|at| &statuses[at.saturating_sub(1)..=at]);
        eprintln!("lost: {id}, end {end:X}, {row:?}; acknowledged by {around:X?}");
    }

    /// The end of the server's log, as a number.
    pub(crate) fn log_end(&self) -> u64 {
        self.position("SELECT pg_current_wal_lsn() - '0/0'")
    }

    /// What was acknowledged, as a number.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.slot_value("confirmed_flush_lsn - '0/0'").parse().unwrap()
    }

    /// Waits until everything up to `position` is acknowledged, and returns how long that took.
    pub(crate) fn wait_acknowledged(&self, position: u64) -> Duration {
        let begun = Instant::now();
        wait_for("the acknowledgement", || (self.acknowledged() >= position).then_some(()));
        begun.elapsed()
    }

    /// The transactional id of an exactly-once relay.
    pub(crate) fn transactional_id(&self) -> String {
        let system = self.sql().value("SELECT system_identifier FROM pg_control_system()");
        format!("postrider.{system}.{0}.{0}", self.slot())
    }

    /// A column of the slot's row.
    pub(crate) fn slot_value(&self, expression: &str) -> String {
        let slot = self.slot();
        self.sql().value(&format!(
            "SELECT {expression} FROM pg_replication_slots WHERE slot_name = '{slot}'"
        ))
    }

    fn position(&self, sql: &str) -> u64 {
        self.sql().value(sql).parse().unwrap()
    }
}
