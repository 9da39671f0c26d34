//! Several consumers of one group: partitions change hands, and one message may be in two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::inbox::scene::{Draft, HANDLED, Outcome, Running, Scene, TestEffects};
use support::wait_for;

const COUNT: usize = 3_000;

#[test]
fn while_members_come_and_go_each_message_has_its_effect_once() {
    let Some(scene) = Scene::new("rebalanced") else { return };
    // A third comes twice.
    let drafts = Draft::many(COUNT);
    let repeats = drafts.iter().step_by(3).cloned().collect::<Vec<_>>();
    let slow = || TestEffects::with(|_, _| Outcome::Sleep(Duration::from_micros(200)));
    let start = || {
        let mut spec = scene.spec();
        spec.batch_max = 20;
        Running::start(spec, slow())
    };
    let mut members = vec![start()];
    for (sent, part) in drafts.chunks(COUNT / 5).enumerate() {
        scene.send(part);
        wait_for("some of it", || (scene.effect_rows().1 > sent * COUNT / 5).then_some(()));
        members.push(start());
        if sent % 2 == 1 {
            drop(members.remove(0));
        }
    }
    scene.send(&repeats);
    scene.await_effects(COUNT);
    let total = i64::try_from(COUNT + repeats.len()).unwrap();
    wait_for("the offsets", || (scene.committed().iter().sum::<i64>() == total).then_some(()));
    assert!(members.into_iter().all(|member| member.stop().dead_letters == 0));
    assert_eq!(scene.effect_rows(), (COUNT, COUNT));
}

#[test]
fn a_member_without_partitions_is_idle_and_ready() {
    let Some(scene) = Scene::new("surplus") else { return };
    let members = [(); 4].map(|()| Running::start(scene.spec(), TestEffects::plain()));
    wait_for("all to have joined", || {
        let statuses = members.iter().map(Running::status);
        let idle = statuses.clone().filter(|status| status.partitions == 0).count();
        (idle == 1 && statuses.clone().all(|it| it.not_ready_reason().is_none())).then_some(())
    });
    for member in members {
        member.stop();
    }
}

#[test]
fn a_zombie_that_holds_a_marker_is_waited_for_and_its_end_decides() {
    let Some(scene) = Scene::new("zombie") else { return };
    for (outcome_of, is_done_by_zombie) in [("ROLLBACK", false), ("COMMIT", true)] {
        let id = Uuid::now_v7();
        let zombie = scene.database.sql();
        zombie.run(&format!(
            "BEGIN; INSERT INTO processed_messages VALUES ('{}', '{id}')",
            scene.name
        ));
        let mut spec = scene.spec();
        spec.lock_timeout = Duration::from_millis(50);
        let running = Running::start(spec, TestEffects::plain());
        scene.send(&[Draft::of(id, HANDLED, 1)]);
        // More often than a message may fail: it is not the message's fault.
        running.await_counters("waits for the lock", |now| now.retries > 6);
        zombie.run(outcome_of);
        running.await_counters("an end", |now| now.processed + now.duplicates == 1);
        let end = running.stop();
        assert_eq!((end.duplicates == 1, end.dead_letters), (is_done_by_zombie, 0), "{outcome_of}");
        let sql = format!("SELECT count(*) FROM deeds WHERE message_id = '{id}'");
        let effects = if is_done_by_zombie { "0" } else { "1" };
        assert_eq!(scene.database.sql().value(&sql), effects, "{outcome_of}");
    }
}

#[test]
fn a_frozen_transaction_is_ended_by_the_server_and_its_message_taken_over() {
    let Some(scene) = Scene::new("frozen") else { return };
    let id = Uuid::now_v7();
    scene.send(&[Draft::of(id, HANDLED, 1)]);
    let mut spec = scene.spec();
    spec.idle_in_transaction_max = Duration::from_millis(200);
    spec.lock_timeout = Duration::from_millis(100);
    // The first is frozen within its transaction, once, and does not notice its end.
    let is_thawed = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_thawed);
    let frozen = TestEffects::with(move |_, attempt| {
        if attempt == 1 {
            // All of its thread: it notices nothing.
            wait_for("the thaw", || switch.load(Ordering::Relaxed).then_some(()));
        }
        Outcome::Succeed
    });
    let running = Running::start(spec, frozen.clone());
    wait_for("the frozen one to begin", || (frozen.attempts(1) == 1).then_some(()));
    // The same message, in the hands of a second consumer of that name.
    let sql = scene.database.sql();
    sql.run("SET lock_timeout = '1min'");
    let marked = sql.rows(&format!(
        "INSERT INTO processed_messages VALUES ('{}', '{id}') ON CONFLICT DO NOTHING RETURNING 1",
        scene.name,
    ));
    assert_eq!(marked.len(), 1, "the server should have ended the frozen transaction");
    is_thawed.store(true, Ordering::Relaxed);
    running.await_counters("the first to find it done", |now| now.duplicates == 1);
    running.stop();
    assert_eq!(scene.effect_rows().0, 0);
}
