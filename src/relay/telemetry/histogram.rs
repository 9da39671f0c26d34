//! Latency histogram with fixed buckets, cheap enough for the thread that runs the session.
//!
//! Invariant: no allocations, floats or atomics. Counts saturate and do not wrap.

/// Upper bounds in microseconds. No broker confirms within less than 50 us. Durations over 60 s all
/// mean "stuck".
pub const BOUNDS_US: [u64; 19] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// The last bucket has no upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Histogram {
    pub fn record(&mut self, microseconds: u64) {
        if let Some(count) = self.counts.get_mut(bucket(microseconds)) {
            *count = count.saturating_add(1);
        }
        self.sum_us = self.sum_us.saturating_add(microseconds);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub const fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// Number of durations at or below each bound in microseconds. `None` means unbounded.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = BOUNDS_US.iter().copied().map(Some).chain([None]);
        bounds.zip(&self.counts).scan(0_u64, |below, (bound, &count)| {
            *below = below.saturating_add(count);
            Some((bound, *below))
        })
    }

    /// Number of durations between the previous bound and each bound in microseconds.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        BOUNDS_US.iter().copied().map(Some).chain([None]).zip(self.counts)
    }

    /// Durations added since `earlier`, a previous state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts;
        for (count, before) in counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        Self { counts, sum_us: self.sum_us.saturating_sub(earlier.sum_us) }
    }

    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut counts = self.counts;
        for (count, more) in counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        Self { counts, sum_us: self.sum_us.saturating_add(other.sum_us) }
    }

    /// Upper bound in microseconds of the quantile's bucket. `per_mille` is 990 for p99. `None`:
    /// the histogram is empty, or the quantile exceeds all bounds.
    pub fn quantile_us(&self, per_mille: u64) -> Option<u64> {
        let total = self.count();
        let rank = total.saturating_mul(per_mille).div_ceil(1000).max(1);
        self.cumulative().find(|&(_, below)| below >= rank).and_then(|(bound, _)| bound)
    }
}

fn bucket(microseconds: u64) -> usize {
    BOUNDS_US.partition_point(|&bound| bound < microseconds)
}

/// Transaction that represents a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// Trace id of one of its rows.
    pub trace_id: [u8; 16],
    pub us: u64,
    /// Time of the measurement, in microseconds since the Unix epoch.
    pub unix_us: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exemplars([Option<Exemplar>; BOUNDS_US.len() + 1]);

impl Exemplars {
    pub fn keep(&mut self, trace_id: [u8; 16], us: u64, unix_us: i64) {
        if let Some(slot) = self.0.get_mut(bucket(us)) {
            *slot = Some(Exemplar { trace_id, us, unix_us });
        }
    }

    /// Items start with the index of the bucket.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Exemplar)> + '_ {
        self.0.iter().enumerate().filter_map(|(bucket, slot)| Some((bucket, slot.as_ref()?)))
    }

    /// Keeps the newer exemplar of each bucket.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut all = *self;
        for (_, one) in other.iter() {
            let is_newer = |slot: &Option<Exemplar>| slot.is_none_or(|it| it.unix_us < one.unix_us);
            if all.0.get(bucket(one.us)).is_some_and(is_newer) {
                all.keep(one.trace_id, one.us, one.unix_us);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_grow() {
        assert!(BOUNDS_US.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn quantiles_name_the_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(500), None);
        for _ in 0..99 {
            histogram.record(900);
        }
        histogram.record(40_000);
        assert_eq!(histogram.quantile_us(500), Some(1_000));
        assert_eq!(histogram.quantile_us(990), Some(1_000));
        assert_eq!(histogram.quantile_us(1000), Some(50_000));
        assert_eq!(histogram.sum_us(), 99 * 900 + 40_000);
    }

    #[test]
    fn the_newest_exemplar_of_a_bucket_is_kept() {
        let (mut one, mut other) = (Exemplars::default(), Exemplars::default());
        one.keep([1; 16], 700, 10);
        one.keep([2; 16], 900, 20);
        other.keep([3; 16], 800, 15);
        other.keep([4; 16], 70_000_000, 5);
        for all in [one.and(&other), other.and(&one)] {
            let kept: Vec<_> = all.iter().map(|(bucket, one)| (bucket, one.trace_id[0])).collect();
            assert_eq!(kept, [(4, 2), (BOUNDS_US.len(), 4)]);
        }
    }

    proptest! {
        #[test]
        fn every_duration_is_in_exactly_one_bucket(values in prop::collection::vec(any::<u32>(), 0..50)) {
            let mut histogram = Histogram::default();
            for &value in &values {
                histogram.record(u64::from(value));
            }
            prop_assert_eq!(histogram.count(), values.len() as u64);
            for (bound, below) in histogram.cumulative() {
                let expected = values.iter().filter(|&&v| bound.is_none_or(|b| u64::from(v) <= b));
                prop_assert_eq!(below, expected.count() as u64);
            }
        }
    }
}
