//! What counts as time that is waited for a missing number: only such in which it could be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::inbox::GapPolicy;
use postrider::sandbox::postgres::{Options, Stop};

use crate::inbox::scene::{Outcome, Running, Scene, TestEffects};
use crate::inbox::sequences::{Split, numbered};
use support::wait::let_pass;
use support::{kafka, postgres};

#[test]
fn while_the_database_is_away_nothing_waits_in_vain() {
    // A cluster of its own: it is stopped.
    let mut cluster = postgres::start(&Options::default());
    let Some(kafka) = kafka::shared() else { return };
    let split = Split::with(Scene::on(kafka, &cluster, "unread"), "unread");
    split.scene.send(&[numbered(0, 1), numbered(0, 3)]);
    // It is missed until the database is away, and again until it is read after that.
    let gap_wait = Duration::from_secs(20);
    let running = Running::start(split.spec(gap_wait, GapPolicy::DeadLetter), TestEffects::plain());
    running.await_status("the early one", |status| status.waiting_messages == 1);
    cluster.stop(Stop::Fast).unwrap();
    split.scene.send(&[numbered(1, 1)]);
    // A batch waits for the database, and what comes now is not read before that is back.
    let before = running.now().retries;
    running.await_counters("retries", |now| now.retries > before + 6);
    running.await_status("the outage", |status| status.is_database_unavailable);
    split.other.send(&[numbered(0, 2)]);
    let_pass(gap_wait, "the time after which what is missing is given up");
    cluster.start_again().unwrap();
    split.await_handled(0, "1,2,3");
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn while_the_brokers_are_away_nothing_waits_in_vain() {
    // Brokers of its own: they are frozen.
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    let split = Split::with(Scene::on(&kafka, postgres::installed(), "away"), "away");
    split.scene.send(&[numbered(0, 1), numbered(0, 3)]);
    // They are missed for up to 8 s before it is known, and until the brokers have a leader again after it.
    let gap_wait = Duration::from_secs(30);
    let running = Running::start(split.spec(gap_wait, GapPolicy::DeadLetter), TestEffects::plain());
    running.await_status("the early one", |status| status.waiting_messages == 1);
    kafka.freeze_broker(0);
    running.await_status("the outage", |status| status.are_brokers_unavailable);
    let_pass(gap_wait, "the time after which what is missing is given up");
    kafka.resume_broker(0);
    split.other.send(&[numbered(0, 2)]);
    split.await_handled(0, "1,2,3");
    assert_eq!(running.stop().dead_letters, 0);
}

/// All the retry queue is taken by messages whose dependency is away, and so the partition of the missing one is
/// paused. Others are not.
#[test]
fn while_no_messages_are_taken_nothing_waits_in_vain() {
    // More than the queue's 16 MiB, and one less is not.
    const AWAY: usize = 18;
    const BYTES: usize = 950_000;
    let Some(split) = Split::new("untaken") else { return };
    let [is_first_back, are_back] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let switches = [Arc::clone(&is_first_back), Arc::clone(&are_back)];
    let effects = TestEffects::with(move |number, _| {
        let is_back = match number {
            1 => switches[0].load(Ordering::Relaxed),
            1_000..20_000 => switches[1].load(Ordering::Relaxed),
            _ => true,
        };
        if is_back { Outcome::Succeed } else { Outcome::Unavailable }
    });
    split.scene.send(&[numbered(0, 1), numbered(0, 3)]);
    let gap_wait = Duration::from_secs(10);
    let running = Running::start(split.spec(gap_wait, GapPolicy::DeadLetter), effects);
    running.await_status("the early one", |status| status.waiting_messages == 2);
    let large = |aggregate: usize| {
        let mut draft = numbered(aggregate, 1);
        draft.value.insert_str(1, &format!("\"rest\": \"{}\", ", "x".repeat(BYTES)));
        draft
    };
    split.scene.send(&(1..=AWAY).map(large).collect::<Vec<_>>());
    running.await_status("all", |status| status.waiting_messages == 20);
    // From here on number 2 is missing.
    is_first_back.store(true, Ordering::Relaxed);
    split.await_handled(0, "1");
    running.await_status("paused ones", |status| status.paused_partitions > 0);
    split.scene.send(&[numbered(0, 2)]);
    split.other.send(&[numbered(20, 1)]);
    split.await_handled(20, "1");
    let_pass(gap_wait, "the time after which what is missing is given up");
    let status = running.status();
    assert_eq!((running.now().dead_letters, status.waiting_messages), (0, 19));
    are_back.store(true, Ordering::Relaxed);
    split.await_handled(0, "1,2,3");
    assert_eq!(running.stop().dead_letters, 0);
}
