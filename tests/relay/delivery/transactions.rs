//! Every script of `fixtures/transactions` against every PostgreSQL and every kind of broker, compared
//! with the expectation beside it: byte for byte, in order per topic and key.
//!
//! A script's leading comments may say `-- set: OPTION=VALUE` (of the relay's configuration) and
//! `-- expect-log: TEXT` (a warning the relay is to give) or `-- remark: TEXT` (one that it gives at
//! every start). An expectation is one JSON object a line: a record, or `{"topic", "count", "keys", "sha256"}` of all of them where there are too many to list. The
//! topics' prefix and the position header, which differ from run to run, are left out; the position
//! is checked to grow per key instead. `"*"` in a header stands for any text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postrider::sandbox::binaries;
use postrider::sandbox::postgres::Cluster;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use support::broker::Broker;
use support::is_full;
use support::judge::judge;
use support::oracle::Oracle;
use support::postgres::{self, Database};
use support::relay::Relay;
use support::status_log::StatusLog;
use support::topic::{self, Stored};

/// The header that carries commit LSN and index.
const POSITION: &str = "postrider-lsn";

macro_rules! fixtures {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                Fixture::load(stringify!($name)).replay_everywhere();
            }
        )*

        const FIXTURES: &[&str] = &[$(stringify!($name)),*];
    };
}

fixtures! {
    copy
    ddl
    hostile
    insert_delete
    large
    large_values
    multi_row
    other_tables
    prepared
    rollbacks
    savepoints
    truncate_update_delete
}

#[test]
fn every_fixture_is_replayed() {
    assert_eq!(fixtures_at_hand(), FIXTURES);
}

/// The expectations themselves, against PostgreSQL's own account of what was committed and when.
#[test]
fn expectations_agree_with_postgres() {
    for name in FIXTURES {
        let fixture = Fixture::load(name);
        let database = Database::migrated(postgres::installed(), name);
        let oracle = Oracle::watch(&database, fixture.table());
        fixture.play(&database);
        let committed: Vec<String> =
            oracle.committed().into_iter().flat_map(|transaction| transaction.ids).collect();
        oracle.close();
        if let Some(count) = fixture.expected[0].get("count") {
            assert_eq!(json!(committed.len()), *count, "{name}");
        } else {
            let ids = fixture.expected.iter().map(expected_id);
            assert_eq!(committed, ids.collect::<Vec<_>>(), "{name}");
        }
    }
}

fn expected_id(record: &Value) -> String {
    let headers = record["headers"].as_array().unwrap();
    let id = headers.iter().find(|header| header[0] == "id").expect("every record has an id");
    id[1].as_str().unwrap().to_owned()
}

struct Fixture {
    name: &'static str,
    script: PathBuf,
    settings: Vec<(String, String)>,
    warnings: Vec<String>,
    remarks: Vec<String>,
    expected: Vec<Value>,
}

impl Fixture {
    fn load(name: &'static str) -> Self {
        let script = folder().join(name).with_extension("sql");
        let text = std::fs::read_to_string(&script).unwrap();
        let directives = |word: &str| -> Vec<String> {
            let comments = text.lines().take_while(|line| line.starts_with("--"));
            let values = comments.filter_map(|line| line.strip_prefix(&format!("-- {word}: ")));
            values.map(str::to_owned).collect()
        };
        let pair = |set: &String| {
            let (option, value) = set.split_once('=').expect("OPTION=VALUE");
            (option.to_owned(), value.to_owned())
        };
        let lines = std::fs::read_to_string(script.with_extension("expected.jsonl")).unwrap();
        Self {
            name,
            settings: directives("set").iter().map(pair).collect(),
            warnings: directives("expect-log"),
            remarks: directives("remark"),
            expected: lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            script,
        }
    }

    /// Each version and each broker once; with `FULL=1` each version with each broker.
    fn replay_everywhere(&self) {
        let versions = postgres::versions();
        for (row, cluster) in versions.iter().enumerate() {
            for (column, broker) in Broker::all().iter().enumerate() {
                if is_full() || versions.len() == 1 || row != column {
                    eprintln!(
                        "{} on PostgreSQL {}, {}",
                        self.name,
                        cluster.version(),
                        broker.name()
                    );
                    self.replay(cluster, broker);
                }
            }
        }
    }

    fn replay(&self, cluster: &Cluster, broker: &Broker) {
        let database = Database::migrated(cluster, self.name);
        let slot = database.name();
        let prefix = format!("{slot}.");
        database
            .sql()
            .run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
        let oracle = Oracle::watch(&database, self.table());
        self.play(&database);

        if let Broker::Kafka(_) = broker {
            for name in self.topics() {
                topic::create(&broker.bootstrap(), &format!("{prefix}{name}"), 3, &[]);
            }
        }
        let tap = StatusLog::start(&database.address(), &broker.bootstrap(), &prefix);
        let mut relay = Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            &tap.address(),
            slot,
            &broker.bootstrap(),
            &prefix,
        );
        for (option, value) in &self.settings {
            relay = relay.set(option, value);
        }
        relay = self.remarks.iter().fold(relay, |relay, part| relay.expect_log(part));
        let announced =
            self.warnings.iter().fold(relay.clone(), |relay, part| relay.expect_log(part));
        announced.run_once();
        let topics = topic::names(&broker.bootstrap(), &prefix);
        let records = topic::read(&broker.bootstrap(), &topics);
        self.compare(&records, &prefix);

        // What was delivered was acknowledged: another run has nothing to do.
        relay.run_once();
        assert_eq!(topic::read(&broker.bootstrap(), &topics).len(), records.len());
        let committed = oracle.committed();
        judge(&committed, &records, &tap.statuses()).assert_exactly_once();
        assert!(!tap.statuses().is_empty(), "no status update went through the status_log");
        oracle.close();
        database.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    }

    /// Made beforehand where that can be done, as they are in earnest.
    fn topics(&self) -> BTreeSet<&str> {
        self.expected.iter().map(|record| record["topic"].as_str().unwrap()).collect()
    }

    fn table(&self) -> &str {
        let tables = self.settings.iter().find(|(option, _)| option == "source.tables");
        tables.map_or("public.outbox", |(_, table)| table)
    }

    /// Runs the script as a person would, with psql.
    fn play(&self, database: &Database) {
        let psql = binaries::find().unwrap().join("psql");
        let output = Command::new(psql)
            .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"])
            .arg(&self.script)
            .arg(database.address().unix_url())
            .env("PGCLIENTENCODING", "UTF8")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", self.script.display());
    }

    fn compare(&self, records: &[Stored], prefix: &str) {
        assert_positions_grow(records);
        let found = lanes(records.iter().map(|record| line(record, prefix)));
        if let [Value::Object(only)] = self.expected.as_slice()
            && let Some(count) = only.get("count")
        {
            let mut hash = Sha256::new();
            for record in found.values().flatten() {
                hash.update(record);
                hash.update("\n");
            }
            let keys = found.len();
            let sha256 = format!("{:x}", hash.finalize());
            let topic = &only["topic"];
            let summary =
                json!({"topic": topic, "count": records.len(), "keys": keys, "sha256": sha256});
            assert_eq!(summary, Value::Object(only.clone()), "{} of {count}", records.len());
            return;
        }
        let expected = lanes(self.expected.iter().cloned());
        assert_eq!(found, expected, "{}", self.name);
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transactions")
}

fn fixtures_at_hand() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let scripts = files.filter(|path| path.extension().is_some_and(|extension| extension == "sql"));
    let mut names: Vec<String> =
        scripts.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The records of each topic and key, in order. A null key promises no order: then sorted.
fn lanes(records: impl Iterator<Item = Value>) -> BTreeMap<(String, String), Vec<String>> {
    let mut lanes: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for mut record in records {
        record.sort_all_objects();
        let lane = (record["key"].to_string(), record["topic"].to_string());
        lanes.entry(lane).or_default().push(record.to_string());
    }
    for (_, records) in lanes.iter_mut().filter(|((key, _), _)| key == "null") {
        records.sort();
    }
    lanes
}

/// A record as the expectations write it.
fn line(record: &Stored, prefix: &str) -> Value {
    let topic = record.topic.strip_prefix(prefix).unwrap();
    let text = |bytes: &Option<Vec<u8>>| match bytes {
        None => Value::Null,
        Some(bytes) => json!(std::str::from_utf8(bytes).expect("fixtures are UTF-8")),
    };
    let header = |(name, value): &(String, Option<Vec<u8>>)| match (name.as_str(), text(value)) {
        (POSITION, _) => None,
        (
            "postrider-error" | "postrider-system" | "postrider-database" | "postrider-slot",
            Value::String(_),
        ) => Some(json!([name, "*"])),
        ("postrider-topic", Value::String(topic)) => {
            Some(json!([name, topic.strip_prefix(prefix).unwrap_or(&topic)]))
        }
        (_, value) => Some(json!([name, value])),
    };
    let headers: Vec<Value> = record.headers.iter().filter_map(header).collect();
    json!({"topic": topic, "key": text(&record.key), "value": text(&record.value), "headers": headers})
}

/// `commitLSN.index`, strictly growing per topic and key: consumers drop repeats by it.
fn assert_positions_grow(records: &[Stored]) {
    let mut last = BTreeMap::new();
    for record in records {
        let text = record.header(POSITION).expect("every record has a position");
        let position = position(text).unwrap_or_else(|| panic!("{POSITION}: {text}"));
        let lane = (&record.topic, record.partition, &record.key);
        if let Some(before) = last.insert(lane, position) {
            assert!(before < position, "{}: {text} after {before:X?}", record.topic);
        }
    }
}

/// Fixed-width hexadecimal, so that consumers may compare it as text too.
fn position(text: &str) -> Option<(u64, u64)> {
    let (lsn, index) = text.split_once('.')?;
    let is_fixed = lsn.len() == 16 && index.len() == 10;
    let parsed = (u64::from_str_radix(lsn, 16).ok()?, index.parse().ok()?);
    is_fixed.then_some(parsed)
}
