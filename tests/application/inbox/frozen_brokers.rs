//! Brokers that hang while the consumer is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::inbox::scene::{Draft, Outcome, Scene, TestEffects};
use support::postgres::{self, Database};
use support::{kafka, topic, unique, wait_for};

/// What a stop may take: 10 s for the batch, 5 s for the group, and the rest.
const STOP_MAX: Duration = Duration::from_secs(20);

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
        let is_frozen = Arc::new(AtomicBool::new(false));
        let switch = Arc::clone(&is_frozen);
        let effects = TestEffects::with(move |number, _| match number {
            7 if switch.load(Ordering::Relaxed) => Outcome::Poison,
            7 if is_dead_letter_due => Outcome::Unavailable,
            _ => Outcome::Succeed,
        });
        let running = scene.start(effects.clone());
        scene.await_effects(if is_dead_letter_due { 9 } else { 10 });
        kafka.freeze_broker(0);
        is_frozen.store(true, Ordering::Relaxed);
        let attempts = effects.attempts(7);
        if is_dead_letter_due {
            // It now asks the brokers whether the message is still its own.
            wait_for("the poison", || (effects.attempts(7) > attempts).then_some(()));
        }
        let begin = Instant::now();
        running.stop();
        assert!(begin.elapsed() < STOP_MAX, "{:?}", begin.elapsed());
        kafka.resume_broker(0);
    }
}
