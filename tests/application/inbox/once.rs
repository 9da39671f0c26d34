//! Each message has its effect once, however it is delivered.

use postrider::inbox::{Consumer, Effects, Failure, InboxError, Interest, Message, Prepared};
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::inbox::scene::{
    Draft, IGNORED, Outcome, Running, Scene, TestEffects, terminate_sessions,
};
use support::wait_for;

#[test]
fn what_is_delivered_again_from_the_beginning_has_no_second_effect() {
    let Some(scene) = Scene::new("rewound") else { return };
    scene.send(&Draft::many(1_000));
    let first = scene.start(TestEffects::plain());
    scene.await_effects(1_000);
    let first = first.stop();
    assert_eq!((first.processed, first.duplicates, first.dead_letters), (1_000, 0, 0));
    let ends: i64 = scene.committed().iter().sum();
    assert_eq!((ends, scene.markers()), (1_000, 1_000));

    scene.rewind();
    let second = scene.start(TestEffects::plain());
    second.await_counters("all repeats", |now| now.duplicates == 1_000);
    let second = second.stop();
    assert_eq!((second.processed, scene.effect_rows()), (0, (1_000, 1_000)));
    let ends: i64 = scene.committed().iter().sum();
    assert_eq!(ends, 1_000);
}

#[test]
fn a_message_that_is_in_a_batch_several_times_has_its_effect_once() {
    let Some(scene) = Scene::new("repeated") else { return };
    let drafts = Draft::many(300);
    let tripled: Vec<Draft> = drafts.iter().flat_map(|draft| vec![draft.clone(); 3]).collect();
    scene.send(&tripled);
    let running = scene.start(TestEffects::plain());
    let seen = running.await_counters("all", |now| now.processed + now.duplicates == 900);
    assert_eq!((seen.processed, seen.duplicates), (300, 600));
    // Otherwise each would have stood alone.
    assert!(seen.batches < 300, "{} batches", seen.batches);
    scene.await_effects(300);
}

#[test]
fn effects_of_a_partition_come_in_its_order() {
    let Some(scene) = Scene::new("ordered") else { return };
    scene.send(&Draft::many(500));
    let running = scene.start(TestEffects::plain());
    scene.await_effects(500);
    running.stop();
    let rows = scene.database.sql().rows("SELECT place FROM deeds ORDER BY ctid");
    let positions = rows.iter().map(|row| {
        let (partition, offset) = row[0].as_ref().unwrap().split_once(':').unwrap();
        (partition.parse::<usize>().unwrap(), offset.parse::<i64>().unwrap())
    });
    let mut last = [-1; 3];
    for (partition, offset) in positions {
        assert!(offset > last[partition], "{offset} after {}", last[partition]);
        last[partition] = offset;
    }
}

#[test]
fn a_consumer_that_dies_between_the_commit_and_the_offset_repeats_no_effect() {
    let Some(scene) = Scene::new("died") else { return };
    scene.send(&Draft::many(50));
    let died = scene.start(TestEffects::plain().then(|| panic!("killed after the commit")));
    assert!(matches!(died.end(), InboxError::Panicked));
    let (done, _) = scene.effect_rows();
    assert!(done > 0 && scene.committed().iter().all(|&offset| offset <= 0), "{done} done");

    // As a group does whose first member is given up while it still lives: Kafka is behind the database.
    scene.rewind();
    let next = scene.start(TestEffects::plain());
    scene.await_effects(50);
    next.await_counters("the repeats", |now| now.duplicates == u64::try_from(done).unwrap());
    assert_eq!(next.stop().processed, u64::try_from(50 - done).unwrap());
}

#[test]
fn a_session_that_is_cut_after_each_commit_costs_no_effect_and_repeats_none() {
    let Some(scene) = Scene::new("cut_after") else { return };
    scene.send(&Draft::many(600));
    let mut spec = scene.spec();
    spec.batch_max = 100;
    let database = scene.database.clone();
    let cut = move || {
        let database = database.clone();
        // The consumer's thread has a runtime already.
        std::thread::spawn(move || terminate_sessions(&database)).join().unwrap();
    };
    let running = Running::start(spec, TestEffects::plain().then(cut));
    scene.await_effects(600);
    let end = running.stop();
    assert_eq!((end.processed, end.dead_letters), (600, 0));
}

#[test]
fn a_session_that_is_cut_within_the_transaction_costs_no_effect_and_repeats_none() {
    let Some(scene) = Scene::new("cut_within") else { return };
    scene.send(&Draft::many(100));
    // More often than a message may fail, since it is not the message's fault.
    let effect_rows = TestEffects::with(|number, attempt| {
        if number == 40 && attempt <= 8 { Outcome::CutSession } else { Outcome::Succeed }
    });
    let running = scene.start(effect_rows.clone());
    scene.await_effects(100);
    let end = running.stop();
    assert_eq!((end.processed, end.dead_letters, effect_rows.attempts(40)), (100, 0, 9));
    // Once with its batch, once alone.
    assert!(end.retries >= 7, "{end:?}");
}

#[test]
fn ignored_types_are_skipped_without_a_marker() {
    let Some(scene) = Scene::new("passed_over") else { return };
    let unwanted = (0..10).map(|number| Draft::of(Uuid::now_v7(), IGNORED, number));
    let drafts: Vec<Draft> = unwanted.chain(Draft::many(10)).collect();
    scene.send(&drafts);
    let running = scene.start(TestEffects::plain());
    scene.await_effects(10);
    running.await_counters("what is passed over", |now| now.passed_over == 10);
    running.stop();
    assert_eq!((scene.markers(), scene.committed().iter().sum::<i64>()), (10, 20));
}

#[test]
fn a_consumer_that_is_dropped_ends_and_leaves_its_offsets() {
    let Some(scene) = Scene::new("dropped") else { return };
    scene.send(&Draft::many(20));
    let consumer = Consumer::new(scene.spec(), TestEffects::plain()).unwrap();
    let counters = consumer.counters();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let are_processed = async || (counters.snapshot().processed >= 20).then_some(());
        let seen = support::task::wait_for("the messages to be processed", are_processed);
        tokio::select! {
            _ = consumer.run(std::future::pending()) => unreachable!("nobody asked it to"),
            () = seen => {}
        }
    });
    wait_for("the offsets", || (scene.committed().iter().sum::<i64>() == 20).then_some(()));
    assert_eq!(scene.effect_rows(), (20, 20));
}

#[test]
fn a_prepared_statement_is_prepared_again_after_its_table_changed() {
    let Some(scene) = Scene::new("outgrown") else { return };
    let running = scene.start(Asking);
    scene.send(&Draft::many(5));
    running.await_counters("the first", |now| now.processed == 5);
    // The cached plan's result has another shape now.
    scene.database.sql().run("ALTER TABLE deeds ADD COLUMN more text");
    scene.send(&Draft::many(5));
    let end = running.await_counters("the others", |now| now.processed + now.dead_letters == 10);
    assert_eq!(end.dead_letters, 0);
}

static ASK: Prepared = Prepared::new("SELECT * FROM deeds");

/// Reads whole rows.
struct Asking;

impl Effects for Asking {
    fn interest(&self, _: &str) -> Interest {
        Interest::Handle
    }

    async fn apply(&self, tx: &Transaction<'_>, _: &Message) -> Result<(), Failure> {
        tx.query(&ASK.of(tx).await?, &[]).await?;
        Ok(())
    }
}
