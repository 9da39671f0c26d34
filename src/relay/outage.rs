//! Decides when to report that no record is confirmed: once per minute during the outage.

use std::time::{Duration, Instant};

/// Replaces the line about progress, which has this interval too.
const EVERY: Duration = Duration::from_mins(1);

/// Spans all sessions of a run.
#[derive(Debug, Default)]
pub(super) struct Outage {
    away_since: Option<Instant>,
    told: Option<Instant>,
}

impl Outage {
    /// `None`: no log line is due.
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
            // Brokers that answer again but do not confirm records belong to the same outage.
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
