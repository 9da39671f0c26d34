//! What the brokers' retention leaves of a topic, seen and not guessed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::{topic, unique, wait_for};

/// The clock, in milliseconds since the Unix epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

/// Waits until the brokers have looked so many times for what is too old, in every topic: each time
/// a record of 1970, in a topic with Kafka's defaults, must have gone.
pub fn wait_for_checks(bootstrap: &str, checks: usize) {
    let witness = unique("retention");
    topic::create(bootstrap, &witness, 1, &[]);
    let producer: BaseProducer = topic::client(bootstrap).create().unwrap();
    // A sweep under way may have passed the topic of interest already, so there is one more.
    for _ in 0..=checks {
        producer.send(BaseRecord::<(), str>::to(&witness).payload("old").timestamp(1)).unwrap();
        producer.flush(Duration::from_secs(30)).unwrap();
        let names = [witness.clone()];
        wait_for("retention to remove what is old", || {
            topic::read(bootstrap, &names).is_empty().then_some(())
        });
    }
}
