//! Adapts the number of records in the client's queue to the brokers' distance.
//!
//! A queued record takes about 800 bytes if a row has 300. A broker has five requests in flight,
//! each with one partition's batch. Each partition therefore has its turn once per round trip x
//! partitions / 5. All partitions count as one broker's, because extra records cost only memory.
//!
//! Measured with 15 partitions and 1,000 rows per transaction on two cores, at least once:
//!
//! | Records | Linger | Memory | Rows/s | CPU per row |
//! |---|---|---|---|---|
//! | 12,000 | 20 ms | 38 MiB | 198,000 to 231,000 | 2.7 to 3.2 us |
//! | 6,000 | 5 ms | 32 MiB | 224,000 to 287,000 | 1.9 to 2.3 us |
//!
//! 4,000 records need 31 MiB, but exactly once with one row per transaction is then a tenth slower
//! than with 6,000.

use std::time::Duration;

use postrider_core::time::Instant;

/// Enough if each partition has its turn within 20 ms.
const NEAR: u64 = 7_000;
/// Records that a relay sends per millisecond beyond 20 ms, with two cores.
const RECORDS_PER_MS: u64 = NEAR / 20;
/// `max.in.flight` per broker.
const REQUESTS: u64 = 5;
/// Largest part of a measured time that counts as linger: a full batch does not linger.
const PART_OF_TIME: u32 = 4;

#[derive(Debug)]
pub(super) struct QueueLimit {
    most: u64,
    linger: Duration,
    /// Without linger, since the last change of connections.
    distance: Option<Duration>,
    probe: Option<Probe>,
    records: u64,
    disturbances: u64,
}

#[derive(Debug)]
struct Probe {
    sent: u64,
    at: Instant,
}

impl QueueLimit {
    pub(super) fn new(most: u64, linger: Duration) -> Self {
        let records = NEAR.min(most);
        Self { most, linger, distance: None, probe: None, records, disturbances: 0 }
    }

    #[inline]
    pub(super) const fn records(&self) -> u64 {
        self.records
    }

    #[inline]
    pub(super) fn sent(&mut self, now: Instant, sent: u64) {
        if self.probe.is_none() {
            self.probe = Some(Probe { sent, at: now });
        }
    }

    #[inline]
    pub(super) fn answered(
        &mut self,
        now: Instant,
        answered: u64,
        partitions: impl FnOnce() -> usize,
    ) {
        if let Some(probe) = self.probe.take_if(|probe| answered >= probe.sent) {
            let took = now - probe.at;
            let took = took.saturating_sub(self.linger).max(took / PART_OF_TIME);
            let distance = self.distance.map_or(took, |shortest| shortest.min(took));
            self.distance = Some(distance);
            let turns = (partitions() as u64).div_ceil(REQUESTS).max(1);
            let distance_us = u64::try_from(distance.as_micros()).unwrap_or(u64::MAX);
            let cycle_us = distance_us.saturating_mul(turns);
            let needed = cycle_us.saturating_mul(RECORDS_PER_MS) / 1_000;
            self.records = needed.max(NEAR).min(self.most);
        }
    }

    /// A flushed record's answer does not reveal the distance.
    pub(super) fn flushed(&mut self) {
        self.probe = None;
    }

    /// Another broker may answer from now on.
    #[inline]
    pub(super) fn disturbed(&mut self, disturbances: u64) {
        if disturbances != self.disturbances {
            self.disturbances = disturbances;
            self.distance = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_millis(5);
    const MOST: u64 = 50_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn answer(limit: &mut QueueLimit, partitions: usize, answers: &[Duration]) -> u64 {
        let (mut now, mut sent) = (Instant::START, 0);
        for answer in answers {
            sent += 1;
            limit.sent(now, sent);
            limit.sent(now + *answer / 2, sent + 1);
            limit.answered(now + *answer / 2, sent - 1, || partitions);
            now += *answer;
            sent += 1;
            limit.answered(now, sent, || partitions);
        }
        limit.records()
    }

    fn after(partitions: usize, answers: &[Duration]) -> u64 {
        answer(&mut QueueLimit::new(MOST, LINGER), partitions, answers)
    }

    #[test]
    fn g3_near_brokers_need_few_and_far_ones_what_the_budget_allows() {
        assert_eq!(after(15, &[]), NEAR);
        assert_eq!(after(15, &[LINGER + ms(6)]), NEAR);
        assert_eq!(after(15, &[LINGER + ms(40)]), 6 * NEAR);
        assert_eq!(after(15, &[LINGER + ms(100)]), MOST);
    }

    #[test]
    fn many_partitions_have_their_turn_seldom() {
        assert_eq!(after(50, &[LINGER + ms(6)]), 3 * NEAR);
        assert_eq!(after(500, &[LINGER + ms(6)]), MOST);
    }

    #[test]
    fn what_waited_behind_others_is_no_distance() {
        assert_eq!(after(15, &[LINGER + ms(20), ms(700), LINGER + ms(24)]), 3 * NEAR);
        assert_eq!(after(15, &[ms(700), LINGER + ms(4)]), NEAR);
    }

    #[test]
    fn a_full_batch_that_did_not_wait_does_not_make_a_far_broker_near() {
        assert_eq!(after(150, &[LINGER]), 13_125, "a quarter of 5 ms for each of thirty turns");
        assert_eq!(after(15, &[ms(100)]), MOST);
        assert_eq!(QueueLimit::new(MOST, ms(100)).records(), NEAR);
        assert_eq!(answer(&mut QueueLimit::new(MOST, ms(100)), 15, &[ms(100)]), 26_250);
    }

    #[test]
    fn parts_of_a_millisecond_count() {
        let no_wait = Duration::ZERO;
        let mut limit = QueueLimit::new(MOST, no_wait);
        assert_eq!(answer(&mut limit, 500, &[Duration::from_micros(900)]), 31_500);
    }

    #[test]
    fn what_was_flushed_is_no_distance() {
        let mut limit = QueueLimit::new(MOST, LINGER);
        assert_eq!(answer(&mut limit, 150, &[LINGER + ms(5)]), MOST);
        let now = Instant::START + ms(500);
        limit.sent(now, 100);
        limit.flushed();
        limit.answered(now + ms(5), 100, || 150);
        limit.sent(now + ms(9), 101);
        limit.answered(now + ms(9) + LINGER + ms(5), 101, || 150);
        assert_eq!(limit.records(), MOST);
    }

    #[test]
    fn another_broker_is_measured_anew() {
        let mut limit = QueueLimit::new(MOST, LINGER);
        assert_eq!(answer(&mut limit, 15, &[LINGER + ms(4)]), NEAR);
        limit.disturbed(1);
        assert_eq!(answer(&mut limit, 15, &[LINGER + ms(100)]), MOST);
        limit.disturbed(1);
        assert_eq!(answer(&mut limit, 15, &[LINGER + ms(4)]), NEAR);
    }

    #[test]
    fn a_smaller_budget_holds() {
        assert_eq!(QueueLimit::new(7, LINGER).records(), 7);
    }
}
