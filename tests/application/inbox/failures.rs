//! What fails: effects, messages, and the database.

use std::time::{Duration, Instant};

use postrider::dead_letter::ConsumerFailure;
use postrider::sandbox::postgres::{Options, Stop};
use uuid::Uuid;

use crate::inbox::scene::{Draft, Outcome, Running, Scene, TestEffects};
use support::task::let_pass;
use support::wait::wait_until;
use support::{kafka, postgres, topic};

#[test]
fn an_effect_that_fails_for_a_while_works_in_the_end_and_once() {
    let Some(scene) = Scene::new("hesitant") else { return };
    scene.send(&Draft::many(30));
    // One attempt with the batch, and four of the five that it has alone.
    let effect_rows = TestEffects::with(|number, attempt| {
        if number == 7 && attempt <= 5 { Outcome::Fail } else { Outcome::Succeed }
    });
    let mut spec = scene.spec();
    // So that no attempt is the message's own in a batch of one.
    spec.attempts_max = 6;
    let running = Running::start(spec, effect_rows.clone());
    scene.await_effects(30);
    let end = running.stop();
    assert_eq!((end.processed, end.dead_letters, effect_rows.attempts(7)), (30, 0, 6));
    assert!(end.retries >= 4, "{end:?}");
    assert_eq!(scene.committed().iter().sum::<i64>(), 30);
}

#[test]
fn an_effect_that_always_fails_is_a_dead_letter_after_its_attempts_and_the_others_continue() {
    let Some(scene) = Scene::new("hopeless") else { return };
    scene.send(&Draft::many(30));
    let running =
        scene.start(TestEffects::with(
            |number, _| if number == 7 { Outcome::Fail } else { Outcome::Succeed },
        ));
    scene.await_effects(29);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    let letters = scene.letters();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    let failure = letter.failure().unwrap();
    assert_eq!((letter.code.as_str(), failure.attempts), ("attempts_used_up", 5));
    assert_eq!(letter.reason, "the bank does not answer");
    assert!(failure.failed_ms >= failure.first_failed_ms && failure.first_failed_ms > 0);
    assert_eq!(letter.value.as_deref(), Some(&b"{\"number\": 7}"[..]));
    // Its marker went with its effects, so that it can be sent again.
    assert_eq!((scene.markers(), scene.committed().iter().sum::<i64>()), (29, 30));
}

#[test]
fn poison_in_the_middle_of_a_batch_fails_nothing_else_and_is_not_retried() {
    let Some(scene) = Scene::new("poisoned") else { return };
    scene.send(&Draft::many(200));
    let effect_rows =
        TestEffects::with(
            |number, _| if number % 50 == 25 { Outcome::Poison } else { Outcome::Succeed },
        );
    let running = scene.start(effect_rows.clone());
    scene.await_effects(196);
    running.await_counters("the dead letters", |now| now.dead_letters == 4);
    running.stop();
    for letter in scene.letters() {
        let failure = letter.failure().unwrap();
        assert_eq!((letter.code.as_str(), failure.attempts), ("poison", 1));
        assert_eq!(letter.reason, "the account is not in this ledger");
    }
    // Once with its batch, once alone.
    assert!((25..200).step_by(50).all(|number| effect_rows.attempts(number) <= 2));
    assert_eq!(scene.committed().iter().sum::<i64>(), 200);
}

#[test]
fn an_invalid_message_is_a_dead_letter_at_once_and_the_consumer_continues() {
    let Some(scene) = Scene::new("unfit") else { return };
    let id = || Uuid::now_v7().to_string();
    let draft = |headers, value: &str| {
        let (key, value) = ("account-1".to_owned(), value.to_owned());
        Draft { headers, key, value }
    };
    let good_type = ("event_type", "Counted".to_owned());
    let bad = [
        (draft(vec![good_type.clone()], "{}"), "missing_header", "id"),
        (draft(vec![("id", "17".into()), good_type.clone()], "{}"), "malformed_header", "id"),
        (draft(vec![("id", id())], "{}"), "missing_header", "event_type"),
        (draft(vec![("id", id()), good_type], "{\"secret"), "malformed_payload", "JSON"),
        (draft(vec![("id", id()), ("event_type", "Strange".into())], "{}"), "unknown_type", "type"),
    ];
    let mut drafts: Vec<Draft> = bad.iter().map(|(draft, ..)| draft.clone()).collect();
    drafts.extend(Draft::many(10));
    scene.send(&drafts);
    let running = scene.start(TestEffects::plain());
    scene.await_effects(10);
    running.await_counters("the dead letters", |now| now.dead_letters == 5);
    running.stop();
    let letters = scene.letters();
    assert_eq!(letters.len(), 5);
    for (letter, (draft, code, word)) in letters.iter().zip(&bad) {
        let failure = letter.failure().unwrap();
        assert_eq!((letter.code.as_str(), failure.attempts), (*code, 0));
        assert!(letter.reason.contains(word) && !letter.reason.contains("secret"), "{letter:?}");
        assert_eq!(letter.value.as_deref(), Some(draft.value.as_bytes()));
        assert_eq!(letter.key.as_deref(), Some(draft.key.as_bytes()));
        let own = letter.headers.iter();
        let own: Vec<(&str, String)> = own
            .map(|(name, value)| {
                (name.as_str(), String::from_utf8(value.clone().unwrap()).unwrap())
            })
            .collect();
        assert_eq!(own, draft.headers);
        assert_eq!((letter.topic.as_ref(), &failure.consumer), (Some(&scene.topic), &scene.name));
    }
    assert_eq!(scene.committed().iter().sum::<i64>(), 15);
}

#[test]
fn a_statement_that_failed_unseen_commits_neither_marker_nor_offset() {
    let Some(scene) = Scene::new("hidden") else { return };
    scene.send(&Draft::many(20));
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 3 { Outcome::HideFailure } else { Outcome::Succeed }
    }));
    scene.await_effects(19);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    let letters = scene.letters();
    let reason = "a statement failed and the effects did not report it: db error: SQLSTATE 25P02";
    assert_eq!(letters[0].reason, reason);
    assert_eq!(scene.markers(), 19);
}

#[test]
fn a_panicking_effect_uses_up_its_attempts_and_others_continue() {
    let Some(scene) = Scene::new("panicked") else { return };
    scene.send(&Draft::many(20));
    let effect_rows =
        TestEffects::with(|number, _| if number == 7 { Outcome::Panic } else { Outcome::Succeed });
    let mut spec = scene.spec();
    // A panic is no error that may pass by itself.
    spec.give_up_after = Duration::from_hours(1);
    let running = Running::start(spec, effect_rows.clone());
    scene.await_effects(19);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    // The consumer goes on with what comes later.
    scene.send(&Draft::many(40).split_off(20));
    scene.await_effects(39);
    let end = running.stop();
    assert_eq!((end.processed, scene.markers()), (39, 39));
    let letters = scene.letters();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    let attempts = letter.failure().unwrap().attempts;
    assert_eq!((letter.code.as_str(), attempts), ("attempts_used_up", 5));
    assert_eq!(letter.reason, "the effects panicked");
}

/// The row that message 7 refers to.
const CHILD: Outcome = Outcome::Run("INSERT INTO children VALUES (1)");

fn with_parents(stem: &str) -> Option<Scene> {
    let scene = Scene::new(stem)?;
    scene.database.sql().run(
        "CREATE TABLE parents (id int PRIMARY KEY); \
         CREATE TABLE children (parent int REFERENCES parents, CHECK (parent < 5))",
    );
    scene.send(&Draft::many(20));
    Some(scene)
}

#[test]
fn a_message_that_overtakes_its_parent_row_waits_for_it() {
    let Some(scene) = with_parents("orphan") else { return };
    let effects = TestEffects::with(|number, _| if number == 7 { CHILD } else { Outcome::Succeed });
    let mut spec = scene.spec();
    spec.give_up_after = Duration::from_hours(1);
    let running = Running::start(spec, effects.clone());
    scene.await_effects(19);
    running.await_counters("more retries than attempts", |now| now.retries > 8);
    assert!(effects.attempts(7) > 8 && running.now().dead_letters == 0);
    scene.database.sql().run("INSERT INTO parents VALUES (1)");
    scene.await_effects(20);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn the_wait_for_a_parent_row_is_bounded() {
    let Some(scene) = with_parents("childless") else { return };
    let effects = TestEffects::with(|number, _| match number {
        7 => CHILD,
        8 => Outcome::Run("INSERT INTO children VALUES (7)"),
        _ => Outcome::Succeed,
    });
    let mut spec = scene.spec();
    spec.give_up_after = Duration::from_secs(3);
    let running = Running::start(spec, effects);
    running.await_counters("the dead letters", |now| now.dead_letters == 2);
    running.stop();
    let letters = scene.letters();
    let failure = |number: i64| {
        let value = format!("{{\"number\": {number}}}").into_bytes();
        let letter = letters.iter().find(|letter| letter.value.as_ref() == Some(&value)).unwrap();
        assert_eq!(letter.code, "attempts_used_up");
        letter.failure().unwrap().clone()
    };
    let (late, wrong) = (failure(7), failure(8));
    assert_eq!((late.attempts, wrong.attempts), (5, 5));
    let tried = |failure: &ConsumerFailure| failure.failed_ms - failure.first_failed_ms;
    assert!(tried(&late) >= 3_000 && tried(&wrong) < tried(&late), "{late:?} {wrong:?}");
}

#[test]
fn an_error_of_the_database_is_reported_without_the_row() {
    let Some(scene) = Scene::new("constrained") else { return };
    scene.database.sql().run("ALTER TABLE deeds ADD CONSTRAINT small CHECK (number < 5)");
    scene.send(&Draft::many(6));
    let running = scene.start(TestEffects::plain());
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    let reason = scene.letters()[0].reason.clone();
    assert_eq!(reason, "db error: SQLSTATE 23514, constraint small, table deeds");
}

#[test]
fn an_unavailable_database_is_waited_for_and_makes_no_dead_letter() {
    // A cluster of its own: it is stopped.
    let mut cluster = postgres::start(&Options::default());
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::on(kafka, &cluster, "outage");
    // Away from the beginning.
    cluster.stop(Stop::Fast).unwrap();
    let running = scene.start(TestEffects::plain());
    scene.send(&Draft::many(50));
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    let status = running.status();
    assert!(status.is_database_unavailable && status.not_ready_reason().is_some(), "{status:?}");
    assert_eq!((status.partitions, status.progress_ms), (3, None));
    // Its partitions are paused meanwhile, and what comes is counted all the same.
    running.await_status("what is left", |now| now.lag_messages == Some(50));
    scene.send(&Draft::many(50));
    running.await_status("what is left", |now| now.lag_messages == Some(100));
    cluster.start_again().unwrap();
    scene.await_effects(100);
    running.await_status("nothing to be left", |now| now.lag_messages == Some(0));
    let status = running.status();
    assert_eq!((status.not_ready_reason(), status.are_brokers_unavailable), (None, false));
    assert!(status.progress_ms.is_some());
    // And in the middle.
    cluster.stop(Stop::Immediate).unwrap();
    scene.send(&Draft::many(50));
    let before = running.now().retries;
    running.await_counters("more retries than a message has", |now| now.retries > before + 6);
    cluster.start_again().unwrap();
    scene.await_effects(150);
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 150);
}

#[test]
fn a_consumer_that_is_stopped_while_it_waits_commits_nothing_of_the_batch() {
    let Some(scene) = Scene::new("stopped") else { return };
    scene.send(&Draft::many(20));
    let mut spec = scene.spec();
    spec.database = "host=127.0.0.1 port=1 user=nobody".parse().unwrap();
    let running = Running::start(spec, TestEffects::plain());
    running.await_counters("a retry", |now| now.retries > 0);
    assert_eq!(running.stop().processed, 0);
    assert!(scene.committed().iter().all(|&offset| offset <= 0));
    let next = scene.start(TestEffects::plain());
    scene.await_effects(20);
    next.stop();
}

#[test]
fn missing_markers_are_waited_for() {
    let Some(scene) = Scene::new("missing") else { return };
    scene.database.sql().run("ALTER TABLE processed_messages RENAME TO elsewhere");
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::plain());
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    assert!(running.status().is_database_unavailable && running.is_alive());
    scene.database.sql().run("ALTER TABLE elsewhere RENAME TO processed_messages");
    scene.await_effects(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn missing_offsets_are_waited_for() {
    let Some(scene) = Scene::new("missing_offsets") else { return };
    let sql = scene.database.sql();
    let hide = "ALTER TABLE consumer_offsets RENAME TO elsewhere";
    let show = "ALTER TABLE elsewhere RENAME TO consumer_offsets";
    sql.run(hide);
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::plain());
    // Before it reads anything, and while it does.
    for count in [10, 20] {
        running.await_status("to notice it", |status| status.is_database_unavailable);
        let before = running.now().retries;
        running.await_counters("more retries than a message has", |now| now.retries > before + 6);
        sql.run(show);
        scene.await_effects(count);
        running.await_status("to be ready", |status| status.not_ready_reason().is_none());
        sql.run(hide);
        scene.send(&Draft::many(10));
    }
    running.await_status("to notice it again", |status| status.is_database_unavailable);
    assert!(running.is_alive());
    sql.run(show);
    scene.await_effects(30);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn what_committed_spawns_runs_while_the_consumer_is_idle() {
    let Some(scene) = Scene::new("spawned") else { return };
    let (report, reported) = std::sync::mpsc::channel();
    let effect_rows = TestEffects::plain().then(move || {
        let report = report.clone();
        let began = Instant::now();
        tokio::spawn(async move {
            for _ in 0..3 {
                let_pass(Duration::from_millis(50), "as a request to others takes").await;
            }
            report.send(began.elapsed()).unwrap();
        });
    });
    let running = scene.start(effect_rows);
    scene.send(&Draft::many(1));
    scene.await_effects(1);
    // No message comes meanwhile.
    let took = reported.recv_timeout(Duration::from_secs(30)).expect("the task to end");
    assert!(took < Duration::from_secs(10), "{took:?}");
    running.stop();
}

#[test]
fn a_dead_letter_topic_that_is_missing_is_waited_for() {
    let Some(scene) = Scene::new("strict") else { return };
    // Topics must be made by hand here.
    let Some(strict) = kafka::strict() else { return };
    let bare = Scene { bootstrap: strict.bootstrap(), ..scene };
    topic::create(&bare.bootstrap, &bare.topic, 3, &[]);
    bare.send(&Draft::many(3));
    let running = bare.start(TestEffects::plain());
    let not_ready_reason = Some("the consumer has not joined its group yet");
    wait_until("a reason that is reported", || {
        running.status().not_ready_reason().as_deref() == not_ready_reason
    });
    assert!(running.is_alive());
    let dead = postrider::dead_letter::topic_of(&bare.name);
    topic::create(&bare.bootstrap, &dead, 1, &[]);
    bare.await_effects(3);
    running.stop();
}

#[test]
fn a_message_too_large_for_the_dead_letter_topic_is_truncated() {
    let Some(scene) = Scene::new("large") else { return };
    let dead = postrider::dead_letter::topic_of(&scene.name);
    topic::create(&scene.bootstrap, &dead, 1, &[("max.message.bytes", "2000")]);
    let mut draft = Draft::new(1);
    // Nothing is compressed on its way there.
    draft.value = (0..200).map(|_| Uuid::now_v7().to_string()).collect();
    // What is large may be something else.
    let large = draft.value.clone();
    let with_header = |name| {
        let mut draft = Draft { value: "{".into(), ..Draft::new(1) };
        draft.headers.push((name, large.clone()));
        draft
    };
    let large_key = Draft { key: large.clone(), ..with_header("trace") };
    // It lacks nothing but an id.
    let large_type = Draft {
        headers: vec![("event_type", large.clone())],
        value: "{}".into(),
        ..with_header("trace")
    };
    scene.send(&[draft, with_header("trace"), large_key, large_type, Draft::new(2)]);
    let running = scene.start(TestEffects::plain());
    scene.await_effects(1);
    running.await_counters("the dead letters", |now| now.dead_letters == 4);
    running.stop();
    let letters = scene.letters();
    assert!(letters.iter().all(|it| it.is_cut && it.value.is_none()), "{letters:?}");
    // By how much was left behind; no order holds between partitions.
    let mut left: Vec<_> =
        letters.iter().map(|it| (it.code.as_str(), it.headers.len(), it.key.is_some())).collect();
    left.sort_unstable();
    assert_eq!(
        left,
        [
            ("malformed_payload", 2, false),
            ("malformed_payload", 2, true),
            ("malformed_payload", 2, true),
            ("missing_header", 0, true),
        ]
    );
}

#[test]
fn a_long_batch_does_not_cost_the_membership() {
    let Some(scene) = Scene::new("patient") else { return };
    let mut spec = scene.spec();
    // A member that polls less often than this is given up by its group.
    spec.kafka.push(("session.timeout.ms".into(), "6000".into()));
    spec.kafka.push(("max.poll.interval.ms".into(), "6000".into()));
    let effect_rows = TestEffects::with(|number, _| {
        if number == 0 { Outcome::Sleep(Duration::from_secs(9)) } else { Outcome::Succeed }
    });
    let running = Running::start(spec, effect_rows.clone());
    scene.send(&[Draft::new(0)]);
    scene.await_effects(1);
    // What was sent meanwhile, and what comes after.
    scene.send(&Draft::many(20).split_off(1));
    scene.await_effects(20);
    let end = running.stop();
    assert_eq!((end.processed, end.duplicates, effect_rows.attempts(0)), (20, 0, 1));
}
