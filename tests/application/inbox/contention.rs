//! Lock contention: rows locked by another transaction, and deadlocks.

use std::time::Duration;

use crate::inbox::scene::{Draft, Outcome, Running, Scene, TestEffects};
use support::wait_for;

/// Each message takes one from the shelf of its number, as orders take stock.
fn shelves_setup(stem: &str) -> Option<Scene> {
    let scene = Scene::new(stem)?;
    scene.database.sql().run(
        "CREATE TABLE shelves (number bigint PRIMARY KEY, stock bigint NOT NULL); \
         INSERT INTO shelves SELECT number, 100 FROM generate_series(0, 9) AS number",
    );
    // Of one key, so that they are one batch, and in this order.
    let ordered = |draft: Draft| Draft { key: "shelves".into(), ..draft };
    scene.send(&Draft::many(10).into_iter().map(ordered).collect::<Vec<_>>());
    Some(scene)
}

/// Everything was taken once, and nothing given up.
fn assert_all_taken_once(scene: &Scene, running: Running) {
    scene.await_effects(10);
    let end = running.stop();
    assert_eq!((end.processed, end.dead_letters), (10, 0), "{end:?}");
    // The other transaction decremented each row that it had locked.
    let wrong = "SELECT count(*) FROM shelves WHERE stock <> 99 AND number NOT IN (4, 5)";
    assert_eq!(scene.database.sql().value(wrong), "0");
    assert_eq!(scene.committed().iter().max(), Some(&10));
}

#[test]
fn a_locked_row_lets_earlier_messages_pass_and_makes_no_dead_letter() {
    let Some(scene) = shelves_setup("held") else { return };
    let other = scene.database.sql();
    other.run("BEGIN; UPDATE shelves SET stock = stock - 1 WHERE number = 5");
    let mut spec = scene.spec();
    spec.lock_timeout = Duration::from_millis(50);
    let running = Running::start(spec, TestEffects::with(|_, _| Outcome::TakeStock));
    scene.await_effects(5);
    // More often than a message may fail: it is not the message's fault.
    let before = running.now().retries;
    running.await_counters("more retries than attempts", |now| now.retries > before + 6);
    assert_eq!(running.now().dead_letters, 0);
    other.run("COMMIT");
    assert_all_taken_once(&scene, running);
}

#[test]
fn a_batch_that_loses_a_deadlock_continues_one_by_one() {
    let Some(scene) = shelves_setup("deadlock") else { return };
    let name = scene.database.name().to_owned();
    // Long enough for the other to deadlock with it; the one without a lock timeout is not the victim.
    scene.database.sql().run(&format!("ALTER DATABASE \"{name}\" SET deadlock_timeout = '5s'"));
    let other = scene.database.sql();
    other.run("SET deadlock_timeout = '1h'; BEGIN");
    other.run("UPDATE shelves SET stock = stock - 1 WHERE number = 5");
    let mut spec = scene.spec();
    spec.lock_timeout = Duration::from_mins(1);
    let running = Running::start(spec, TestEffects::with(|_, _| Outcome::TakeStock));
    let watch = scene.database.sql();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND application_name = 'postrider-inbox' AND datname = current_database()";
    wait_for("the batch to wait", || (watch.value(waits) == "1").then_some(()));
    other.run("UPDATE shelves SET stock = stock - 1 WHERE number = 4");
    // The batch wants 4 and 5 together with what is before them, and was given up. One by one it may be
    // sooner at 4 than the other, which wakes up for it; 5 is the other's.
    let done =
        wait_for("the messages before", || Some(scene.effect_rows()).filter(|done| done.1 >= 4));
    assert!(done.0 == done.1 && done.1 <= 5, "{done:?}");
    other.run("COMMIT");
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    wait_for("the deadlock to be counted", || (watch.value(deadlocks) == "1").then_some(()));
    assert_all_taken_once(&scene, running);
}
