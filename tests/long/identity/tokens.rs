//! Tokens that live for seconds, renewed while rows flow: no session ends, and every row arrives once.

use std::time::Duration;

use serde_json::json;
use support::relay_http::RelayHttp;
use support::token_provider::TokenProvider;

use super::streamed::{Streamed, restarts};
use super::{Finding, brokers};

struct Scale {
    rows: usize,
    renewals: usize,
    lifetime: Duration,
    batch: usize,
    rows_per_s: usize,
}

pub(super) fn run(is_full: bool) -> Option<Finding> {
    let scale = if is_full {
        let lifetime = Duration::from_secs(20);
        // The rows last for as long as the renewals, one each 12 s.
        Scale { rows: 1_000_000, renewals: 30, lifetime, batch: 700, rows_per_s: 2_800 }
    } else {
        let lifetime = Duration::from_secs(12);
        Scale { rows: 10_000, renewals: 3, lifetime, batch: 100, rows_per_s: 500 }
    };
    let provider = TokenProvider::start(scale.lifetime);
    let kafka = brokers(provider.keys_endpoint())?;
    let mut streamed = Streamed::new("identity", &kafka.bootstrap());
    let relay = streamed.relay_by_token(&kafka.sasl_bootstrap(), &provider);
    let mut running = relay.run();
    let http = RelayHttp::of(&mut running);
    http.wait_ready(200);
    let first = provider.issued();
    streamed.write_while((scale.batch, scale.rows_per_s), |streamed| {
        streamed.written() < scale.rows || provider.issued() - first < scale.renewals
    });
    streamed.wait_acknowledged();
    let renewals = provider.issued() - first;
    let restarts = restarts(&http);
    running.stop();
    let (mut figures, is_delivered) = streamed.account();
    figures["renewals"] = renewals.into();
    figures["token_s"] = json!(scale.lifetime.as_secs());
    figures["restarts"] = restarts.into();
    Some(Finding { figures, is_sound: is_delivered && restarts == 0 })
}
