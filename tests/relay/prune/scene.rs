//! A database with an outbox and a slot that nobody reads, in a cluster of its own: what other tests hold open
//! would hold back a slot here.

use std::fmt::Write as _;

use postrider::sandbox::postgres::{Address, Cluster, Options};
use serde_json::Value;

use crate::stage::Stage;
use support::postgres::Database;
use support::relay::{Outcome, Relay};
use support::sql::Sql;
use support::{postgres, wait::wait_until};

/// Nobody listens there: what is pruned by the slot alone needs no brokers.
pub(super) const NO_BROKERS: &str = "127.0.0.1:1";

/// See the module.
pub(super) struct Scene {
    // Before the cluster: it drops its slots.
    pub(super) stage: Stage,
    pub(super) cluster: Cluster,
}

/// What `prune` did.
pub(super) struct Pruned {
    pub(super) exit: i32,
    /// One object for each table, and what was told on stderr.
    pub(super) tables: Vec<Value>,
    pub(super) log: String,
}

impl Scene {
    /// With all migrations, and a slot.
    pub(super) fn new() -> Self {
        Self::on(&Options::default(), NO_BROKERS)
    }

    /// The same in another version, before these brokers.
    pub(super) fn on(options: &Options, bootstrap: &str) -> Self {
        let scene = Self::without_slot(options, bootstrap);
        scene.stage.create_slot();
        scene
    }

    /// The same before there is a slot.
    pub(super) fn without_slot(options: &Options, bootstrap: &str) -> Self {
        let cluster = postgres::start(options);
        let stage = Stage::before(Database::migrated(&cluster, "prune"), bootstrap);
        Self { stage, cluster }
    }

    /// An outbox that is partitioned by day, with partitions for the last six days and a default one. Called by
    /// no convention.
    pub(super) fn partitioned() -> Self {
        let scene = Self::new();
        let mut sql = "DROP TABLE outbox; CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), \
            aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, \
            payload jsonb, created_at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (created_at); \
            ALTER PUBLICATION postrider ADD TABLE outbox; \
            CREATE TABLE \"Rest\" PARTITION OF outbox DEFAULT;"
            .to_owned();
        for day in 0..6 {
            write!(
                sql,
                "DO $$BEGIN EXECUTE format('CREATE TABLE \"Day {day}\" PARTITION OF outbox \
                 FOR VALUES FROM (%L) TO (%L)', current_date - {day}, current_date - {day} + 1); END$$;"
            )
            .unwrap();
        }
        scene.sql().run(&sql);
        scene
    }

    pub(super) fn sql(&self) -> Sql {
        self.stage.sql()
    }

    /// Commits rows of that age in one transaction, of this aggregate.
    pub(super) fn insert(&self, aggregate: &str, count: usize, age: &str) {
        self.sql().run(&insert(aggregate, count, age));
    }

    /// How many rows of the aggregate are there, of all for `%`.
    pub(super) fn count(&self, aggregate: &str) -> usize {
        let sql = format!("SELECT count(*) FROM outbox WHERE aggregate_id LIKE '{aggregate}'");
        self.sql().value(&sql).parse().unwrap()
    }

    /// Lets the slot pass all that has committed so far.
    pub(super) fn pass(&self) {
        self.pass_by(self.stage.slot());
    }

    /// The same of another slot.
    pub(super) fn pass_by(&self, slot: &str) {
        let sql = self.sql();
        let next = sql.value("SELECT txid_snapshot_xmax(txid_current_snapshot())");
        wait_until("the slot to pass", || {
            sql.run("CHECKPOINT");
            sql.run(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"));
            sql.value(&format!(
                "SELECT catalog_xmin::text::bigint >= {next} FROM pg_replication_slots \
                 WHERE slot_name = '{slot}'"
            )) == "t"
        });
    }

    pub(super) fn relay(&self) -> Relay {
        self.stage.relay()
    }

    /// `prune` of what is older than a day, by a slot that is known to be the first one.
    pub(super) fn prune(&self, arguments: &[&str]) -> Pruned {
        prune(&self.relay(), &[&["--older-than", "1d", "--from-before-slot"], arguments].concat())
    }

    /// The same as another role.
    pub(super) fn prune_as(&self, address: &Address, arguments: &[&str]) -> Pruned {
        let relay = self.stage.relay_at(address);
        prune(&relay, &[&["--older-than", "1d", "--from-before-slot"], arguments].concat())
    }
}

/// The statement of [`Scene::insert`].
pub(super) fn insert(aggregate: &str, count: usize, age: &str) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) \
         SELECT 't', '{aggregate}', 'A', now() - interval '{age}' - n * interval '1 ms' \
         FROM generate_series(1, {count}) AS n"
    )
}

/// Runs it with these arguments.
pub(super) fn prune(relay: &Relay, arguments: &[&str]) -> Pruned {
    let line = [&["prune", "--output", "json", "--pause", "0ms"], arguments].concat();
    let Outcome { status, stdout, log } = relay.start(&line).outcome();
    let tables = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Pruned { exit: status.code().unwrap(), tables, log: log.join("\n") }
}

impl Pruned {
    /// What it did with the only table.
    #[track_caller]
    pub(super) fn table(&self) -> &Value {
        assert_eq!(self.exit, 0, "{}", self.log);
        &self.tables[0]
    }

    /// Old rows that may go, those that went, and what each slot holds back: not passed, and before it.
    #[track_caller]
    pub(super) fn counts(&self) -> (u64, u64, Vec<(u64, u64)>) {
        let table = self.table();
        let number = |value: &Value| value.as_u64().unwrap();
        let slots = table["slots"].as_array().unwrap().iter();
        let held = slots.map(|slot| (number(&slot["not_passed"]), number(&slot["before_slot"])));
        (number(&table["delete"]), number(&table["deleted"]), held.collect())
    }

    /// What became of each partition, by its name.
    #[track_caller]
    pub(super) fn partitions(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let parts = self.tables[0]["partitions"].as_array().unwrap().iter();
        parts.map(|part| (text(&part["partition"]), text(&part["is"]))).collect()
    }

    /// That it was refused, with this exit code and these words.
    #[track_caller]
    pub(super) fn assert_refused(&self, exit: i32, words: &[&str]) {
        assert_eq!(self.exit, exit, "{}", self.log);
        for word in words {
            assert!(self.log.contains(word), "no `{word}` in {}", self.log);
        }
    }
}
