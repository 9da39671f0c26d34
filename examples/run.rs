//! The examples as processes, on a private Postgres, Redis and broker: each does what its first comment says.

#![expect(clippy::unwrap_used, reason = "all of this crate is a test")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postrider_kafka::embedded::Broker;
use postrider_sandbox::postgres::{Cluster, Options};
use postrider_sandbox::redis::Redis;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use support::http;
use support::sql::Sql;
use support::wait::wait_until;
use uuid::Uuid;

/// A database of the example's own.
struct Stage {
    cluster: Cluster,
    sql: Sql,
}

impl Stage {
    fn set() -> Self {
        let cluster = Cluster::start(&Options::default()).unwrap();
        let sql = Sql::connect(&cluster.unix_url());
        Self { cluster, sql }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("DATABASE_URL", self.cluster.url());
        command
    }

    fn count(&self, sql: &str) -> usize {
        self.sql.value(&format!("SELECT count(*) FROM {sql}")).parse().unwrap()
    }
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only for one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What it prints; it must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn writer_leaves_an_order_and_its_event() {
    let stage = Stage::set();
    let mut writer = stage.command(env!("CARGO_BIN_EXE_writer"));
    assert_eq!(output(writer.arg("990")), "order 1\n");
    let events = "outbox WHERE aggregate_id = '1' AND sequence = 1 AND payload->>'cents' = '990'";
    assert_eq!((stage.count("orders"), stage.count(events)), (1, 1));
}

#[test]
fn guard_makes_one_order_of_a_request_that_is_repeated() {
    let stage = Stage::set();
    let redis = Redis::start().unwrap();
    let mut guard = stage.command(env!("CARGO_BIN_EXE_guard"));
    guard.env("REDIS_URL", redis.url()).env("BIND", "127.0.0.1:0").stdout(Stdio::piped());
    let mut guard = Running(guard.spawn().unwrap());
    let mut address = String::new();
    BufReader::new(guard.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let place = |account: &str| {
        let head = format!(
            "POST /orders HTTP/1.1\r\ncontent-type: application/json\r\nx-account: {account}\r\n\
             idempotency-key: k"
        );
        http::send(address.trim(), &head, br#"{"sku":"tea"}"#).unwrap()
    };
    let first = place("ada");
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None));
    let again = place("ada");
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!((place("bob").status, stage.count("orders"), stage.count("outbox")), (201, 2, 2));
}

/// As the relay would send them, by id and value.
fn send(broker: &Broker, messages: &[(Uuid, &str)]) {
    let mut config = ClientConfig::new();
    let producer: BaseProducer =
        config.set("bootstrap.servers", broker.bootstrap()).create().unwrap();
    for (number, (id, value)) in messages.iter().enumerate() {
        let (key, id) = (number.to_string(), id.to_string());
        let headers = OwnedHeaders::new()
            .insert(Header { key: "id", value: Some(&id) })
            .insert(Header { key: "event_type", value: Some("OrderPlaced") });
        let record = BaseRecord::to("OrderPlaced").key(&key).payload(*value);
        producer.send(record.headers(headers)).unwrap();
    }
    producer.flush(Duration::from_mins(1)).unwrap();
}

/// Starts it, and waits until the query counts so many; then it is killed.
fn run_until(stage: &Stage, broker: &Broker, program: &str, counted: &str, count: usize) {
    let mut command = stage.command(program);
    let _running = Running(command.env("KAFKA_BROKERS", broker.bootstrap()).spawn().unwrap());
    let exists = format!("SELECT to_regclass('{counted}') IS NOT NULL");
    wait_until("the effects", || stage.sql.value(&exists) == "t" && stage.count(counted) == count);
}

#[test]
fn consumer_has_each_effect_once_and_what_it_cannot_process_is_listed_and_sent_again() {
    let stage = Stage::set();
    let topics = [("OrderPlaced", 1), ("payments.dead-letters", 1)];
    let broker = Broker::start(1, &topics).unwrap();
    let values = [r#"{"cents":990}"#, r#"{"cents":"many"}"#, r#"{"cents":90000}"#];
    send(&broker, &values.map(|value| (Uuid::now_v7(), value)));
    run_until(&stage, &broker, env!("CARGO_BIN_EXE_consumer"), "payments", 2);
    let events = "outbox WHERE (aggregate_id, event_type) IN (('0', 'PaymentTaken'), ('2', 'PaymentRefused'))";
    assert_eq!(stage.count(events), 2);

    let dead_letters = |action: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dead-letters"));
        output(command.args([action, "payments"]).env("KAFKA_BROKERS", broker.bootstrap()))
    };
    wait_until("the dead letter", || dead_letters("list").contains(" poison "));
    assert_eq!(dead_letters("redrive"), "1 sent, 0 too old\n");
    assert_eq!(dead_letters("redrive"), "0 sent, 0 too old\n");
}

#[test]
fn own_consumer_has_each_effect_once_though_messages_come_twice() {
    let stage = Stage::set();
    let program = env!("CARGO_BIN_EXE_own-consumer");
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    // A second broker has no offsets of the group, so all of it is delivered again.
    for (messages, shipments) in [(1, 1), (2, 2)] {
        let broker = Broker::start(1, &[("OrderPlaced", 1)]).unwrap();
        let messages: Vec<_> = ids.iter().take(messages).map(|id| (*id, "{}")).collect();
        send(&broker, &messages);
        run_until(&stage, &broker, program, "shipments", shipments);
    }
    assert_eq!(stage.count("(SELECT DISTINCT order_id FROM shipments) AS orders"), 2);
}

#[test]
fn a_saga_undoes_a_late_booking() {
    let stage = Stage::set();
    let run =
        |arguments: &[&str]| output(stage.command(env!("CARGO_BIN_EXE_saga")).args(arguments));
    assert_eq!(run(&["start", "7"]), "OPEN\n");
    assert_eq!(run(&["booked", "7"]), "BOOKED\n");
    // The answer is there before the request, which comes twice.
    assert_eq!(run(&["booked", "9"]), "BOOKED\n");
    assert_eq!(run(&["start", "9"]), "BOOKED\n");
    assert_eq!(run(&["start", "9"]), "BOOKED\n");
    assert_eq!(stage.count("outbox WHERE aggregate_id = '9'"), 0);
    assert_eq!(run(&["start", "8"]), "OPEN\n");
    let mut deadlines = stage.command(env!("CARGO_BIN_EXE_saga"));
    let _deadlines = Running(deadlines.arg("deadlines").spawn().unwrap());
    let given_up = "outbox WHERE event_type = 'TripGivenUp' AND aggregate_id = '8'";
    wait_until("the deadline", || stage.count(given_up) == 1);
    let cancelled = "outbox WHERE event_type = 'HotelCancelled' AND aggregate_id = '8'";
    let asked = stage.count(cancelled);
    assert!(asked >= 1, "the hotel is cancelled with it");
    // Booked after all: cancelled again, and so it is at each deadline, until the hotel has answered.
    assert_eq!(run(&["booked", "8"]), "CANCELLING\n");
    wait_until("it is asked again", || stage.count(cancelled) > asked + 1);
    assert_eq!(run(&["cancelled", "8"]), "GIVEN_UP\n");
    assert_eq!(stage.count(given_up), 1);
}
