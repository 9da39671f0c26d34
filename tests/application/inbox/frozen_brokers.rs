//! Brokers that hang while the consumer is told to stop, and brokers that the client forgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::inbox::scene::{Draft, Outcome, Running, Scene, TestEffects};
use support::{kafka, postgres, requests, wait_for};

/// Brokers that hang would be waited for without an end. A stop may take 10 s for the batch, 5 s for the group,
/// and what it takes on a machine that does much else.
const STOP_MAX: Duration = Duration::from_mins(1);

#[test]
fn a_consumer_stops_though_its_brokers_hang() {
    // Brokers of its own: they are frozen.
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    for is_dead_letter_due in [false, true] {
        let scene = Scene::on(&kafka, postgres::installed(), "frozen");
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

/// A broker that just starts may name no broker. librdkafka then knows none, and tries to connect to none.
#[test]
fn a_consumer_whose_client_lost_all_brokers_reads_on() {
    // Brokers of its own: they are behind a proxy.
    let Some((kafka, requests)) = requests::start(&kafka::Options::default()) else { return };
    let scene = Scene::on(&kafka, postgres::installed(), "lost");
    scene.send(&Draft::many(10));
    let mut spec = scene.spec();
    let settings = [
        ("bootstrap.servers", requests.bootstrap()),
        ("topic.metadata.refresh.interval.ms", "500".to_owned()),
    ];
    spec.kafka = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let running = Running::start(spec, TestEffects::plain());
    scene.await_effects(10);
    requests.hide_brokers();
    running.await_status("the outage", |status| status.are_brokers_unavailable);
    requests.pass();
    scene.send(&Draft::many(10));
    running.await_status("the reason", |status| {
        status.not_ready_reason().is_some_and(|reason| reason.contains("brokers"))
    });
    scene.await_effects(20);
    running.stop();
}
