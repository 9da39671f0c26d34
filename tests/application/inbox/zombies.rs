//! A member that was frozen, and then would give up a message that another has in the meantime.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::inbox::ConsumerSpec;
use uuid::Uuid;

use crate::inbox::scene::{
    Draft, HANDLED, Outcome, Running, Scene, TestEffects, terminate_sessions,
};
use support::sql::Sql;
use support::wait_for;

/// A member whose effect freezes it until told, and then calls the message poison.
struct Frozen {
    member: Running,
    wake: mpsc::Sender<()>,
}

/// The group removes a member that does not poll for so long, and the server ends its transaction.
fn impatient(scene: &Scene) -> ConsumerSpec {
    let mut spec = scene.spec();
    spec.kafka.push(("session.timeout.ms".into(), "6000".into()));
    spec.kafka.push(("max.poll.interval.ms".into(), "6000".into()));
    spec.idle_in_transaction_max = Duration::from_millis(200);
    spec
}

/// Freezes the only member within its only message.
fn freeze(scene: &Scene) -> Frozen {
    let (wake, woken) = mpsc::channel();
    let woken = Mutex::new(woken);
    let effects = TestEffects::with(move |_, attempt| {
        if attempt == 1 {
            // Blocks the thread, so that the member does not poll.
            woken.lock().unwrap().recv().unwrap();
        }
        Outcome::Poison
    });
    scene.send(&[Draft::new(1)]);
    let member = Running::start(impatient(scene), effects.clone());
    wait_for("the member to begin", || (effects.attempts(1) == 1).then_some(()));
    Frozen { member, wake }
}

#[test]
fn a_frozen_member_makes_no_dead_letter_of_what_its_successor_has_done() {
    let Some(scene) = Scene::new("superseded") else { return };
    let Frozen { member, wake } = freeze(&scene);
    let successor = Running::start(impatient(&scene), TestEffects::plain());
    scene.await_effects(1);
    wake.send(()).unwrap();
    member.await_counters("the end of its batch", |now| now.batches > 0);
    member.stop();
    successor.stop();
    assert_eq!((scene.letters().len(), scene.effect_rows()), (0, (1, 1)));
}

#[test]
fn a_frozen_member_makes_no_dead_letter_of_what_its_successor_is_to_do() {
    let Some(scene) = Scene::new("premature") else { return };
    let Frozen { member, wake } = freeze(&scene);
    // The successor cannot do it yet: there is no marker.
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let waits = TestEffects::with(move |_, _| {
        if switch.load(Ordering::Relaxed) { Outcome::Succeed } else { Outcome::Unavailable }
    });
    let successor = Running::start(impatient(&scene), waits);
    successor.await_status("the message", |status| status.waiting_messages == 1);
    wake.send(()).unwrap();
    member.await_counters("the end of its batch", |now| now.batches > 0);
    assert_eq!(scene.markers(), 0);
    is_back.store(true, Ordering::Relaxed);
    scene.await_effects(1);
    member.stop();
    successor.stop();
    assert_eq!(scene.letters().len(), 0);
}

/// A member whose session ends while another one, which the test plays, inserts the message's marker and has
/// not ended. The message is then poison to the member.
fn overtaken(scene: &Scene) -> (Running, Sql) {
    let id = Uuid::now_v7();
    let (database, name) = (scene.database.clone(), scene.name.clone());
    let (begun, other) = mpsc::channel();
    let effects = TestEffects::with(move |_, _| {
        let (database, name, begun) = (database.clone(), name.clone(), begun.clone());
        let overtake = move || {
            terminate_sessions(&database);
            let other = database.sql();
            other.run(&format!("BEGIN; INSERT INTO processed_messages VALUES ('{name}', '{id}')"));
            begun.send(other).unwrap();
        };
        // It has a runtime of its own.
        std::thread::spawn(overtake).join().unwrap();
        Outcome::Poison
    });
    scene.send(&[Draft::of(id, HANDLED, 1)]);
    let mut spec = scene.spec();
    spec.lock_timeout = Duration::from_millis(50);
    let member = Running::start(spec, effects);
    let other = other.recv_timeout(Duration::from_mins(1)).unwrap();
    member.await_counters("waits for the other", |now| now.retries > 6);
    assert_eq!(member.now().dead_letters, 0);
    (member, other)
}

#[test]
fn a_dead_letter_waits_for_a_transaction_that_may_process_its_message() {
    let Some(scene) = Scene::new("overtaken") else { return };
    let (member, other) = overtaken(&scene);
    other.run("COMMIT");
    member.await_counters("the end", |now| now.duplicates == 1);
    assert_eq!(member.stop().dead_letters, 0);
    assert_eq!(scene.letters().len(), 0);
    assert!(scene.committed().contains(&1));
}

#[test]
fn a_dead_letter_is_published_once_the_other_transaction_has_failed() {
    let Some(scene) = Scene::new("retained") else { return };
    let (member, other) = overtaken(&scene);
    other.run("ROLLBACK");
    member.await_counters("the dead letter", |now| now.dead_letters == 1);
    member.stop();
    assert_eq!((scene.letters().len(), scene.markers()), (1, 0));
}
