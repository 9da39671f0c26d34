//! Actions of operators on the running relay, for observers.
//!
//! Invariant: the values show the active state, not the requested one. A refused reload does not
//! change any setting.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::{Setting, Telemetry, unix_us};
use postrider_core::route::rfc3339;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadOutcome {
    /// Changes that a running relay supports are active, or take effect with the next transaction.
    Applied,
    /// The configuration is invalid or could not be checked, and the previous one stays active.
    Refused,
    /// The configuration is unchanged, or differs only in options that need a restart.
    Unchanged,
}

impl ReloadOutcome {
    pub const ALL: [Self; 3] = [Self::Applied, Self::Refused, Self::Unchanged];

    /// Metric label `outcome`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
            Self::Unchanged => "unchanged",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Operated {
    /// Microseconds since the Unix epoch.
    pub paused_since_us: Option<i64>,
    /// In the order of [`ReloadOutcome::ALL`].
    pub reloads: [u64; 3],
    /// Time in microseconds since the Unix epoch.
    pub last_reload: Option<(i64, ReloadOutcome)>,
}

impl Operated {
    pub fn is_config_good(&self) -> bool {
        self.last_reload.is_none_or(|(_, outcome)| outcome != ReloadOutcome::Refused)
    }
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    operated: Mutex<Operated>,
    settings: Mutex<Arc<[Setting]>>,
}

impl Kept {
    pub(super) fn showing(settings: Vec<Setting>) -> Self {
        Self { settings: Mutex::new(settings.into()), ..Self::default() }
    }

    pub(super) fn operated(&self) -> Operated {
        self.operated.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn settings(&self) -> Arc<[Setting]> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Telemetry {
    pub fn set_paused(&self, is_paused: bool) {
        let mut operated = self.inner.kept.operated.lock().unwrap_or_else(PoisonError::into_inner);
        operated.paused_since_us =
            is_paused.then(|| operated.paused_since_us.unwrap_or_else(unix_us));
    }

    pub fn count_reload(&self, outcome: ReloadOutcome) {
        let mut operated = self.inner.kept.operated.lock().unwrap_or_else(PoisonError::into_inner);
        for (count, one) in operated.reloads.iter_mut().zip(ReloadOutcome::ALL) {
            *count += u64::from(one == outcome);
        }
        operated.last_reload = Some((unix_us(), outcome));
    }

    pub fn show_settings(&self, settings: Vec<Setting>) {
        let mut shown = self.inner.kept.settings.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = settings.into();
    }
}

/// RFC 3339, in UTC.
pub(crate) fn time_text(unix_time_us: i64) -> String {
    rfc3339(unix_time_us / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::BuildInfo;

    #[test]
    fn a_pause_begins_once_and_reloads_are_counted_by_what_became_of_them() {
        let telemetry = Telemetry::new(BuildInfo::default());
        assert!(telemetry.view().operated.paused_since_us.is_none());
        telemetry.set_paused(true);
        let since = telemetry.view().operated.paused_since_us;
        telemetry.set_paused(true);
        assert!(since.is_some() && telemetry.view().operated.paused_since_us == since);
        telemetry.set_paused(false);
        assert!(telemetry.view().operated.paused_since_us.is_none());
        assert!(telemetry.view().operated.is_config_good());
        for outcome in [ReloadOutcome::Applied, ReloadOutcome::Refused, ReloadOutcome::Applied] {
            telemetry.count_reload(outcome);
            let is_good = outcome != ReloadOutcome::Refused;
            assert_eq!(telemetry.view().operated.is_config_good(), is_good);
        }
        assert_eq!(telemetry.view().operated.reloads, [2, 1, 0]);
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time_text(1_700_000_000_000_000), "2023-11-14T22:13:20.000Z");
    }
}
