//! How many records may wait in the client's queue: as many as the distance of the brokers is good for.
//!
//! Input: when records are sent and answered, by count. Output: the limit. No clock. Invariant: the limit is between
//! [`NEAR`] and what the budget allows, or what the budget allows if that is less.
//!
//! Records in the queue are most of a relay's memory: some 800 bytes for a row of 300. Where a broker is slow, however many
//! may wait do, and what waits arrives no sooner. What more of them are good for is distance: a broker has at most five
//! requests under way, each with one partition's batch, and batches are larger if more records wait. Measured with a broker
//! on the same two cores, 1,000 rows per transaction: with 10,000 records in 33 to 37 MiB, with 50,000 in 54 to 66 MiB, and 0.79 to 0.92
//! times as fast at least once, 0.94 to 1.2 times exactly once.

use std::time::Duration;

use postrider_core::time::Instant;

/// Enough for brokers that answer within [`NEAR_FOR`].
const NEAR: u64 = 12_000;
/// Twice as long needs twice as many.
const NEAR_FOR: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug)]
pub(super) struct QueueLimit {
    most: u64,
    /// How long a record waits for others before it is sent.
    linger: Duration,
    /// The shortest time in which a record was answered, without that wait.
    distance: Option<Duration>,
    probe: Option<Probe>,
}

/// A record whose answer is waited for.
#[derive(Debug)]
struct Probe {
    /// Records sent, this one included.
    sent: u64,
    at: Instant,
}

impl QueueLimit {
    /// Of a producer whose budget is this many records.
    pub(super) const fn new(most: u64, linger: Duration) -> Self {
        Self { most, linger, distance: None, probe: None }
    }

    /// Records that may be sent and not answered.
    pub(super) fn records(&self) -> u64 {
        let distance = self.distance.unwrap_or_default().as_micros();
        let needed = u128::from(NEAR) * distance / NEAR_FOR.as_micros();
        u64::try_from(needed).unwrap_or(u64::MAX).max(NEAR).min(self.most)
    }

    /// A record was sent, as the last of so many.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant, sent: u64) {
        if self.probe.is_none() {
            self.probe = Some(Probe { sent, at: now });
        }
    }

    /// So many records have been answered.
    #[inline]
    pub(super) fn answered(&mut self, now: Instant, answered: u64) {
        if let Some(probe) = self.probe.take_if(|probe| answered >= probe.sent) {
            let took = (now - probe.at).saturating_sub(self.linger);
            self.distance = Some(self.distance.map_or(took, |shortest| shortest.min(took)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_millis(20);

    fn after(answers: &[Duration]) -> u64 {
        let mut limit = QueueLimit::new(50_000, LINGER);
        let (mut now, mut sent) = (Instant::START, 0);
        for answer in answers {
            sent += 1;
            limit.sent(now, sent);
            // Others behind it do not count.
            limit.sent(now + *answer / 2, sent + 1);
            limit.answered(now + *answer / 2, sent - 1);
            now += *answer;
            sent += 1;
            limit.answered(now, sent);
        }
        limit.records()
    }

    #[test]
    fn g3_near_brokers_need_few_and_far_ones_what_the_budget_allows() {
        let ms = |ms| LINGER + Duration::from_millis(ms);
        assert_eq!(after(&[]), NEAR);
        assert_eq!(after(&[ms(0)]), NEAR);
        assert_eq!(after(&[ms(5)]), NEAR);
        assert_eq!(after(&[ms(10)]), 2 * NEAR);
        assert_eq!(after(&[ms(25)]), 50_000);
    }

    #[test]
    fn what_waited_behind_others_is_no_distance() {
        let ms = |ms| LINGER + Duration::from_millis(ms);
        assert_eq!(after(&[ms(10), ms(700), ms(12)]), 2 * NEAR);
        assert_eq!(after(&[ms(700), ms(4)]), NEAR);
    }

    #[test]
    fn a_smaller_budget_holds() {
        assert_eq!(QueueLimit::new(7, LINGER).records(), 7);
    }
}
