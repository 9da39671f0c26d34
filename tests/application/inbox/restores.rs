//! Databases that go back: snapshots that are restored, standbys that lagged, databases and topics that are
//! made again. Whatever the database lacks is read again, and nothing has its effect twice.
//!
//! `POSTRIDER_RESTORES` and `POSTRIDER_FAILOVERS` say how often instead of three times and twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use postrider::sandbox::postgres::Options;
use support::chance::Chance;
use support::postgres::{self, Database};
use support::sql::Sql;
use support::{kafka, redis_database, topic, wait_for};

use crate::inbox::scene::{Draft, IGNORED, Outcome, Running, Scene, TestEffects};
use crate::inbox::standby::Pair;

/// Of the numbers of messages.
const SEED: u64 = 13;

fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// A copy of the database as it is now. Its sessions end.
fn snapshot(database: &Database) -> String {
    let (name, copy) = (database.name(), format!("{}_snapshot", database.name()));
    let sql = Sql::connect(&postgres::installed().unix_url());
    alone(database, || sql.run(&format!("CREATE DATABASE \"{copy}\" TEMPLATE \"{name}\"")));
    copy
}

/// Puts the copy in the database's place.
fn restore(database: &Database, copy: &str) {
    let name = database.name();
    let sql = Sql::connect(&postgres::installed().unix_url());
    alone(database, || {
        sql.run(&format!("DROP DATABASE \"{name}\""));
        sql.run(&format!("ALTER DATABASE \"{copy}\" RENAME TO \"{name}\""));
    });
}

/// While nobody can connect to it.
fn alone(database: &Database, work: impl FnOnce()) {
    let name = database.name();
    let sql = Sql::connect(&postgres::installed().unix_url());
    let allow =
        |allow: &str| sql.run(&format!("ALTER DATABASE \"{name}\" ALLOW_CONNECTIONS {allow}"));
    allow("false");
    sql.run(&format!(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
    ));
    work();
    allow("true");
}

#[test]
fn a_database_that_is_put_back_gets_what_it_lacks_and_nothing_twice() {
    let Some(scene) = Scene::new("put_back") else { return };
    // The cache has ids that the database forgets.
    let redis = redis_database::next();
    let mut chance = Chance::new(SEED);
    let mut running = Some(Running::start(scene.spec_with_cache(&redis), TestEffects::plain()));
    let mut total = 0;
    let mut send = |count: usize| {
        scene.send(&Draft::many(count));
        total += count;
        total
    };
    for cycle in 0..times("POSTRIDER_RESTORES", 3) {
        scene.await_effects(send(chance.below(200) + 1));
        let copy = snapshot(&scene.database);
        let lost = chance.below(1_000) + 1;
        scene.await_effects(send(lost));
        // Stopped, or idle, or with messages on their way.
        if cycle % 3 == 0 {
            running.take().unwrap().stop();
        }
        let rewinds = running.as_ref().map_or(0, |running| running.now().rewinds);
        let others = if cycle % 3 == 2 { chance.below(500) + 1 } else { 0 };
        std::thread::scope(|scope| {
            scope.spawn(|| send(others));
            restore(&scene.database, &copy);
        });
        let (before, all) = (scene.effect_rows().1, send(0));
        eprintln!("put back by {lost} messages: {before} of {all} effects are there");
        let now = running.get_or_insert_with(|| {
            Running::start(scene.spec_with_cache(&redis), TestEffects::plain())
        });
        now.await_counters("to notice it", |now| now.rewinds > rewinds);
        scene.await_effects(all);
    }
    let end = running.unwrap().stop();
    eprintln!("{} effects for {} messages: {end:?}", scene.effect_rows().0, send(0));
    assert_eq!((end.dead_letters, scene.markers()), (0, send(0)));
    let committed: i64 = scene.committed().iter().sum();
    assert_eq!(committed, i64::try_from(send(0)).unwrap());
}

#[test]
fn a_failover_to_a_standby_that_lagged_loses_nothing() {
    // Clusters of its own: they fail over.
    let mut pair = Pair::start(&Options::default());
    let Some(kafka) = kafka::shared() else { return };
    let mut scene = Scene::on(kafka, pair.primary(), "failed_over");
    let mut spec = scene.spec();
    spec.database = pair.url(scene.database.name()).parse().unwrap();
    let running = Running::start(spec, TestEffects::plain());
    let mut chance = Chance::new(SEED);
    let mut sent = 0;
    for _ in 0..times("POSTRIDER_FAILOVERS", 2) {
        pair.follow();
        let both = (chance.below(200) + 1, chance.below(500) + 1);
        scene.send(&Draft::many(both.0));
        scene.await_effects(sent + both.0);
        pair.wait_caught_up();
        pair.cut();
        scene.send(&Draft::many(both.1));
        sent += both.0 + both.1;
        scene.await_effects(sent);
        let rewinds = running.now().rewinds;
        pair.fail_over();
        scene.database = scene.database.at(pair.primary());
        eprintln!("lagged by {} messages: {} of {sent} effects", both.1, scene.effect_rows().1);
        running.await_counters("to notice it", |now| now.rewinds > rewinds);
        scene.await_effects(sent);
    }
    let end = running.stop();
    eprintln!("{} effects for {sent} messages: {end:?}", scene.effect_rows().0);
    assert_eq!((end.dead_letters, scene.markers()), (0, sent));
}

#[test]
fn a_database_that_is_rebuilt_reads_everything_whatever_the_cache_has() {
    let Some(scene) = Scene::new("rebuilt") else { return };
    // The cache has ids that the database forgets.
    let redis = redis_database::next();
    scene.send(&Draft::many(400));
    let first = Running::start(scene.spec_with_cache(&redis), TestEffects::plain());
    scene.await_effects(400);
    first.stop();
    scene.database.sql().run(
        "TRUNCATE deeds; TRUNCATE processed_messages; TRUNCATE consumer_offsets; TRUNCATE outbox",
    );
    let again = Running::start(scene.spec_with_cache(&redis), TestEffects::plain());
    scene.await_effects(400);
    let again = again.stop();
    assert_eq!((again.processed, again.cache_hits), (400, 0));
}

#[test]
fn a_consumer_from_before_there_were_offsets_goes_on_where_its_group_is() {
    let Some(scene) = Scene::new("upgraded") else { return };
    scene.send(&Draft::many(300));
    let first = scene.start(TestEffects::plain());
    scene.await_effects(300);
    first.stop();
    // What an earlier version left.
    scene.database.sql().run("DELETE FROM consumer_offsets");
    scene.send(&Draft::many(10));
    let next = scene.start(TestEffects::plain());
    scene.await_effects(310);
    let next = next.stop();
    assert_eq!((next.processed, next.duplicates, next.rewinds), (10, 0, 0));
    let sum = "SELECT sum(next_offset) FROM consumer_offsets";
    assert_eq!(scene.database.sql().value(sum), "310");
}

#[test]
fn a_group_whose_offsets_are_lost_reads_from_the_beginning_and_has_no_effect_twice() {
    let Some(scene) = Scene::new("expired") else { return };
    scene.send(&Draft::many(100));
    let first = scene.start(TestEffects::plain());
    scene.await_effects(100);
    first.stop();
    // As when Kafka has removed the offsets of a group that was away for longer than it keeps them.
    let renamed = format!("{}-renamed", scene.name);
    scene.database.sql().run(&format!(
        "UPDATE consumer_offsets SET consumer = '{renamed}';
         UPDATE processed_messages SET consumer = '{renamed}'"
    ));
    let scene = Scene { name: renamed, ..scene };
    scene.send(&Draft::many(10));
    let next = scene.start(TestEffects::plain());
    scene.await_effects(110);
    next.await_counters("what is read again", |now| now.duplicates == 100);
    let next = next.stop();
    assert_eq!((next.processed, next.rewinds), (10, 0));
    assert_eq!(scene.database.sql().value("SELECT sum(next_offset) FROM consumer_offsets"), "110");
}

/// Kafka forgets the group's offsets with the topic.
#[test]
fn a_topic_that_is_created_again_and_has_grown_further_is_read_from_its_beginning() {
    let Some(scene) = Scene::new("outgrown") else { return };
    scene.send(&Draft::many(30));
    let first = scene.start(TestEffects::plain());
    scene.await_effects(30);
    first.stop();
    topic::delete(&scene.bootstrap, &scene.topic);
    topic::create(&scene.bootstrap, &scene.topic, 3, &[]);
    scene.send(&Draft::many(100));
    let next = scene.start(TestEffects::plain());
    scene.await_effects(130);
    let next = next.stop();
    assert_eq!((next.processed, next.duplicates), (100, 0));
}

#[test]
fn a_topic_that_is_created_again_is_read_from_its_beginning() {
    let Some(scene) = Scene::new("recreated") else { return };
    scene.send(&Draft::many(100));
    let first = scene.start(TestEffects::plain());
    scene.await_effects(100);
    first.stop();
    topic::delete(&scene.bootstrap, &scene.topic);
    topic::create(&scene.bootstrap, &scene.topic, 3, &[]);
    scene.send(&Draft::many(10));
    let next = scene.start(TestEffects::plain());
    scene.await_effects(110);
    let next = next.stop();
    assert_eq!((next.processed, next.duplicates), (10, 0));
    let sum = "SELECT sum(next_offset) FROM consumer_offsets";
    assert_eq!(scene.database.sql().value(sum), "10");
}

#[test]
fn a_topic_that_is_created_again_under_a_running_consumer_is_read_from_its_beginning() {
    let Some(scene) = Scene::new("replaced") else { return };
    scene.send(&Draft::many(100));
    let running = scene.start(TestEffects::plain());
    scene.await_effects(100);
    topic::delete(&scene.bootstrap, &scene.topic);
    topic::create(&scene.bootstrap, &scene.topic, 3, &[]);
    scene.send(&Draft::many(10));
    scene.await_effects(110);
    running.stop();
    // Beyond what the topic had before.
    scene.send(&Draft::many(200));
    let next = scene.start(TestEffects::plain());
    scene.await_effects(310);
    assert_eq!(next.stop().dead_letters, 0);
}

#[test]
fn the_offset_in_the_database_waits_for_a_dead_letter() {
    let Some(scene) = Scene::new("waits_for_letter") else { return };
    // Of one key, so of one partition.
    let mut drafts = [0, 17, 34].map(Draft::new);
    drafts[1].value = "{".into();
    scene.send(&drafts);
    let offsets = Arc::new(Mutex::new(Vec::new()));
    let (seen, database) = (Arc::clone(&offsets), scene.database.clone());
    let look = move || {
        let database = database.clone();
        let sum = "SELECT sum(next_offset) FROM consumer_offsets";
        // The consumer's thread has a runtime already.
        let offset = std::thread::spawn(move || database.sql().value(sum)).join().unwrap();
        seen.lock().unwrap().push(offset);
    };
    let running = scene.start(TestEffects::plain().then(look));
    scene.await_effects(2);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    assert_eq!(offsets.lock().unwrap().first().unwrap(), "1");
    assert_eq!(scene.database.sql().value("SELECT sum(next_offset) FROM consumer_offsets"), "3");
}

#[test]
fn what_waits_holds_the_offset_back_and_is_read_again_from_a_database_that_went_back() {
    let Some(scene) = Scene::new("held_back") else { return };
    let sql = scene.database.sql();
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let running = scene.start(TestEffects::with(move |number, _| {
        let is_away = number == 7 && !switch.load(Ordering::Relaxed);
        if is_away { Outcome::Unavailable } else { Outcome::Succeed }
    }));
    scene.send(&Draft::many(50));
    // Those of its key wait behind it, and messages of other keys in its partition pass.
    let stored = "SELECT sum(next_offset)::int FROM consumer_offsets";
    let has_passed = |count: i64| sql.value(stored).parse::<i64>().unwrap() >= count;
    scene.await_effects(47);
    wait_for("the offsets of the other partitions", || has_passed(20).then_some(()));
    let missing = "SELECT count(*) FROM consumer_offsets AS kept \
        WHERE next_offset > (SELECT count(*) FROM deeds \
            WHERE split_part(place, ':', 1)::int = kept.partition \
            AND split_part(place, ':', 2)::int < next_offset)";
    assert_eq!(sql.value(missing), "0");
    assert!(!has_passed(48));
    // All that was processed is lost, and the message that waits is the first to notice.
    sql.run("UPDATE consumer_offsets SET next_offset = 0; TRUNCATE processed_messages, deeds");
    running.await_counters("to notice it", |now| now.rewinds > 0);
    scene.await_effects(47);
    assert_eq!(sql.value(missing), "0");
    is_back.store(true, Ordering::Relaxed);
    scene.await_effects(50);
    let end = running.stop();
    assert_eq!((end.dead_letters, scene.markers()), (0, 50));
    assert_eq!(sql.value(stored), "50");
    let order =
        "SELECT string_agg(number::text, ' ' ORDER BY ctid) FROM deeds WHERE number % 17 = 7";
    assert_eq!(sql.value(order), "7 24 41");
}

#[test]
fn a_member_that_comes_late_does_not_move_the_offset_in_the_database_back() {
    let Some(scene) = Scene::new("late_member") else { return };
    let running = scene.start(TestEffects::plain());
    scene.send(&Draft::many(30));
    scene.await_effects(30);
    // What its successor has written meanwhile.
    scene.database.sql().run("UPDATE consumer_offsets SET next_offset = 1000");
    scene.send(&Draft::many(30));
    scene.await_effects(60);
    let least = "SELECT min(next_offset) FROM consumer_offsets";
    assert_eq!(scene.database.sql().value(least), "1000");
    assert_eq!(running.stop().rewinds, 0);
}

#[test]
fn offsets_of_messages_that_need_no_transaction_are_stored_all_the_same() {
    let Some(scene) = Scene::new("lazily") else { return };
    let running = scene.start(TestEffects::plain());
    let ignored = (0..50).map(|number| Draft::of(uuid::Uuid::now_v7(), IGNORED, number));
    scene.send(&ignored.collect::<Vec<_>>());
    let sum = "SELECT coalesce(sum(next_offset), 0) FROM consumer_offsets";
    wait_for("the offsets", || (scene.database.sql().value(sum) == "50").then_some(()));
    wait_for("the group's", || (scene.committed().iter().sum::<i64>() == 50).then_some(()));
    // An idle consumer sees that the database went back, too, and reads again.
    scene.database.sql().run("UPDATE consumer_offsets SET next_offset = 0");
    running.await_counters("to read again", |now| now.passed_over == 100);
    running.stop();
}

#[test]
fn an_idle_consumer_notices_that_its_database_is_unavailable() {
    let Some(scene) = Scene::new("idle") else { return };
    let running = scene.start(TestEffects::plain());
    running.await_status("to be ready", |now| now.not_ready_reason().is_none());
    alone(&scene.database, || {
        running.await_status("to notice it", |now| now.is_database_unavailable);
    });
    running.await_status("to be ready again", |now| now.not_ready_reason().is_none());
    running.stop();
}
