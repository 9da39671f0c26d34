//! What published consumers do with a lock, with a query and with markers that are gone too early, on real
//! servers: `docs/patterns` names each test.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::inbox::scene::{Draft, Scene, TestEffects};
use support::postgres::{self, Database};
use support::sql::Sql;
use support::{redis_database, topic, wait_for};

/// What becomes of the process that has a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Acknowledges,
    /// After its lock or marker, before its effect is committed.
    Dies,
}

/// The first message that the group has not acknowledged, if there is one.
fn deliver(scene: &Scene, process: impl FnOnce(&BorrowedMessage<'_>) -> End) -> Option<End> {
    let mut config = topic::client(&scene.bootstrap);
    config.set("group.id", &scene.name).set("auto.offset.reset", "earliest");
    config.set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_offset(&scene.topic, 0, Offset::Stored).unwrap();
    consumer.assign(&partitions).unwrap();
    let message = wait_for("a message, or the end", || {
        match consumer.poll(Duration::from_millis(100))? {
            Ok(message) => Some(Some(message)),
            Err(KafkaError::PartitionEOF(_)) => Some(None),
            // The client tries again by itself.
            Err(_) => None,
        }
    })?;
    let end = process(&message);
    if end == End::Acknowledges {
        consumer.commit_message(&message, CommitMode::Sync).unwrap();
    }
    Some(end)
}

fn id(message: &BorrowedMessage<'_>) -> String {
    let header = message.headers().unwrap().get(0);
    String::from_utf8(header.value.unwrap().to_vec()).unwrap()
}

/// One message.
fn scene_of_one(stem: &str) -> Option<Scene> {
    let scene = Scene::of_one_partition(stem)?;
    scene.send(&[Draft::new(0)]);
    Some(scene)
}

/// `SET key NX EX 30` before the work; who finds it held takes the message for one that is being processed.
fn with_a_lock(scene: &Scene, redis: &str, end: End) -> Option<End> {
    let mut redis = redis::Client::open(redis).unwrap().get_connection().unwrap();
    deliver(scene, |message| {
        let mut lock = redis::cmd("SET");
        lock.arg(id(message)).arg(1).arg("NX").arg("EX").arg(30);
        let is_held = lock.query::<Option<String>>(&mut redis).unwrap().is_none();
        if !is_held && end == End::Acknowledges {
            act(&scene.database.sql(), &id(message));
        }
        if is_held { End::Acknowledges } else { end }
    })
}

/// The marker in the transaction of the effect.
fn with_a_marker(scene: &Scene, end: End) -> Option<End> {
    deliver(scene, |message| {
        let sql = scene.database.sql();
        sql.run("BEGIN");
        if sql.value(&mark(&id(message))) == "t" {
            act(&sql, &id(message));
        }
        if end == End::Acknowledges {
            sql.run("COMMIT");
        }
        end
    })
}

fn mark(id: &str) -> String {
    format!("SELECT inbox_mark('published', '{id}')")
}

fn act(sql: &Sql, id: &str) {
    sql.run(&format!("INSERT INTO deeds VALUES ('{id}')"));
}

#[test]
fn a_lock_that_is_held_and_acknowledged_loses_what_its_holder_did_not_do() {
    let Some(scene) = scene_of_one("locked") else { return };
    let redis = redis_database::next();
    assert_eq!(with_a_lock(&scene, &redis, End::Dies), Some(End::Dies));
    assert_eq!(with_a_lock(&scene, &redis, End::Acknowledges), Some(End::Acknowledges));
    assert_eq!(with_a_lock(&scene, &redis, End::Acknowledges), None, "it does not come again");
    assert_eq!(scene.effect_rows(), (0, 0), "and nobody has done it");

    let Some(scene) = scene_of_one("marked") else { return };
    assert_eq!(with_a_marker(&scene, End::Dies), Some(End::Dies));
    assert_eq!(with_a_marker(&scene, End::Acknowledges), Some(End::Acknowledges));
    assert_eq!(scene.effect_rows(), (1, 1));
}

#[test]
fn select_then_insert_lets_two_consumers_act_at_once() {
    const ID: &str = "0198c1a2-7e4b-7000-8000-000000000003";
    let database = Database::migrated(postgres::installed(), "select_then_insert");
    let (one, other) = (database.sql(), database.sql());
    one.run("CREATE TABLE seen (id uuid); CREATE TABLE deeds (id uuid)");
    for sql in [&one, &other] {
        sql.run("BEGIN");
        assert_eq!(sql.value(&format!("SELECT count(*) FROM seen WHERE id = '{ID}'")), "0");
    }
    for sql in [&one, &other] {
        act(sql, ID);
        sql.run(&format!("INSERT INTO seen VALUES ('{ID}'); COMMIT"));
    }
    assert_eq!(one.value("SELECT count(*) FROM deeds"), "2");

    // Question and marker are one statement, and a second one waits for the end of the first.
    one.run("BEGIN");
    assert_eq!(one.value(&mark(ID)), "t");
    let second = std::thread::spawn(move || other.value(&mark(ID)));
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    let observer = database.sql();
    wait_for("the second to wait", || (observer.value(waits) != "0").then_some(()));
    one.run("COMMIT");
    assert_eq!(second.join().unwrap(), "f");
}

/// The group and the rows in `consumer_offsets` are put back each time: what differs is the marker.
#[test]
fn a_message_that_outlives_its_marker_has_its_effect_again() {
    let Some(scene) = Scene::new("outlived") else { return };
    scene.send(&Draft::many(10));
    let sql = scene.database.sql();
    let read_all = |effects: usize| {
        sql.run("DELETE FROM consumer_offsets");
        scene.rewind();
        let running = scene.start(TestEffects::plain());
        running.await_counters("all", |now| now.processed + now.duplicates == 10);
        running.stop();
        assert_eq!(scene.effect_rows(), (effects, 10));
    };
    read_all(10);
    read_all(10);
    sql.run("DELETE FROM processed_messages");
    read_all(20);
}

#[test]
fn markers_partitioned_by_day_take_a_message_that_comes_after_midnight_for_a_new_one() {
    const DAYS: &str =
        "CREATE TABLE by_day (consumer text, id uuid, day date) PARTITION BY LIST (day);
         CREATE TABLE monday PARTITION OF by_day FOR VALUES IN ('2026-11-23');
         CREATE TABLE tuesday PARTITION OF by_day FOR VALUES IN ('2026-11-24')";
    let sql = Database::create(postgres::installed(), "by_day").sql();
    sql.run(DAYS);
    let unique = "CREATE UNIQUE INDEX ON by_day (consumer, id)";
    let refused = sql.try_run(unique).unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "0A000", "the day must be part of it");
    sql.run("CREATE UNIQUE INDEX ON by_day (consumer, id, day)");
    let mark = |day: &str| {
        let id = "0198c1a2-7e4b-7000-8000-000000000003";
        let insert = format!(
            "INSERT INTO by_day VALUES ('payments', '{id}', '2026-11-{day}')
             ON CONFLICT DO NOTHING RETURNING id"
        );
        sql.rows(&insert).len()
    };
    assert_eq!([mark("23"), mark("23"), mark("24")], [1, 0, 1]);
}
