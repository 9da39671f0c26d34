//! The wall clock, and times in the formats of AWS.

use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(feature = "providers")]
use postrider_core::route::rfc3339;

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// ISO 8601's basic form: `20261127T041202Z`.
#[cfg(feature = "providers")]
pub(crate) fn basic_time(unix_s: u64) -> String {
    let milliseconds = i64::try_from(unix_s.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let text = rfc3339(milliseconds);
    let seconds = text.split_once('.').map_or(text.as_str(), |(seconds, _)| seconds);
    format!("{}Z", seconds.replace(['-', ':'], ""))
}

/// Day of [`basic_time`]: `20261127`.
#[cfg(feature = "providers")]
pub(crate) fn basic_date(unix_s: u64) -> String {
    basic_time(unix_s).chars().take_while(|char| *char != 'T').collect()
}
