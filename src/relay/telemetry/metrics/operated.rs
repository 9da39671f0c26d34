//! Metrics of operator actions. Each family exists from the start, so that an alert does not need a
//! test for absence.

use std::fmt;

use crate::telemetry::operated::{Operated, ReloadOutcome};
use postrider_service::prometheus::Page;

pub(super) fn operated(page: &mut Page<'_>, operated: &Operated) -> fmt::Result {
    let is_paused = operated.paused_since_us.is_some();
    page.single("paused", "1 while nothing is read because an operator has said so.", is_paused)?;
    let help = "Reloads of the configuration, by outcome.";
    let mut family = page.family("config_reloads_total", help)?;
    for (outcome, count) in ReloadOutcome::ALL.into_iter().zip(operated.reloads) {
        family.sample(&[("outcome", outcome.as_str())], count)?;
    }
    let help =
        "0 if the configuration that was read last is refused, and the one before is in effect.";
    page.single("config_last_reload_successful", help, operated.is_config_good())?;
    let help = "When the configuration was last read again, since 1970; 0 if it was not.";
    // A clock set before 1970 reads as "never reloaded".
    let seconds = |(time_us, _): (i64, _)| u64::try_from(time_us / 1_000_000).unwrap_or(0);
    let seconds = operated.last_reload.map_or(0, seconds);
    page.single("config_last_reload_timestamp_seconds", help, seconds)
}
