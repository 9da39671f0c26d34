//! What a network does to the connection with Postgres.

use std::time::Duration;

use crate::trial::{TOPIC, Trial, trials};
use support::cutting_proxy::{CuttingProxy, HEAD, Treated};
use support::fault::link::{BOTH, Fault};
use support::fault::proxy::{Proxy, blind};
use support::relay::Relay;
use support::wait_for;

/// A relay that connects without TLS, so that a proxy can tell what is what, and says every time that
/// it tries again.
fn through(trial: &Trial, url: &str) -> Relay {
    trial.relay().prepare();
    let relay = trial.relay().set("source.url", &format!("{url}?sslmode=disable"));
    relay.set("log.repeat_interval", "0s").set("retry.initial", "10ms").set("retry.max", "100ms")
}

/// The frame of the first row, if this is one.
fn is_row(message: &[u8]) -> bool {
    message.get(HEAD) == Some(&b'I')
}

#[test]
fn row_43_a_frame_may_be_cut_after_any_byte() {
    for trial in trials("any_byte") {
        // Before anything is cut.
        trial.relay().prepare();
        trial.stage.insert(TOPIC, 1);
        // Every byte is the last one once; with a producer to fence each time, every seventh.
        let step = if trial.delivery == "exactly_once" { 7 } else { 1 };
        let cutting = CuttingProxy::new(FRAME_MIN / step, move |message, number| {
            let bytes = message[..(number * step).min(message.len())].to_vec();
            is_row(message).then_some(Treated { bytes, cut: true })
        });
        let address = cutting.before(&trial.stage.database.address());
        // A cut while a session begins may look like a slot that was taken away.
        let running = through(&trial, &address.url()).allow_log("trying again").run();
        let mut left = cutting.left();
        while left > 0 {
            let before = left;
            wait_for("another cut", || {
                left = cutting.left();
                (left < before).then_some(())
            });
        }
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_once().delivered, 1);
    }
}

/// What the frame of the row has at least, so that every part of it is cut: five bytes of head, 25 of
/// XLogData, and five columns.
const FRAME_MIN: usize = 140;

#[test]
fn row_44_a_slow_network_delays_and_nothing_else() {
    for trial in trials("slow") {
        let target = trial.stage.database.address();
        let proxy = Proxy::postgres(&target, Box::new(blind));
        // One megabit a second.
        proxy.greet(|link| {
            for way in BOTH {
                link.inject(way, Fault::Latency(Duration::from_millis(50)));
                link.inject(way, THIN);
            }
        });
        let running = through(&trial, &proxy.address(&target).url()).run();
        for _ in 0..20 {
            trial.stage.insert(TOPIC, 50);
        }
        trial.wait_settled();
        // It has warned of nothing: no session was given up.
        running.stop();
        assert_eq!(trial.assert_once().delivered, 1_000);
    }
}

const THIN: Fault = Fault::Throttle { bytes_per_s: 125_000 };

/// Where a message's structure lies: type, length, `w`, the plugin's type, the table, `N`, columns. A
/// length that is some megabytes too long is not among them: it is believed until so many have come.
const STRUCTURE: [usize; 12] =
    [0, 1, 3, 4, 5, HEAD, HEAD + 1, HEAD + 4, HEAD + 5, HEAD + 6, HEAD + 7, HEAD + 8];

/// Values have no checksum on this connection (TLS is for that): it is the structure that is damaged.
#[test]
fn row_46_damaged_bytes_end_the_session_and_nothing_else() {
    for trial in trials("damaged") {
        let cutting = CuttingProxy::new(STRUCTURE.len() * 3, |message, number| {
            let mut bytes = message.to_vec();
            let at = STRUCTURE[number % STRUCTURE.len()];
            bytes[at] ^= 1 << [7, 4, 3][number / STRUCTURE.len()];
            is_row(message).then_some(Treated { bytes, cut: false })
        });
        let address = cutting.before(&trial.stage.database.address());
        let relay = through(&trial, &address.url()).allow_log("");
        let load = trial.load(&[(100, 1)]);
        let mut ends = Vec::new();
        while cutting.left() > 0 {
            // Some damage looks like a mistake of the operator's, and ends the relay.
            let running = relay.run();
            let outcome = running.outcome_once(|| cutting.left() == 0);
            let text = outcome.log.join("\n");
            assert!(!text.contains("panicked"), "{text}");
            ends.push(outcome.status.code());
        }
        load.stop();
        relay.run_once();
        eprintln!("ended with {ends:?}");
        assert!(ends.iter().all(Option::is_some), "{ends:?}");
        trial.assert_kept();
    }
}
