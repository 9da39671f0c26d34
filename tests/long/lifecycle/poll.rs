//! Rows that are polled by four workers, under kill -9, and their latency in a quiet time.
//!
//! Output: how many are lost or reordered, and the median from the insert to the broker's own time at 500 rows a second.

#![expect(
    clippy::print_stdout,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use serde_json::json;

use crate::crash::polling::{Scale, strike};

/// Whether nothing is lost or reordered.
pub(super) fn run(is_full: bool) -> bool {
    let scale = Scale { kills: if is_full { 200 } else { 12 }, seed: 5 };
    let Some(account) = strike(scale) else { return true };
    println!(
        "{}",
        json!({
            "what": "poll", "rows": account.rows, "lost": account.lost, "reordered": account.reordered,
            "repeated": account.duplicated, "kills": scale.kills, "workers": 4, "p50_ms": account.p50_ms,
        })
    );
    account.is_sound(scale.kills)
}
