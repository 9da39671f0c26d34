//! What the relay writes is read: rows go through a real relay and Kafka, in each configuration that is
//! compared with Debezium, as CloudEvents and with a renamed id, and none becomes a dead letter.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use postrider::inbox::{
    Effects, Failure, Interest, KeyFormat, Message, MessageFormat, ValueFormat,
};
use serde_json::{Value, json};
use tokio_postgres::Transaction;

use crate::inbox::scene::{PARTITIONS, Running, Scene};
use support::postgres::{self, Database};
use support::relay::Relay;
use support::{topic, unique};

/// The table of Debezium's documentation.
const CLASSIC: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
     aggregateid text NOT NULL, type text NOT NULL, payload jsonb)";

/// A configuration, rows, and what they are to be read as.
struct Case {
    /// Of the file in `fixtures/debezium`.
    file: &'static str,
    /// Options in the place of the file's.
    options: &'static [&'static str],
    schema: &'static str,
    /// `$ID` and a digit is an id, `$ROUTE` is what the topic is named after.
    rows: &'static [&'static str],
    /// The topic, with `$ROUTE` for that.
    topic: &'static str,
    format: MessageFormat,
    /// Of each row. An empty type is the topic's name.
    wanted: Vec<Wanted>,
}

/// Event type, key, payload.
type Wanted = (&'static str, &'static str, Value);

impl Case {
    fn of(file: &'static str, rows: &'static [&'static str], format: MessageFormat) -> Self {
        Self {
            file,
            options: &[],
            schema: CLASSIC,
            rows,
            topic: "outbox.event.$ROUTE",
            format,
            wanted: Vec::new(),
        }
    }

    fn schema(self, schema: &'static str) -> Self {
        Self { schema, ..self }
    }

    fn wants<const N: usize>(self, wanted: [Wanted; N]) -> Self {
        Self { wanted: wanted.into(), ..self }
    }

    /// Writes the rows, lets the relay deliver them and a consumer read them.
    fn check(&self, scene: &Scene) {
        let route = unique(&format!("formats-{}", self.file)).replace('_', "-");
        let topic = self.topic.replace("$ROUTE", &route);
        topic::create(&scene.bootstrap, &topic, PARTITIONS, &[]);
        let database = Database::create(postgres::installed(), "formats");
        let (sql, slot) = (database.sql(), database.name());
        sql.run(self.schema);
        let tables = if self.schema.is_empty() { "" } else { "FOR TABLE outbox" };
        sql.run(&format!("CREATE PUBLICATION outbox {tables}"));
        sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
        for row in self.rows {
            sql.run(&row.replace("$ROUTE", &route).replace("$ID", ID_START));
        }
        deliver(&database, self, &scene.bootstrap);

        let read = read(scene, &topic, &self.format, self.rows.len());
        for (number, wanted) in self.wanted.iter().enumerate() {
            let id = format!("{ID_START}{}", number + 1);
            let message = read.iter().find(|message| message.id.to_string() == id);
            let message = message.unwrap_or_else(|| panic!("{}: no {id} in {read:?}", self.file));
            let (event_type, key, payload) = wanted;
            let event_type = if event_type.is_empty() { &topic } else { *event_type };
            let event_type = event_type.replace("$ROUTE", &route);
            assert_eq!(
                (&message.event_type, message.aggregate_id.as_str(), &message.payload),
                (&event_type, *key, payload),
                "{}",
                self.file
            );
        }
    }
}

/// All of an id but its last digit.
const ID_START: &str = "0198c1a2-7e4b-7000-8000-00000000000";

/// `postrider run --once` with the case's file, at this database.
fn deliver(database: &Database, case: &Case, bootstrap: &str) {
    let path = format!("{}/fixtures/debezium/{}.json", env!("CARGO_MANIFEST_DIR"), case.file);
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let address = database.address();
    for (name, value) in [
        ("database.hostname", "127.0.0.1"),
        ("database.port", &address.port.to_string()),
        ("database.user", &address.user),
        ("database.password", address.password.as_deref().unwrap()),
        ("database.dbname", database.name()),
        ("slot.name", database.name()),
        ("publication.name", "outbox"),
    ] {
        file["config"][name] = value.into();
    }
    let mut configuration = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    configuration.write_all(file.to_string().as_bytes()).unwrap();
    let ours = [format!("kafka.brokers={bootstrap}"), "http.bind=127.0.0.1:0".to_owned()];
    let options = ours.iter().map(String::as_str).chain(case.options.iter().copied());
    let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .env_clear()
        .current_dir("/")
        .args(["run", "--once", "--debezium"])
        .arg(configuration.path())
        .args(options.flat_map(|option| ["--set", option]))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}: {log}", case.file, output.status);
}

/// What a consumer's effects get of so many records.
fn read(scene: &Scene, topic: &str, format: &MessageFormat, count: usize) -> Vec<Message> {
    let mut spec = scene.spec();
    spec.name = unique("formats-consumer");
    spec.topics = vec![topic.to_owned()];
    spec.format = format.clone();
    let collected = Collect::default();
    let running = Running::start(spec, collected.clone());
    let count = u64::try_from(count).unwrap();
    let all =
        running.await_counters("the messages", |now| now.processed + now.dead_letters >= count);
    running.stop();
    assert_eq!((all.processed, all.dead_letters), (count, 0), "{topic}");
    std::mem::take(&mut *collected.0.lock().unwrap())
}

/// Keeps what it is given; nothing fails here, so nothing comes twice.
#[derive(Clone, Default)]
struct Collect(Arc<Mutex<Vec<Message>>>);

impl Effects for Collect {
    fn interest(&self, _: &str) -> Interest {
        Interest::Handle
    }

    async fn apply(&self, _: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        self.0.lock().unwrap().push(message.clone());
        Ok(())
    }
}

fn usual() -> MessageFormat {
    MessageFormat::new().event_type_or_topic()
}

fn paid() -> Value {
    json!({ "cents": 150 })
}

const CLASSIC_ROWS: [&str; 2] = [
    "INSERT INTO outbox VALUES ('$ID1', '$ROUTE', '42', 'Paid', '{\"cents\": 150}')",
    "INSERT INTO outbox VALUES ('$ID2', '$ROUTE', 'é', 'Paid', NULL)",
];

#[test]
fn strings_and_json_with_and_without_schemas_are_read() {
    let Some(scene) = Scene::new("formats") else { return };
    Case::of("defaults", &CLASSIC_ROWS, usual())
        .wants([("", "42", paid()), ("", "é", Value::Null)])
        .check(&scene);
    let connect = usual().key(KeyFormat::ConnectJson).value(ValueFormat::ConnectJson);
    Case::of("schemas", &CLASSIC_ROWS, connect.clone().expand_json())
        .wants([("Paid", "42", paid()), ("Paid", "é", Value::Null)])
        .check(&scene);
    Case::of("expanded-schemas", &CLASSIC_ROWS, usual().value(ValueFormat::ConnectJson))
        .wants([("", "42", paid()), ("", "é", Value::Null)])
        .check(&scene);
    let rows = &[
        "INSERT INTO outbox VALUES ('$ID1', 'formats.$ROUTE.v1', 5, '{\"cents\": 150}', 1, now())",
        "INSERT INTO outbox VALUES ('$ID2', 'formats.$ROUTE.v1', 6, NULL, NULL, now())",
    ];
    let routing = Case::of("routing", rows, usual()).schema(
        "CREATE TABLE outbox (event_id uuid PRIMARY KEY, event_type text NOT NULL, \
         entity int NOT NULL, body json, part int, happened_at timestamp NOT NULL)",
    );
    Case { topic: "formats-1.$ROUTE", ..routing }
        .wants([("formats.$ROUTE.v1", "5", paid()), ("formats.$ROUTE.v1", "6", Value::Null)])
        .check(&scene);
}

#[test]
fn envelopes_are_read() {
    let Some(scene) = Scene::new("formats") else { return };
    let rows = &[
        "INSERT INTO outbox VALUES ('$ID1', '$ROUTE', '42', 'Paid', '{\"cents\": 150}', 5, true)",
        "INSERT INTO outbox VALUES ('$ID2', '$ROUTE', NULL, NULL, NULL, NULL, NULL)",
        "INSERT INTO outbox VALUES ('$ID3', '$ROUTE', '42', '', 'not JSON', NULL, NULL)",
    ];
    Case::of("expanded", rows, usual().key(KeyFormat::Json).envelope())
        .schema(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
             aggregateid text, type text, payload text, attempt int, urgent bool)",
        )
        .wants([("Paid", "42", paid()), ("", "", Value::Null), ("", "42", json!("not JSON"))])
        .check(&scene);
    let rows = &[
        "INSERT INTO outbox VALUES ('$ID1', '$ROUTE', '42', 'Paid', '{\"cents\": 150}', true)",
        "INSERT INTO outbox VALUES ('$ID2', '$ROUTE', '42', NULL, NULL, true)",
        "INSERT INTO outbox VALUES ('$ID3', '$ROUTE', '42', 'Paid', ' ', NULL)",
    ];
    Case::of("tombstones", rows, usual().envelope().expand_json())
        .schema(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
             aggregateid text NOT NULL, type text, payload text, is_deleted bool)",
        )
        .wants([("Paid", "42", paid()), ("", "42", Value::Null), ("Paid", "42", Value::Null)])
        .check(&scene);
    let rows = &["INSERT INTO outbox VALUES \
         ('$ID1', '$ROUTE', 42, 'Paid', '{\"cents\": 150}', 2, 12.50)"];
    let connect = usual().value(ValueFormat::ConnectJson).envelope().expand_json();
    Case::of("versions", rows, connect.clone().key(KeyFormat::Json))
        .schema(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
             aggregateid bigint NOT NULL, type text NOT NULL, payload jsonb NOT NULL, \
             version int NOT NULL, amount numeric(10,2))",
        )
        .wants([("Paid", "42", paid())])
        .check(&scene);
    let rows = &["SELECT pg_logical_emit_message(true, 'outbox', '{\"id\": \"$ID1\", \
         \"aggregatetype\": \"$ROUTE\", \"aggregateid\": \"42\", \"type\": \"Paid\", \
         \"attempt\": 2, \"payload\": {\"cents\": 150}}')"];
    Case::of("messages", rows, usual().envelope())
        .schema("")
        .wants([("Paid", "42", paid())])
        .check(&scene);
}

#[test]
fn bytes_and_columns_of_many_types_are_read() {
    let Some(scene) = Scene::new("formats") else { return };
    let rows = &[
        "INSERT INTO outbox VALUES ('$ID1', '$ROUTE', '\\xff00', '\\xff01', '\\xff02')",
        "INSERT INTO outbox VALUES ('$ID2', '$ROUTE', NULL, NULL, NULL)",
    ];
    Case::of("hex", rows, usual().key(KeyFormat::Json).envelope())
        .schema(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
             body_key bytea, payload bytea, digest bytea)",
        )
        .wants([("", "ff00", json!("ff01")), ("", "", Value::Null)])
        .check(&scene);
    let rows = &["INSERT INTO outbox VALUES ('$ID1', '$ROUTE', '{\"cents\": 150}', '$ID9', 3, \
         4, 1.5, 'NaN', true, '2024-01-02 03:04:05', '2024-01-02', 'happy', '\\xff', 1.50)"];
    let connect = usual().key(KeyFormat::ConnectJson).value(ValueFormat::ConnectJson);
    let key = "0198c1a2-7e4b-7000-8000-000000000009";
    Case::of("types", rows, connect.envelope().expand_json())
        .schema(
            "CREATE TYPE mood AS ENUM ('happy', 'so so'); \
             CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, payload jsonb, \
             c_uuid uuid NOT NULL, c_int2 smallint, c_int8 bigint, c_float4 real, \
             c_float8 double precision, c_bool bool, c_timestamp timestamp, c_date date, \
             c_mood mood, c_bytea bytea, c_numeric numeric(10,2), \
             c_timestamp3 timestamp(3), c_timestamptz timestamptz, c_time time, \
             c_varchar varchar(9))",
        )
        .wants([("", key, paid())])
        .check(&scene);
}

#[test]
fn ids_that_are_numbers_and_payloads_that_are_bytes_are_read() {
    let Some(scene) = Scene::new("formats") else { return };
    let rows = &[
        "INSERT INTO outbox (aggregatetype, body_key, type, payload, digest) \
         VALUES ('$ROUTE', '\\xff00', 'Paid', '\\xff01', NULL)",
        "INSERT INTO outbox (aggregatetype, body_key, type, payload, digest) \
         VALUES ('$ROUTE', NULL, NULL, NULL, '\\xff02')",
    ];
    let format = usual().text_ids().key(KeyFormat::Bytes).value(ValueFormat::Bytes);
    let case = Case::of("bytes", rows, format).schema(
        "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
         aggregatetype text NOT NULL, body_key bytea, type text, payload bytea, digest bytea)",
    );
    case.check(&scene);
    let sql = scene.database.sql();
    let markers = "SELECT count(*) FROM processed_messages \
                   WHERE substr(message_id::text, 15, 1) = '5'";
    assert_eq!(sql.value(markers), "2", "each number is a marker of its own");
}

#[test]
fn an_id_of_another_name_is_read() {
    let Some(scene) = Scene::new("formats") else { return };
    let rows =
        &["INSERT INTO outbox VALUES ('$ID1', 'order', '42', '$ROUTE', '{\"cents\": 150}', 7)"];
    let case = Case::of("connector-event-type", rows, usual().id_header("idempotency-key"));
    let case = case.schema(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, \
         aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL, \
         sequence bigint)",
    );
    Case {
        topic: "$ROUTE",
        options: &["route.id_header=idempotency-key", "route.key=aggregate_id"],
        ..case
    }
    .wants([("", "42", paid())])
    .check(&scene);
}

#[test]
fn cloudevents_of_the_relay_are_read() {
    let Some(scene) = Scene::new("formats") else { return };
    for (format, headers) in [("cloudevents_binary", ""), ("cloudevents_structured", "event_type")]
    {
        let database = Database::migrated(postgres::installed(), "events");
        let (sql, slot) = (database.sql(), database.name());
        sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
        let prefix = unique(&format!("{format}-"));
        let topic = format!("{prefix}Paid");
        topic::create(&scene.bootstrap, &topic, PARTITIONS, &[]);
        sql.run(&format!(
            "SELECT outbox_append('order', 42, 'Paid', '{{\"cents\": 150}}', '{ID_START}1');
             SELECT outbox_tombstone('order', 42, 'Paid', '{ID_START}2')"
        ));
        Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            &database.address(),
            slot,
            &scene.bootstrap,
            &prefix,
        )
        .set("format.value", format)
        .set("format.key", "json_schema")
        .set("route.headers", headers)
        .run_once();
        // In binary mode there is no type but that of the event.
        let key = MessageFormat::new().key(KeyFormat::ConnectJson);
        let mut read = read(&scene, &topic, &key, 2);
        read.sort_by_key(|message| message.id);
        let seen = read.iter().map(|it| (&*it.event_type, &*it.aggregate_id, it.payload.clone()));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [("Paid", "42", paid()), ("Paid", "42", Value::Null)],
            "{format}"
        );
    }
}
