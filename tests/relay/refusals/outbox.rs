//! An outbox that a case spoils and fixes, with its slot and a topic to deliver to.

use std::cell::Cell;

use postrider::sandbox::postgres::{Address, Cluster};

use support::broker::Broker;
use support::postgres::Database;
use support::relay::Relay;
use support::topic;

/// See the module.
pub(super) struct Outbox {
    pub(super) database: Database,
    broker: Broker,
    written: Cell<u32>,
}

impl Outbox {
    /// A database with table, publication and slot; the broker is an embedded one.
    pub(super) fn ready(cluster: &Cluster, stem: &str) -> Self {
        let outbox = Self::without_slot(cluster, stem);
        outbox.create_slot();
        outbox
    }

    /// The same without the slot.
    pub(super) fn without_slot(cluster: &Cluster, stem: &str) -> Self {
        let database = Database::migrated(cluster, stem);
        Self { database, broker: Broker::embedded(), written: Cell::new(0) }
    }

    /// Creates the slot, which has the database's name.
    pub(super) fn create_slot(&self) {
        self.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')");
    }

    /// Runs statements, one at a time: slots and schema changes do not go together.
    pub(super) fn run(&self, sql: &str) {
        let session = self.database.sql();
        for statement in sql.split(';').map(str::trim).filter(|sql| !sql.is_empty()) {
            session.run(statement);
        }
    }

    /// Rows so far.
    #[cfg(any(feature = "kafka-tls", feature = "kafka-tls-vendored"))]
    pub(super) fn written(&self) -> usize {
        usize::try_from(self.written.get()).unwrap()
    }

    /// Commits one more row.
    pub(super) fn write(&self) {
        let number = self.written.get() + 1;
        self.written.set(number);
        self.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('order', '{number}', 'placed', '{number}')"
        ));
    }

    /// The relay as it should be configured, over TCP.
    pub(super) fn relay(&self) -> Relay {
        self.relay_to(&self.database.address(), &self.broker.bootstrap())
    }

    /// The same with other servers.
    pub(super) fn relay_to(&self, source: &Address, bootstrap: &str) -> Relay {
        Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            source,
            self.database.name(),
            bootstrap,
            &self.prefix(),
        )
    }

    /// The embedded broker.
    pub(super) fn bootstrap(&self) -> String {
        self.broker.bootstrap()
    }

    /// The topic of the rows.
    pub(super) fn topic(&self) -> String {
        format!("{}placed", self.prefix())
    }

    fn prefix(&self) -> String {
        format!("{}.", self.database.name())
    }

    /// Delivers what is left with this relay, and finds every row exactly once.
    pub(super) fn assert_delivered_by(&self, relay: &Relay) {
        relay.run_once();
        self.assert_delivered_to(&self.broker.bootstrap());
    }

    /// Every row lies in the topic exactly once.
    pub(super) fn assert_delivered_to(&self, bootstrap: &str) {
        let records = topic::read(bootstrap, &[self.topic()]);
        let mut values: Vec<u32> = records
            .iter()
            .map(|record| {
                String::from_utf8_lossy(record.value.as_deref().unwrap()).parse().unwrap()
            })
            .collect();
        values.sort_unstable();
        let written: Vec<u32> = (1..=self.written.get()).collect();
        assert_eq!(values, written, "{}", self.topic());
    }

    /// How far the slot is acknowledged.
    pub(super) fn acknowledged(&self) -> String {
        self.database.sql().value(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots
             WHERE slot_name = current_database()",
        )
    }
}
