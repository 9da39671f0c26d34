//! Brokers that hang while the consumer is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::inbox::scene::{Draft, Outcome, Scene, TestEffects};
use support::postgres::{self, Database};
use support::{kafka, topic, unique, wait_for};

/// Brokers that hang would be waited for without an end. A stop may take 10 s for the batch, 5 s for the group,
/// and what it takes on a machine that does much else.
const STOP_MAX: Duration = Duration::from_mins(1);

#[test]
fn a_consumer_stops_though_its_brokers_hang() {
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    for is_dead_letter_due in [false, true] {
        let database = Database::migrated(postgres::installed(), "frozen_brokers");
        database.sql().run("CREATE TABLE deeds (message_id uuid, number bigint, place text)");
        let (topic, name) = (unique("frozen"), unique("frozen-consumer"));
        topic::create(&kafka.bootstrap(), &topic, 3, &[]);
        let scene = Scene { bootstrap: kafka.bootstrap(), topic, name, database };
        scene.send(&Draft::many(10));
        let [is_frozen, is_poison] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let switches = [Arc::clone(&is_frozen), Arc::clone(&is_poison)];
        let running = scene.start(TestEffects::with(move |number, _| match number {
            7 if switches[0].load(Ordering::Relaxed) => {
                switches[1].store(true, Ordering::Relaxed);
                Outcome::Poison
            }
            7 if is_dead_letter_due => Outcome::Unavailable,
            _ => Outcome::Succeed,
        }));
        scene.await_effects(if is_dead_letter_due { 9 } else { 10 });
        kafka.freeze_broker(0);
        is_frozen.store(true, Ordering::Relaxed);
        if is_dead_letter_due {
            // It now asks the brokers whether the message is still its own.
            wait_for("the poison", || is_poison.load(Ordering::Relaxed).then_some(()));
        }
        let begin = Instant::now();
        running.stop();
        assert!(begin.elapsed() < STOP_MAX, "{:?}", begin.elapsed());
        kafka.resume_broker(0);
    }
}
