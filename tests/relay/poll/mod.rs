//! Rows that are polled: `source.mode = "poll"`.

mod delivered;
mod ends;
mod locked;
mod marks;
mod order;
mod page;
mod pooler;
mod refused;
mod shapes;
mod stands;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;

use crate::stage::Stage;
use support::relay::{Outcome, Relay};
use support::topic::Stored;
use support::{postgres, topic, wait_for};

/// A database that `postrider setup` has made ready, and a relay whose role may not replicate.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    pub(crate) relay: Relay,
}

impl Scene {
    /// With these options, and topics `A`, `B` and for dead letters.
    pub(crate) fn new(bootstrap: &str, stem: &str, settings: &[(&str, &str)]) -> Self {
        Self::on(Stage::empty(postgres::installed(), bootstrap, stem), settings)
    }

    /// The same on an empty stage.
    pub(crate) fn on(stage: Stage, settings: &[(&str, &str)]) -> Self {
        for name in ["A", "B", "dead-letters"] {
            topic::create(stage.bootstrap(), &stage.topic(name), 4, &[]);
        }
        let scene = Self::of(stage, settings);
        let made = scene.owner(settings).start(&["setup"]).outcome();
        assert!(made.status.success(), "{made:?}");
        scene.grant("outbox");
        scene
    }

    /// On a stage that has its tables, or gets them yet.
    pub(crate) fn of(stage: Stage, settings: &[(&str, &str)]) -> Self {
        let role = format!("poller_{}", stage.database.name());
        let address = stage.database.create_role(&role, "");
        let relay = with(stage.relay_at(&address), settings);
        Self { stage, relay }
    }

    /// What the relay's role needs.
    pub(crate) fn grant(&self, table: &str) {
        let role = format!("poller_{}", self.stage.database.name());
        self.stage.sql().run(&format!("GRANT SELECT, UPDATE, DELETE ON {table} TO {role}"));
    }

    /// A relay that connects as the superuser.
    pub(crate) fn owner(&self, settings: &[(&str, &str)]) -> Relay {
        with(self.stage.relay(), settings)
    }

    /// Waits until so many rows wait, by this condition.
    pub(crate) fn wait_pending(&self, condition: &str, count: usize) {
        let sql = format!("SELECT count(*) FROM outbox WHERE {condition}");
        let count = count.to_string();
        wait_for("rows to be marked", || (self.stage.sql().value(&sql) == count).then_some(()));
    }

    /// A command that fails: its exit code, and what it said.
    pub(crate) fn failure(relay: &Relay, arguments: &[&str]) -> (Option<i32>, String) {
        let Outcome { status, log, stdout } = relay.start(arguments).outcome();
        (ExitStatus::code(&status), log.concat() + &stdout)
    }
}

fn with(relay: Relay, settings: &[(&str, &str)]) -> Relay {
    let relay = relay.set("source.mode", "poll").set("kafka.delivery", "at_least_once");
    settings.iter().fold(relay, |relay, (name, value)| relay.set(name, value))
}

/// Records of a stage, but for dead letters.
pub(crate) fn records(stage: &Stage) -> Vec<Stored> {
    let letters = stage.topic("dead-letters");
    stage.records().into_iter().filter(|record| record.topic != letters).collect()
}

/// The numbers in the values of records, by key, first occurrences in their order.
pub(crate) fn numbers_by_key(records: &[Stored]) -> BTreeMap<String, Vec<u64>> {
    let mut seen = BTreeSet::new();
    let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut records: Vec<&Stored> = records.iter().collect();
    records.sort_by_key(|record| (&record.topic, record.partition, record.offset));
    for record in records.into_iter().filter(|record| seen.insert(record.header("id"))) {
        let text =
            |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().unwrap_or_default()).unwrap();
        let number = text(&record.value).trim().parse().unwrap();
        by_key.entry(text(&record.key)).or_default().push(number);
    }
    by_key
}

/// Commits rows of topic `A`, numbered in their values, keys in turn `0` to `9`.
pub(crate) fn insert(stage: &Stage, numbers: std::ops::Range<u64>) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', n % 10, 'A', to_jsonb(n) FROM generate_series({}, {}) AS n",
        numbers.start,
        numbers.end - 1
    ));
}
