//! A token endpoint that is slow, away, silent or lying for longer than a token lives: the relay says so and waits, and
//! every row arrives once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::relay_http::RelayHttp;
use support::token_provider::{Mood, TokenProvider};

use super::streamed::{Streamed, restarts};
use super::{Finding, brokers};

/// A mood, and what the relay says of it.
type Outage = (&'static str, Mood, Option<&'static str>);

const OUTAGES: [Outage; 4] = [
    ("slow", Mood::Slow, None),
    ("away", Mood::Away, Some("HTTP status 503")),
    ("lying", Mood::Lying, Some("expired already")),
    ("silent", Mood::Silent, Some("timeout")),
];

pub(super) fn run(is_full: bool) -> Option<Finding> {
    let (lifetime, duration) = if is_full { (20, 60) } else { (6, 8) };
    let provider = TokenProvider::start(Duration::from_secs(lifetime));
    let kafka = brokers(provider.keys_endpoint())?;
    let mut streamed = Streamed::new("token_outages", &kafka.bootstrap());
    // Brokers end the connections of a token that has expired, which has many words.
    let relay = streamed.relay_by_token(&kafka.sasl_bootstrap(), &provider).allow_log("");
    let mut running = relay.run();
    let http = RelayHttp::of(&mut running);
    http.wait_ready(200);
    let mut outages: Vec<Value> = Vec::new();
    for (name, mood, words) in OUTAGES {
        let (begun, before) = (Instant::now(), restarts(&http));
        provider.set(mood);
        let is_over = || begun.elapsed() >= Duration::from_secs(duration);
        streamed.write_while((20, 200), |_| !is_over());
        if let Some(words) = words {
            running.wait_for_log(words);
        }
        let seconds = begun.elapsed().as_secs();
        provider.set(Mood::Well);
        let well = Instant::now();
        streamed.wait_acknowledged();
        outages.push(json!({
            "endpoint": name, "seconds": seconds, "restarts": restarts(&http) - before,
            "caught_up_ms": u64::try_from(well.elapsed().as_millis()).unwrap(),
        }));
    }
    let is_alive = !running.has_ended();
    running.stop();
    let (mut figures, is_delivered) = streamed.account();
    figures["token_s"] = lifetime.into();
    figures["outages"] = outages.into();
    Some(Finding { figures, is_sound: is_alive && is_delivered })
}
