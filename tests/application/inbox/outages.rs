//! Transient failures: slow databases, standbys, late migrations; and failures that only look transient.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::inbox::scene::{Draft, Outcome, Scene, TestEffects};
use support::{topic, wait_for};

/// As `statement_timeout` or `pg_cancel_backend` do it.
const CANCELLED: &str = "DO $$ BEGIN RAISE query_canceled; END $$";
/// A type that no migration will bring.
const NO_TYPE: &str = "SELECT 'x'::nothing";

#[test]
fn statements_that_are_cancelled_again_and_again_make_no_dead_letter() {
    let Some(scene) = Scene::new("cancelled") else { return };
    scene.send(&Draft::many(10));
    // More often than a message may fail.
    let effect_rows = TestEffects::with(|number, attempt| {
        if number == 3 && attempt <= 8 { Outcome::Run(CANCELLED) } else { Outcome::Succeed }
    });
    let running = scene.start(effect_rows);
    scene.await_effects(10);
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 10);
}

#[test]
fn a_session_that_reached_a_standby_is_left_for_a_new_one() {
    let Some(scene) = Scene::new("standby") else { return };
    let name = scene.database.name().to_owned();
    let sql = scene.database.sql();
    // As a session on a standby sees it, and for as long as the session lasts.
    sql.run(&format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = on"));
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::plain());
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    assert!(running.status().is_database_unavailable);
    sql.run(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only"));
    scene.await_effects(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_late_migration_is_waited_for_and_makes_no_dead_letter() {
    let Some(scene) = Scene::new("late") else { return };
    let sql = scene.database.sql();
    sql.run("ALTER TABLE deeds RENAME COLUMN number TO digits");
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::with(|_, _| {
        Outcome::Run("INSERT INTO deeds (message_id, number) SELECT NULL, 0 WHERE false")
    }));
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    let why = running.status().not_ready_reason().unwrap();
    assert!(why.contains("database") && why.contains("`Counted` failed"), "{why}");
    assert!(why.contains("SQLSTATE 42703"), "{why}");
    sql.run("ALTER TABLE deeds RENAME COLUMN digits TO number");
    scene.await_effects(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_table_that_all_miss_for_a_while_makes_no_dead_letter() {
    let Some(scene) = Scene::new("renamed") else { return };
    let sql = scene.database.sql();
    scene.send(&Draft::many(20));
    let running = scene.start(TestEffects::plain());
    scene.await_effects(20);
    sql.run("ALTER TABLE deeds RENAME TO elsewhere");
    // More than one batch, and messages of the same keys that come later.
    for part in Draft::many(400).chunks(100) {
        scene.send(part);
        let before = running.now().retries;
        running.await_counters("more retries", |now| now.retries > before + 60);
        running.await_status("the reason", |status| status.is_database_unavailable);
    }
    assert_eq!((running.now().dead_letters, running.status().waiting_messages), (0, 400));
    sql.run("ALTER TABLE elsewhere RENAME TO deeds");
    scene.await_effects(420);
    running.await_status("nothing to wait", |status| {
        status.waiting_messages == 0 && status.not_ready_reason().is_none()
    });
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 420);
}

#[test]
fn more_messages_than_may_wait_are_left_to_kafka() {
    let Some(scene) = Scene::new("plenty") else { return };
    let sql = scene.database.sql();
    sql.run("ALTER TABLE deeds RENAME TO elsewhere");
    let own_key = |number: usize| Draft { key: number.to_string(), ..Draft::new(number) };
    scene.send(&(0..3_000).map(own_key).collect::<Vec<_>>());
    let running = scene.start(TestEffects::plain());
    running.await_status("full queues", |status| status.paused_partitions == 3);
    let before = running.now().retries;
    running.await_counters("more retries", |now| now.retries > before + 100);
    // Each partition has its share of 1,000 keys, or had all of them before the others came, and one batch more.
    let waiting = running.status().waiting_messages;
    assert!((1_000..2_400).contains(&waiting), "{waiting}");
    sql.run("ALTER TABLE elsewhere RENAME TO deeds");
    scene.await_effects(3_000);
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 3_000);
}

#[test]
fn a_message_whose_dependency_is_away_waits_alone_and_uses_up_no_attempt() {
    let Some(scene) = Scene::new("dependent") else { return };
    scene.send(&Draft::many(50));
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let running = scene.start(TestEffects::with(move |number, _| {
        let is_away = number == 7 && !switch.load(Ordering::Relaxed);
        if is_away { Outcome::Unavailable } else { Outcome::Succeed }
    }));
    // Three messages have its key, and two of them come after it. Others of its partition pass.
    scene.await_effects(47);
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    running.await_status("these to wait", |status| {
        status.not_ready_reason().is_none() && status.waiting_messages == 3
    });
    let failing = running.status().failing.unwrap();
    assert_eq!(
        (failing.event_type.as_str(), failing.reason.as_str()),
        ("Counted", "the bank is closed")
    );
    assert_eq!(scene.effect_rows(), (47, 47));
    // Nothing behind it in its partition is committed.
    let (partition, offset) = position_of(&scene, 7);
    wait_for("the offsets of the others", || {
        (scene.committed().iter().map(|&offset| offset.max(0)).sum::<i64>() >= 23).then_some(())
    });
    assert!(scene.committed()[partition] <= offset);
    is_back.store(true, Ordering::Relaxed);
    scene.await_effects(50);
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 50);
    // Those of its key had theirs in order.
    let order =
        "SELECT string_agg(number::text, ' ' ORDER BY ctid) FROM deeds WHERE number % 17 = 7";
    assert_eq!(scene.database.sql().value(order), "7 24 41");
}

#[test]
fn what_waits_is_delivered_again_after_a_restart_and_has_its_effect_once() {
    let Some(scene) = Scene::new("resumed") else { return };
    scene.send(&Draft::many(50));
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 0 { Outcome::Unavailable } else { Outcome::Succeed }
    }));
    scene.await_effects(47);
    running.stop();
    let next = scene.start(TestEffects::plain());
    scene.await_effects(50);
    assert_eq!(next.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 50);
}

/// Partition and offset of the message with this number.
fn position_of(scene: &Scene, number: usize) -> (usize, i64) {
    let records = topic::read(&scene.bootstrap, std::slice::from_ref(&scene.topic));
    let value = format!("{{\"number\": {number}}}").into_bytes();
    let record = records.iter().find(|it| it.value.as_deref() == Some(&value)).unwrap();
    (usize::try_from(record.partition).unwrap(), record.offset)
}

#[test]
fn a_statement_that_no_migration_fixes_is_a_failure_of_the_message() {
    let Some(scene) = Scene::new("untyped") else { return };
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 3 { Outcome::Run(NO_TYPE) } else { Outcome::Succeed }
    }));
    scene.await_effects(9);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    let letters = scene.letters();
    let letter = &letters[0];
    assert_eq!((letter.code.as_str(), letter.failure().unwrap().attempts), ("attempts_used_up", 5));
    assert_eq!(letter.reason, "db error: SQLSTATE 42704");
}

#[test]
fn of_one_key_the_earlier_message_comes_first_though_the_later_one_failed_first() {
    let Some(scene) = Scene::of_one_partition("inverted") else { return };
    // Of one key, with another between them, so that the batch is tried again as a batch.
    let mut drafts = Draft::many(3);
    for (draft, key) in drafts.iter_mut().zip(["account-0", "account-17", "account-0"]) {
        draft.key = key.into();
    }
    scene.send(&drafts);
    let running = scene.start(TestEffects::with(|number, attempt| match (number, attempt) {
        (2, 1) | (0, 2) => Outcome::Unavailable,
        _ => Outcome::Succeed,
    }));
    running.await_counters("an end", |now| now.processed == 3);
    running.stop();
    let order = "SELECT string_agg(number::text, ',' ORDER BY ctid) FROM deeds WHERE number <> 1";
    assert_eq!(scene.database.sql().value(order), "0,2");
}
