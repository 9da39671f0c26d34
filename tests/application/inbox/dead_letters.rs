//! Dead letters: listed, and sent again to have their effect once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::dead_letter::{
    DeadLetter, DeadLetterError, Filter, PartitionOffset, RedriveOptions, Redriven, Target, now_ms,
};

use crate::inbox::scene::{Draft, Outcome, Scene, TestEffects};
use support::topic;

fn now() -> RedriveOptions {
    RedriveOptions { horizon: Duration::from_hours(1), force: false, now_ms: now_ms() }
}

/// A consumer that fails with every tenth message until it is fixed.
fn failing_until_fixed() -> (TestEffects, Arc<AtomicBool>) {
    let fixed = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&fixed);
    let effect_rows = TestEffects::with(move |number, _| {
        let is_good = is_mended.load(Ordering::Relaxed) || number % 10 != 0;
        if is_good { Outcome::Succeed } else { Outcome::Poison }
    });
    (effect_rows, fixed)
}

#[test]
fn a_redriven_message_has_its_effect_once_and_is_not_sent_a_third_time() {
    let Some(scene) = Scene::new("redriven") else { return };
    scene.send(&Draft::many(100));
    let (effect_rows, fixed) = failing_until_fixed();
    let running = scene.start(effect_rows);
    running.await_counters("the dead letters", |now| now.dead_letters == 10);
    scene.await_effects(90);
    let letters = scene.letters();
    assert!(letters.len() == 10 && letters.iter().all(|letter| !letter.is_retried));

    fixed.store(true, Ordering::Relaxed);
    let outcome = scene.dead_letters().redrive(&Filter::default(), &now()).unwrap();
    assert_eq!(outcome, Redriven { sent: 10, ..Redriven::default() });
    scene.await_effects(100);
    let outcome = scene.dead_letters().redrive(&Filter::default(), &now()).unwrap();
    assert_eq!(outcome, Redriven { already: 10, ..Redriven::default() });
    assert!(scene.letters().iter().all(|letter| letter.is_retried));

    // Where it lay before, with its own headers and a mark.
    let records = topic::read(&scene.bootstrap, std::slice::from_ref(&scene.topic));
    let again: Vec<_> =
        records.iter().filter(|record| record.header("postrider-retried").is_some()).collect();
    assert_eq!(again.len(), 10);
    for record in again {
        let first = records.iter().find(|it| it.header("id") == record.header("id")).unwrap();
        assert_eq!(
            (first.partition, &first.key, &first.value),
            (record.partition, &record.key, &record.value)
        );
        assert_eq!(first.headers, record.headers[..first.headers.len()]);
    }
    assert_eq!(running.stop().duplicates, 0);
}

/// It refuses all, since its records may have 100 bytes.
#[test]
fn messages_pass_those_whose_dead_letters_the_topic_refuses() {
    let Some(scene) = Scene::new("refusing") else { return };
    let letters = format!("{}.dead-letters", scene.name);
    topic::create(&scene.bootstrap, &letters, 1, &[("max.message.bytes", "100")]);
    let running = scene.start(TestEffects::with(|number, _| {
        if number % 100 == 0 { Outcome::Poison } else { Outcome::Succeed }
    }));
    let mut drafts = Draft::many(300);
    for draft in &mut drafts {
        draft.key.clone_from(&draft.value);
    }
    // One has no id.
    drafts[50].headers.remove(0);
    scene.send(&drafts);
    scene.await_effects(296);
    running.await_status("the dead letters", |status| {
        status.unpublished.is_some() && status.waiting_messages == 4
    });
    let status = running.status();
    let why = status.not_ready_reason().unwrap();
    let expected = format!("a dead letter cannot be published to topic `{letters}` (");
    assert!(why.starts_with(&expected), "{why}");
    assert_eq!((status.waiting_messages, running.now().dead_letters), (4, 0));
    topic::alter(&scene.bootstrap, &letters, &[("max.message.bytes", "1000000")]);
    running.await_counters("the dead letters", |now| now.dead_letters == 4);
    scene.await_offsets(300);
    running.await_status("to be ready", |status| status.not_ready_reason().is_none());
    running.stop();
    assert_eq!(scene.letters().len(), 4);
}

#[test]
fn a_dead_letter_that_is_redriven_twice_has_its_effect_once() {
    let Some(scene) = Scene::new("twice") else { return };
    scene.send(&Draft::many(20));
    let (effect_rows, fixed) = failing_until_fixed();
    let running = scene.start(effect_rows);
    running.await_counters("the dead letters", |now| now.dead_letters == 2);
    fixed.store(true, Ordering::Relaxed);
    // As a crash between record and receipt would have it.
    let letters = scene.letters();
    let repeat = |letter: &DeadLetter| {
        let text = |name: &str| letter.header(name).unwrap().to_owned();
        let value = letter.value.clone().unwrap();
        Draft {
            headers: vec![("id", text("id")), ("event_type", text("event_type"))],
            key: String::from_utf8(letter.key.clone().unwrap()).unwrap(),
            value: String::from_utf8(value).unwrap(),
        }
    };
    scene.send(&letters.iter().map(repeat).collect::<Vec<_>>());
    scene.dead_letters().redrive(&Filter::default(), &now()).unwrap();
    scene.await_effects(20);
    running.await_counters("the repeats", |now| now.duplicates == 2);
    scene.await_effects(20);
}

#[test]
fn what_is_older_than_the_markers_is_sent_with_force_only() {
    let Some(scene) = Scene::new("aged") else { return };
    scene.send(&Draft::many(20));
    let (effect_rows, fixed) = failing_until_fixed();
    let running = scene.start(effect_rows);
    running.await_counters("the dead letters", |now| now.dead_letters == 2);
    fixed.store(true, Ordering::Relaxed);
    let late = RedriveOptions { now_ms: now_ms() + 2 * 3_600_000, ..now() };
    let letters = scene.dead_letters();
    let outcome = letters.redrive(&Filter::default(), &late).unwrap();
    assert_eq!(outcome, Redriven { too_old: 2, ..Redriven::default() });
    scene.await_effects(18);
    let outcome =
        letters.redrive(&Filter::default(), &RedriveOptions { force: true, ..late }).unwrap();
    assert_eq!(outcome.sent, 2);
    scene.await_effects(20);
    running.stop();
}

#[test]
fn what_fails_again_keeps_the_time_of_its_first_failure_and_all_its_attempts() {
    let Some(scene) = Scene::new("again") else { return };
    scene.send(&[Draft::new(1)]);
    let running = scene.start(TestEffects::with(|_, _| Outcome::Fail));
    for rounds in 1..=3 {
        running.await_counters("the dead letter", |now| now.dead_letters == rounds);
        let outcome = scene.dead_letters().redrive(&Filter::default(), &now()).unwrap();
        assert_eq!(outcome, Redriven { sent: 1, already: rounds - 1, ..Redriven::default() });
    }
    running.await_counters("the dead letter", |now| now.dead_letters == 4);
    running.stop();
    let letters = scene.letters();
    let failures: Vec<_> = letters.iter().map(|letter| letter.failure().unwrap()).collect();
    let first = failures[0];
    let attempts: Vec<u32> = failures.iter().map(|failure| failure.attempts).collect();
    assert_eq!(attempts, [5, 10, 15, 20]);
    assert!(failures.iter().all(|it| it.first_failed_ms == first.first_failed_ms));
    assert!(failures[3].failed_ms > first.failed_ms);
    // So what counts for the markers of others is when it came first.
    let horizon_ms = u64::try_from(failures[3].failed_ms - first.first_failed_ms).unwrap();
    let how = RedriveOptions {
        horizon: Duration::from_millis(horizon_ms - 1),
        force: false,
        now_ms: failures[3].failed_ms,
    };
    let outcome = scene.dead_letters().redrive(&Filter::default(), &how).unwrap();
    assert_eq!((outcome.too_old, outcome.sent), (1, 0));
}

#[test]
fn dead_letters_are_found_by_each_filter() {
    let Some(scene) = Scene::new("filtered") else { return };
    let mut drafts = Draft::many(20);
    drafts.push(Draft { headers: Vec::new(), ..Draft::new(1) });
    scene.send(&drafts);
    let running = scene.start(failing_until_fixed().0);
    running.await_counters("the dead letters", |now| now.dead_letters == 3);
    running.stop();
    let letters = scene.dead_letters();
    let all = scene.letters();
    let count = |filter: Filter| letters.list(&filter).unwrap().len();
    assert_eq!(count(Filter { code: Some("poison".into()), ..Filter::default() }), 2);
    assert_eq!(count(Filter { code: Some("missing_header".into()), ..Filter::default() }), 1);
    assert_eq!(count(Filter { event_type: Some("Counted".into()), ..Filter::default() }), 2);
    assert_eq!(count(Filter { topic: Some("elsewhere".into()), ..Filter::default() }), 0);
    let id = all.iter().find_map(|letter| letter.header("id")).unwrap().to_owned();
    assert_eq!(count(Filter { id: Some(id), ..Filter::default() }), 1);
    assert_eq!(count(Filter { targets: vec![Target::At(all[1].at)], ..Filter::default() }), 1);
    let nowhere = vec![Target::At(PartitionOffset { partition: 0, offset: 999 })];
    let missing = letters.list(&Filter { targets: nowhere.clone(), ..Filter::default() });
    assert!(matches!(missing, Err(DeadLetterError::Missing(targets)) if targets == nowhere));
}

#[test]
fn a_consumer_without_dead_letters_has_no_topic_of_them() {
    let Some(scene) = Scene::new("none") else { return };
    let error = scene.dead_letters().list(&Filter::default()).unwrap_err();
    assert!(matches!(error, DeadLetterError::NoDeadLetters { .. }), "{error}");
    assert!(error.hint().unwrap().starts_with("is the name"), "{error:?}");
}
