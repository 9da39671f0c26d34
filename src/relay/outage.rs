//! Decides when the log repeats, and the relay's state says, that nothing is confirmed.
//!
//! Input: whether a broker answers, and for how long records have waited without a confirmation, at every look. Output: the
//! duration of the outage, when a line is due, and whether the outage is that long. Invariant: a line is written once a minute for as long as the outage
//! lasts, and never for a shorter one, which other lines report.

use std::time::{Duration, Instant};

/// Pause between two lines; that of the line about progress, which they replace.
const EVERY: Duration = Duration::from_mins(1);

/// An outage of the brokers, over all sessions of a run.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Since when no broker answers.
    away_since: Option<Instant>,
    told: Option<Instant>,
}

impl Outage {
    /// How long the outage has lasted, if that is to be told now.
    pub(super) fn look(
        &mut self,
        now: Instant,
        is_connected: bool,
        unconfirmed_for: Duration,
    ) -> Option<Duration> {
        self.away_since = (!is_connected).then(|| self.away_since.unwrap_or(now));
        let away_for = self.away_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        let lasted = away_for.max(unconfirmed_for);
        if lasted < EVERY {
            self.told = None;
            return None;
        }
        if self.told.is_some_and(|told| now.duration_since(told) < EVERY) {
            return None;
        }
        self.told = Some(now);
        Some(lasted)
    }

    /// Whether the last look found an outage that is long enough for a line.
    pub(super) const fn is_told(&self) -> bool {
        self.told.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_every_minute_with_its_duration() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let mut told = Vec::new();
        for second in 0..=200 {
            let now = begin + Duration::from_secs(second);
            // Brokers that are back and confirm nothing are the same outage.
            let (is_connected, unconfirmed) = (second > 150, Duration::from_secs(second));
            told.extend(outage.look(now, is_connected, unconfirmed).map(|lasted| lasted.as_secs()));
            assert_eq!(outage.is_told(), second >= 60, "{second}");
        }
        assert_eq!(told, [60, 120, 180]);
        let later = begin + Duration::from_mins(5);
        assert_eq!(outage.look(later, true, Duration::ZERO), None);
        assert_eq!(outage.look(later, false, EVERY / 2), None, "another one begins");
    }
}
