//! Effects that cost their session, or fail as a full disk does for some: the others have their effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::inbox::scene::{Draft, Outcome, Running, Scene, TestEffects};

/// More failures in a row than a message has attempts.
const RETRIES: u64 = 6;

/// Maximum time in which an effect does nothing in its transaction.
const IDLE_MAX: Duration = Duration::from_millis(500);

/// Number 7 costs its session each time: the 19 others have their effects once, and nothing is a dead letter
/// so soon. Returns the time of as many retries.
fn stops_nobody(stem: &str, outcome: Outcome) -> Option<Duration> {
    let scene = Scene::new(stem)?;
    let mut spec = scene.spec();
    spec.idle_in_transaction_max = IDLE_MAX;
    spec.backoff.max = IDLE_MAX / 10;
    scene.send(&Draft::many(20));
    let begin = Instant::now();
    let running = Running::start(
        spec,
        TestEffects::with(
            move |number, _| {
                if number == 7 { outcome.clone() } else { Outcome::Succeed }
            },
        ),
    );
    scene.await_effects(19);
    running.await_counters("more retries than a message has", |now| now.retries > RETRIES);
    let took = begin.elapsed();
    running.await_status("it alone to wait", |status| {
        status.not_ready_reason().is_none() && status.waiting_messages == 1
    });
    assert_eq!(scene.database.sql().value("SELECT count(*) FROM deeds WHERE number = 7"), "0");
    assert_eq!((running.stop().dead_letters, scene.markers()), (0, 19));
    Some(took)
}

#[test]
fn a_message_that_ends_its_session_each_time_stops_no_other() {
    stops_nobody("cutter", Outcome::CutSession);
}

#[test]
fn a_message_that_idles_longer_than_the_limit_stops_no_other() {
    stops_nobody("idler", Outcome::Sleep(Duration::from_secs(5)));
}

#[test]
fn a_message_whose_effect_never_returns_stops_no_other() {
    let took = stops_nobody("hanger", Outcome::Sleep(Duration::from_hours(24)));
    // Its first attempt alone and all retries but the last one have ended. Others had as much time after each of them.
    let attempts = IDLE_MAX * u32::try_from(1 + RETRIES).unwrap();
    assert!(took.is_none_or(|took| took >= attempts * 2), "{took:?}");
}

#[test]
fn a_message_that_confuses_the_protocol_stops_no_other() {
    stops_nobody("copier", Outcome::Run("COPY deeds FROM STDIN"));
}

/// Number 7 ends the transaction that it shares with its batch: the 19 others have their effects once, and so
/// has the last one that comes later. What remains of number 7.
fn ends_the_transaction(stem: &str, sql: &'static str) -> Option<(Scene, String, u64)> {
    let scene = Scene::new(stem)?;
    scene.send(&Draft::many(20));
    let running = scene.start(TestEffects::with(move |number, _| {
        if number == 7 { Outcome::Run(sql) } else { Outcome::Succeed }
    }));
    scene.await_offsets(20);
    scene.send(&Draft::many(21).split_off(20));
    scene.await_offsets(21);
    let end = running.stop();
    let others = "SELECT count(*), count(DISTINCT message_id) FROM deeds WHERE number <> 7";
    let twenty = || Some("20".to_owned());
    assert_eq!(scene.database.sql().rows(others), [[twenty(), twenty()]]);
    let own = scene.database.sql().value("SELECT count(*) FROM deeds WHERE number = 7");
    Some((scene, own, end.dead_letters))
}

#[test]
fn an_effect_that_rolls_back_its_transaction_is_a_dead_letter_and_doubles_nothing() {
    for sql in ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK; BEGIN READ WRITE"] {
        let Some((scene, own, dead_letters)) = ends_the_transaction("rolled", sql) else { return };
        assert_eq!((own.as_str(), dead_letters, scene.markers()), ("0", 1, 20), "{sql}");
        let letters = scene.letters();
        let reason = "the effects ended the transaction they were called in";
        assert_eq!((letters[0].code.as_str(), letters[0].reason.as_str()), ("poison", reason));
    }
}

#[test]
fn an_effect_that_commits_its_transaction_takes_no_effect_from_the_others() {
    for sql in ["COMMIT", "COMMIT; BEGIN", "COMMIT; BEGIN READ WRITE"] {
        let Some((scene, own, dead_letters)) = ends_the_transaction("early", sql) else { return };
        assert_eq!((own.as_str(), dead_letters, scene.markers()), ("1", 0, 21), "{sql}");
    }
}

#[test]
fn a_message_that_is_marked_without_effects_becomes_a_dead_letter_where_it_is_poison() {
    let Some(scene) = Scene::new("unmarked") else { return };
    let mut drafts = Draft::many(20);
    for draft in &mut drafts {
        draft.key = "account-0".into();
    }
    scene.send(&drafts);
    let running = scene.start(TestEffects::with(|number, _| match number {
        7 => Outcome::Run("COMMIT"),
        9 => Outcome::Poison,
        _ => Outcome::Succeed,
    }));
    scene.await_offsets(20);
    scene.await_effects(19);
    assert_eq!((running.stop().dead_letters, scene.letters().len()), (1, 1));
}

/// Number 7 commits the markers of its batch, in which number 15 was processed before, and number 3 is twice.
#[test]
fn an_effect_that_commits_its_transaction_doubles_none_that_was_there_before() {
    let Some(scene) = Scene::new("doubled") else { return };
    let mut drafts = Draft::many(20);
    for draft in &mut drafts {
        draft.key = "account-0".into();
    }
    scene.send(&drafts[15..16]);
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 7 { Outcome::Run("COMMIT") } else { Outcome::Succeed }
    }));
    scene.await_effects(1);
    drafts.push(drafts[3].clone());
    scene.send(&drafts);
    scene.await_offsets(22);
    assert_eq!((running.stop().dead_letters, scene.effect_rows()), (0, (20, 20)));
}

/// The consumer's own statements exceed what number 7 has set for its session.
#[test]
fn a_timeout_that_an_effect_leaves_in_the_session_does_not_stop_the_consumer() {
    let Some(scene) = Scene::new("leftover") else { return };
    scene.database.sql().run(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_sleep(0.2); RETURN NULL; END $$; \
         CREATE TRIGGER slow BEFORE INSERT ON processed_messages EXECUTE FUNCTION slow()",
    );
    scene.send(&Draft::many(20));
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 7 { Outcome::Run("SET statement_timeout = 100") } else { Outcome::Succeed }
    }));
    scene.await_effects(20);
    scene.send(&Draft::many(40).split_off(20));
    scene.await_effects(40);
    assert_eq!((running.stop().dead_letters, scene.effect_rows()), (0, (40, 40)));
}

#[test]
fn a_batch_that_the_server_ends_is_tried_one_by_one() {
    let Some(scene) = Scene::new("split") else { return };
    scene.send(&Draft::many(20));
    // As `transaction_timeout` of PostgreSQL 17 does it, which 20 messages exceed and one does not.
    let running = scene.start(TestEffects::with(|_, _| {
        Outcome::Run(
            "SELECT pg_sleep(0.05); DO $$ BEGIN IF clock_timestamp() - now() > interval '300 ms' \
             THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; END $$",
        )
    }));
    scene.await_effects(20);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_disk_that_is_full_for_some_makes_no_dead_letter() {
    let Some(scene) = Scene::new("diskfull") else { return };
    let is_full = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&is_full);
    let running = scene.start(TestEffects::with(move |number, _| {
        if number % 2 == 1 && switch.load(Ordering::Relaxed) {
            Outcome::Run("DO $$ BEGIN RAISE disk_full; END $$")
        } else {
            Outcome::Succeed
        }
    }));
    // Messages that succeed keep coming.
    for part in Draft::many(60).chunks(10) {
        scene.send(part);
        let before = running.now().retries;
        running.await_counters("more retries", |now| now.retries > before + 5 * 2 * RETRIES);
    }
    assert_eq!(running.now().dead_letters, 0);
    is_full.store(false, Ordering::Relaxed);
    scene.await_effects(60);
    assert_eq!(running.stop().dead_letters, 0);
}
