//! One message that fails again and again, with more behind it than a consumer used to hold: the others have their
//! effects, the status names the message, and it waits no longer than it may.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postrider::inbox::ConsumerSpec;

use crate::inbox::scene::{Draft, Outcome, PARTITIONS, Running, Scene, TestEffects};
use support::wait::let_pass;
use support::{topic, wait_for};

/// How long the others may take: less than 5 s where nothing else runs.
const LIMIT: Duration = Duration::from_mins(1);
/// As `statement_timeout` does it.
const CANCELLED: Outcome = Outcome::Run("DO $$ BEGIN RAISE query_canceled; END $$");
/// As two transactions in each other's way have it.
const SERIALIZATION: Outcome = Outcome::Run("DO $$ BEGIN RAISE serialization_failure; END $$");
/// The key of the message that fails, and of those behind it.
const TENANT: &str = "tenant-of-a-secret-name";

fn of_key(key: &str, numbers: std::ops::Range<usize>) -> Vec<Draft> {
    numbers.map(|number| Draft { key: key.into(), ..Draft::new(number) }).collect()
}

/// Number 0 has this outcome until it is cured, all others succeed.
fn curable(outcome: Outcome) -> (TestEffects, Arc<AtomicBool>) {
    let is_cured = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_cured);
    let effects = TestEffects::with(move |number, _| {
        if number == 0 && !switch.load(Ordering::Relaxed) {
            outcome.clone()
        } else {
            Outcome::Succeed
        }
    });
    (effects, is_cured)
}

/// In one partition: the message that fails, `behind` more of its key, then `others` of other keys.
fn lets_the_others_pass(stem: &str, outcome: Outcome, behind: usize, others: usize) {
    let Some(scene) = Scene::of_one_partition(stem) else { return };
    scene.send(&of_key(TENANT, 0..behind + 1));
    scene.send(&Draft::many(others + 1).split_off(1));
    let (effects, is_cured) = curable(outcome);
    let effects_of_others = "SELECT count(*) FROM deeds";
    let (running, begin) = (scene.start(effects), Instant::now());
    let watch = scene.database.sql();
    let done = || watch.value(effects_of_others).parse::<usize>().unwrap();
    wait_for("the others", || (done() >= others).then_some(()));
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    running.await_status("the message to be named", |status| status.blocking.is_some());
    assert_eq!((done(), running.now().dead_letters), (others, 0));
    let status = running.status();
    let (blocking, why) = (status.blocking.clone().unwrap(), status.not_ready_reason().unwrap());
    assert_eq!((blocking.offset, status.paused_partitions), (0, 0));
    assert_eq!(blocking.behind, u64::try_from(behind).unwrap());
    let place = format!("(topic {}, partition 0, offset 0)", scene.topic);
    assert!(why.contains(&place) && why.contains(&blocking.id), "{why}");
    assert!(!format!("{status:?} {why}").contains(TENANT), "{status:?}");
    is_cured.store(true, Ordering::Relaxed);
    scene.await_effects(behind + 1 + others);
    running.await_status("to be ready", |status| status.not_ready_reason().is_none());
    assert_eq!(running.stop().dead_letters, 0);
    // Those of its key in order, though a batch at a time.
    let order = "SELECT count(*) FROM (SELECT number, lag(number) OVER (ORDER BY ctid) AS before \
                 FROM deeds WHERE (split_part(place, ':', 2))::int <= ";
    let order = format!("{order}{behind}) AS own WHERE number < before");
    assert_eq!(watch.value(&order), "0");
}

#[test]
fn a_cancelled_statement_lets_30_messages_of_other_keys_pass() {
    lets_the_others_pass("cancelling", CANCELLED, 1_050, 30);
}

#[test]
fn a_serialization_failure_lets_40_messages_of_other_keys_pass() {
    lets_the_others_pass("serializing", SERIALIZATION, 1_050, 40);
}

#[test]
fn a_full_partition_is_paused_alone_and_named() {
    const BYTES: usize = 950_000;
    let Some(scene) = Scene::new("filling") else { return };
    let mut large = of_key(TENANT, 0..20);
    for draft in &mut large {
        draft.value.insert_str(1, &format!("\"rest\": \"{}\", ", "x".repeat(BYTES)));
    }
    scene.send(&large);
    let (effects, is_cured) = curable(Outcome::Unavailable);
    let running = scene.start(effects);
    running.await_status("a paused partition", |status| status.paused_partitions == 1);
    scene.send(&Draft::many(100).split_off(20));
    let records = topic::read(&scene.bootstrap, std::slice::from_ref(&scene.topic));
    let full = records.iter().find(|it| it.key.as_deref() == Some(TENANT.as_bytes())).unwrap();
    let (full, is_small) = (full.partition, |bytes: usize| bytes < BYTES);
    let others = records
        .iter()
        .filter(|it| it.partition != full && is_small(it.value.as_ref().map_or(0, Vec::len)));
    // Those of the other partitions, and none of this one's.
    scene.await_effects(others.count());
    running.await_status("the message to be named", |status| status.blocking.is_some());
    let why = running.status().not_ready_reason().unwrap();
    let end = format!("has paused 1 of its {PARTITIONS} partitions");
    assert!(why.contains(&format!("partition {full}, offset 0")) && why.ends_with(&end), "{why}");
    is_cured.store(true, Ordering::Relaxed);
    scene.await_effects(100);
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 100);
}

/// Impatient, and its topic has one partition.
fn impatient(stem: &str) -> Option<(Scene, ConsumerSpec)> {
    let scene = Scene::new(stem)?;
    let mut spec = scene.spec();
    spec.contention_max = Some(Duration::from_secs(1));
    Some((scene, spec))
}

#[test]
fn a_lock_held_too_long_makes_a_dead_letter() {
    let Some((scene, mut spec)) = impatient("held_long") else { return };
    scene.database.sql().run("CREATE TABLE shelves (number bigint PRIMARY KEY, stock bigint)");
    scene.database.sql().run("INSERT INTO shelves VALUES (0, 100)");
    let holder = scene.database.sql();
    holder.run("BEGIN; UPDATE shelves SET stock = 99");
    scene.send(&of_key(TENANT, 0..1));
    spec.lock_timeout = Duration::from_millis(50);
    let running = Running::start(
        spec,
        TestEffects::with(
            |number, _| {
                if number == 0 { Outcome::TakeStock } else { Outcome::Succeed }
            },
        ),
    );
    running.await_counters("retries", |now| now.retries > 3);
    let_pass(Duration::from_secs(2), "longer than it may wait while others succeed");
    assert_eq!(running.now().dead_letters, 0);
    scene.send(&of_key("another", 1..2));
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    scene.await_effects(1);
    running.stop();
    let letters = scene.letters();
    let letter = &letters[0];
    assert_eq!((letter.code.as_str(), letter.failure().unwrap().attempts), ("waited_too_long", 0));
    assert!(letter.reason.starts_with("it waited for "), "{}", letter.reason);
    assert!(letter.reason.ends_with(" s while others passed: db error: SQLSTATE 55P03"));
}

#[test]
fn later_messages_of_a_key_show_that_one_waits_too_long() {
    let Some((scene, spec)) = impatient("alone_in_key") else { return };
    scene.send(&of_key(TENANT, 0..30));
    let (effects, _) = curable(CANCELLED);
    let running = Running::start(spec, effects);
    scene.await_effects(29);
    assert_eq!(running.stop().dead_letters, 1);
    let letters = scene.letters();
    assert_eq!(letters[0].code, "waited_too_long");
    assert!(letters[0].reason.ends_with("others passed: db error: SQLSTATE 57014"));
}

/// The later ones would reach it before the first.
#[test]
fn later_messages_of_a_key_wait_untried_for_a_dependency() {
    let Some((scene, spec)) = impatient("untried") else { return };
    scene.send(&of_key(TENANT, 0..30));
    let (effects, _) = curable(Outcome::Unavailable);
    let running = Running::start(spec, effects.clone());
    running.await_counters("retries", |now| now.retries > 3);
    let_pass(Duration::from_secs(2), "longer than it may wait while others succeed");
    let tried: u32 = (1..30).map(|number| effects.attempts(number)).sum();
    assert_eq!((tried, running.now().dead_letters), (0, 0));
    // Another key shows that the wait is the message's own.
    scene.send(&of_key("another", 30..31));
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    scene.await_effects(30);
    assert_eq!(running.stop().dead_letters, 1);
    let letters = scene.letters();
    assert_eq!(letters[0].code, "waited_too_long");
    assert!(letters[0].reason.ends_with("others passed: the bank is closed"));
}

#[test]
fn a_dependency_that_is_away_for_all_makes_no_dead_letter() {
    let Some((scene, spec)) = impatient("all_away") else { return };
    scene.send(&Draft::many(30));
    let is_back = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_back);
    let running = Running::start(
        spec,
        TestEffects::with(move |_, _| {
            if switch.load(Ordering::Relaxed) { Outcome::Succeed } else { Outcome::Unavailable }
        }),
    );
    running.await_status("all to wait", |status| status.waiting_messages == 30);
    let_pass(Duration::from_secs(2), "longer than one may wait while others succeed");
    assert_eq!(running.now().dead_letters, 0);
    is_back.store(true, Ordering::Relaxed);
    scene.await_effects(30);
    // One that had waited longer than it may was tried, and succeeded.
    assert_eq!(running.stop().dead_letters, 0);
}
