//! The two sides: a database per configuration, and how each side is told to deliver it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use serde_json::Value;

use crate::compare::plans::Plan;
use support::chance::Chance;
use support::connect::Connect;
use support::postgres::{self, Database};
use support::topic;
use support::wait::within;

/// How long Debezium may take for everything, on a machine busy with other tests.
const LIMIT: Duration = Duration::from_mins(4);

/// Slots of the two sides, in each database of its own name.
const SLOTS: [&str; 2] = ["debezium", "postrider"];

/// A database for one configuration.
pub(crate) struct Shop {
    pub(crate) plan: &'static Plan,
    /// What Kafka Connect takes, with the address of this database.
    pub(crate) configuration: String,
    database: Database,
}

impl Shop {
    /// Makes the table, the publication and the slots, from which both sides deliver everything
    /// that comes after.
    pub(crate) fn open(plan: &'static Plan) -> Self {
        let cluster = postgres::installed();
        let database = Database::create(cluster, &plan.name.replace('-', "_"));
        let sql = database.sql();
        sql.run(plan.schema);
        let tables = if plan.schema.is_empty() { "" } else { "FOR TABLE outbox" };
        sql.run(&format!("CREATE PUBLICATION outbox {tables}"));
        let mut configuration = fixture(plan.name);
        let settings = configuration["config"].as_object_mut().unwrap();
        for slot in SLOTS {
            let name = format!("{}_{slot}", database.name());
            sql.run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
        }
        for (name, value) in [
            ("database.hostname", "127.0.0.1".to_owned()),
            ("database.port", cluster.port().to_string()),
            ("database.password", cluster.address().password.unwrap()),
            ("database.dbname", database.name().to_owned()),
            ("slot.name", format!("{}_debezium", database.name())),
        ] {
            settings.insert(name.to_owned(), Value::from(value));
        }
        Self { plan, configuration: configuration.to_string(), database }
    }

    /// Writes rows, one or several in a transaction.
    pub(crate) fn fill(&self, chance: &mut Chance, rows: usize) {
        let sql = self.database.sql();
        let mut left = rows;
        while left > 0 {
            let together = chance.between(1, 4).min(left as u64);
            let drawn = (0..together).map(|_| (self.plan.row)(chance, self.plan.name));
            // Statements sent together are one transaction.
            sql.run(&drawn.collect::<Vec<_>>().join("; "));
            left -= usize::try_from(together).unwrap();
        }
    }
}

fn fixture(name: &str) -> Value {
    let path = format!("{}/fixtures/debezium/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Lets Postrider deliver all that is there.
pub(crate) fn deliver(shop: &Shop, bootstrap: &str) {
    let mut file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    file.write_all(shop.configuration.as_bytes()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .env_clear()
        .current_dir("/")
        .args(["run", "--once", "--debezium"])
        .arg(file.path())
        .args(["--set", &format!("source.slot={}_postrider", shop.database.name())])
        .args(["--set", &format!("kafka.brokers={bootstrap}")])
        .args(["--set", "http.bind=127.0.0.1:0"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}: {log}", shop.plan.name, output.status);
}

/// Waits until so many records lie in the topics that Connect writes.
pub(crate) fn await_records(connect: &mut Connect, bootstrap: &str, wanted: usize) {
    let consumer: BaseConsumer = topic::client(bootstrap).create().unwrap();
    let mut stored = 0;
    let arrived = within(LIMIT, || {
        let names = topic::names(bootstrap, "");
        let topics = names.iter().filter(|name| !name.starts_with("__"));
        let ends = topics.flat_map(|name| topic::ends(&consumer, name));
        stored = usize::try_from(ends.map(|(_, end)| end).sum::<i64>()).unwrap();
        if let Some(why) = connect.failure() {
            panic!("Debezium stopped after {stored} of {wanted} records: {why}");
        }
        (stored >= wanted).then_some(())
    });
    assert!(arrived.is_some(), "{stored} of {wanted} records: {}", connect.log());
}
