//! A second judge: `postrider verify`, which knows the tables and the topics alone, and the product's own routing.
//!
//! Input: the relay's configuration, once everything is delivered. Output: its verdict. It must agree with the first
//! judge ([`super::judge`]), which shares nothing with the product: that each finds what the other finds is seen
//! where faults are planted (`lifecycle`); here both must find none.

use serde_json::Value;
use support::relay::Relay;

/// What it found.
#[derive(Debug)]
pub(crate) struct SecondVerdict {
    pub(crate) is_clean: bool,
    /// Rows that it compared.
    pub(crate) rows: u64,
    /// All of it, to be shown.
    pub(crate) report: Value,
}

/// Compares every row with every record.
///
/// # Panics
/// When it cannot: then nothing is known.
pub(crate) fn verify(relay: &Relay) -> SecondVerdict {
    let relay = relay.clone().unprepared();
    let outcome = relay.start(&["verify", "--all-rows-kept", "--output", "json"]).outcome();
    let report: Value = serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|_| panic!("verify: {} {:?}", outcome.status, outcome.log));
    SecondVerdict {
        is_clean: outcome.status.success() && report["clean"] == true,
        rows: report["rows"].as_u64().unwrap(),
        report,
    }
}
