//! One road from a database to topics, with everything that watches it: what most tests of a running
//! relay begin with.

use std::process::{Child, Command, Stdio};

use postrider::sandbox::postgres::Cluster;
use postrider::shop::orders::event_types;

use super::broker::Broker;
use super::judge::{Verdict, judge};
use super::oracle::{Committed, Oracle};
use super::postgres::Database;
use super::relay::Relay;
use super::topic::{self, Stored};
use super::wait_for;
use super::wiretap::Wiretap;

/// How many event types `shop load` draws from, and so how many topics it fills.
const LOAD_TYPES: u32 = 5;

/// A database with the outbox, its slot, an oracle beside it, and a wiretap in front of it.
#[derive(Debug)]
pub(crate) struct Road {
    pub(crate) database: Database,
    pub(crate) tap: Wiretap,
    oracle: Oracle,
    bootstrap: String,
    prefix: String,
}

impl Road {
    /// Builds it. Slot and topics are named after the database, which `stem` names.
    pub(crate) fn build(cluster: &Cluster, bootstrap: &str, stem: &str) -> Self {
        let database = Database::migrated(cluster, stem);
        let slot = database.name();
        database
            .sql()
            .run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
        let prefix = format!("{slot}.");
        Self {
            oracle: Oracle::watch(&database, "public.outbox"),
            tap: Wiretap::start(&database.address(), bootstrap, &prefix),
            bootstrap: bootstrap.to_owned(),
            database,
            prefix,
        }
    }

    /// The same with the topics of `shop load` made beforehand, as they are in earnest; on real Kafka,
    /// because the embedded broker has no such request.
    pub(crate) fn with_topics(cluster: &Cluster, bootstrap: &str, stem: &str) -> Self {
        let road = Self::build(cluster, bootstrap, stem);
        for name in event_types(LOAD_TYPES).iter().map(String::as_str).chain(["dead-letters"]) {
            topic::create(bootstrap, &format!("{}{name}", road.prefix), 3, &[]);
        }
        road
    }

    /// The one or the other.
    pub(crate) fn on(cluster: &Cluster, broker: &Broker, stem: &str) -> Self {
        match broker {
            Broker::Embedded(_) => Self::build(cluster, &broker.bootstrap(), stem),
            Broker::Kafka(_) => Self::with_topics(cluster, &broker.bootstrap(), stem),
        }
    }

    /// A relay for it, through the wiretap.
    pub(crate) fn relay(&self) -> Relay {
        Relay::new(&self.tap.address(), self.database.name(), &self.bootstrap, &self.prefix)
    }

    /// Starts `shop load`: `count` committed rows and some that are rolled back, `rate` a second.
    pub(crate) fn start_load(&self, count: u32, rate: u32) -> Child {
        Command::new(env!("CARGO_BIN_EXE_shop"))
            .args(["load", "--count", &count.to_string(), "--rate", &rate.to_string()])
            .args(["--rollback-percent", "10", "--savepoint-percent", "10", "--customers", "20"])
            .args(["--seed", &rate.to_string(), "--types", &LOAD_TYPES.to_string()])
            .env("DATABASE_URL", self.database.address().unix_url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs a load to its end.
    pub(crate) fn load(&self, count: u32, rate: u32) {
        let status = self.start_load(count, rate).wait().unwrap();
        assert!(status.success(), "shop load: {status}");
    }

    /// Everything in the topics now.
    pub(crate) fn records(&self) -> Vec<Stored> {
        topic::read(&self.bootstrap, &topic::names(&self.bootstrap, &self.prefix))
    }

    /// Judges the whole run so far.
    pub(crate) fn verdict(&self) -> Verdict {
        let (committed, records) = (self.oracle.committed(), self.records());
        let verdict = judge(&committed, &records, &self.tap.statuses());
        for id in &verdict.lost {
            self.explain(id, &committed);
        }
        verdict
    }

    /// What is known about a row that never arrived.
    fn explain(&self, id: &str, committed: &[Committed]) {
        let is_of = |one: &&Committed| one.ids.iter().any(|known| known == id);
        let place = committed.iter().position(|one| is_of(&one)).unwrap();
        let end = committed[place].end_lsn;
        let row = self.database.sql().rows(&format!(
            "SELECT event_type, aggregate_id, created_at FROM outbox WHERE id = '{id}'"
        ));
        let statuses = self.tap.statuses();
        let covering = statuses.iter().position(|status| status.flush >= end);
        let around = covering.map(|at| &statuses[at.saturating_sub(1)..=at]);
        eprintln!(
            "lost: {id}, transaction {place}, end {end:X}, {row:?}; acknowledged by {around:X?}"
        );
    }

    /// Waits until everything committed is acknowledged, and so delivered.
    pub(crate) fn await_acknowledged(&self) {
        let sql = self.database.sql();
        let end = sql.value("SELECT pg_current_wal_lsn()");
        let acknowledged = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{}'",
            self.database.name()
        );
        wait_for("the acknowledgement", || (sql.value(&acknowledged) == "t").then_some(()));
    }

    /// Drops the slots, so that they hold back no log for the other tests. No relay may run.
    pub(crate) fn close(self) {
        let sql = self.database.sql();
        let slot = self.database.name();
        let free = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
        wait_for("the slot to be free", || (sql.value(&free) == "f").then_some(()));
        sql.run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
        self.oracle.close();
    }
}
