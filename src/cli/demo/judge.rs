//! Compares committed rows with arrived records, for the demo's verdict. No code is shared with the
//! relay, so that a fault of the relay cannot hide.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use uuid::Uuid;

#[derive(Debug, Clone, Copy, Default)]
struct KeyOrder {
    committing: Option<Instant>,
    arrived: Option<Instant>,
    arrivals: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DeliveryVerdict {
    pub(crate) committed: u64,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    /// Arrivals without a committed row: rolled back, or never written.
    pub(crate) phantom: u64,
    /// First arrivals behind a later row of the same key.
    pub(crate) out_of_order: u64,
    /// Median time from sending COMMIT to the arrival, in milliseconds.
    pub(crate) p50_ms: f64,
    /// 99th percentile, in milliseconds.
    pub(crate) p99_ms: f64,
}

impl DeliveryVerdict {
    /// Whether every row arrived in order. At-least-once delivery allows duplicates.
    pub(crate) const fn is_sound(&self) -> bool {
        self.lost == 0 && self.phantom == 0 && self.out_of_order == 0
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) id: Uuid,
    pub(crate) topic: &'a str,
    pub(crate) key: &'a [u8],
    /// Number of the row within its key, from the payload.
    pub(crate) sequence: u64,
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Judge {
    orders: HashMap<Uuid, KeyOrder>,
    /// By topic and key, because order exists only within a partition.
    newest: HashMap<(String, Vec<u8>), u64>,
    committed: u64,
    delivered: u64,
    out_of_order: u64,
}

impl Judge {
    /// `committing` is the moment before COMMIT was sent.
    pub(crate) fn committed(&mut self, id: Uuid, committing: Instant) {
        let order = self.orders.entry(id).or_default();
        if order.committing.replace(committing).is_none() {
            self.committed += 1;
            self.delivered += u64::from(order.arrivals > 0);
        }
    }

    pub(crate) fn arrived(&mut self, arrival: &Arrival<'_>) {
        let order = self.orders.entry(arrival.id).or_default();
        order.arrivals += 1;
        if order.arrivals > 1 {
            return;
        }
        order.arrived = Some(arrival.at);
        self.delivered += u64::from(order.committing.is_some());
        let place = (arrival.topic.to_owned(), arrival.key.to_vec());
        let newest = self.newest.entry(place).or_default();
        self.out_of_order += u64::from(*newest > arrival.sequence);
        *newest = arrival.sequence.max(*newest);
    }

    pub(crate) const fn committed_count(&self) -> u64 {
        self.committed
    }

    pub(crate) const fn delivered_count(&self) -> u64 {
        self.delivered
    }

    pub(crate) fn verdict(&self) -> DeliveryVerdict {
        let mut latencies: Vec<Duration> = Vec::with_capacity(self.orders.len());
        let (mut duplicated, mut phantom) = (0, 0);
        for order in self.orders.values() {
            duplicated += u64::from(order.arrivals.saturating_sub(1));
            match (order.committing, order.arrived) {
                (None, Some(_)) => phantom += 1,
                (Some(from), Some(to)) => latencies.push(to.saturating_duration_since(from)),
                _ => {}
            }
        }
        latencies.sort_unstable();
        DeliveryVerdict {
            committed: self.committed,
            delivered: self.delivered,
            lost: self.committed - self.delivered,
            duplicated,
            phantom,
            out_of_order: self.out_of_order,
            p50_ms: percentile_ms(&latencies, 50),
            p99_ms: percentile_ms(&latencies, 99),
        }
    }
}

/// Nearest rank, in milliseconds to the microsecond; 0 for none.
fn percentile_ms(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).map_or(0.0, |value| (value.as_secs_f64() * 1e6).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn arrival(number: u64, at: Instant) -> Arrival<'static> {
        let id = id(number.into());
        Arrival { id, topic: "orders", key: b"k", sequence: number, at }
    }

    #[test]
    fn a_clean_run_is_sound() {
        let mut judge = Judge::default();
        let start = Instant::now();
        for number in 0..100 {
            judge.committed(id(number.into()), start);
            judge.arrived(&arrival(number, start + Duration::from_millis(number + 1)));
        }
        let verdict = judge.verdict();
        assert!(verdict.is_sound());
        assert_eq!((verdict.committed, verdict.delivered, verdict.duplicated), (100, 100, 0));
        assert!((verdict.p50_ms - 50.0).abs() < 1e-9 && (verdict.p99_ms - 99.0).abs() < 1e-9);
    }

    #[test]
    fn arrival_may_be_noted_before_the_commit() {
        let mut judge = Judge::default();
        let now = Instant::now();
        judge.arrived(&arrival(1, now));
        assert_eq!(judge.verdict().phantom, 1);
        judge.committed(id(1), now);
        assert!(judge.verdict().is_sound());
        assert_eq!(judge.verdict().delivered, 1);
    }

    #[test]
    fn every_fault_is_counted() {
        let mut judge = Judge::default();
        let now = Instant::now();
        for number in 1..=3 {
            judge.committed(id(number), now);
        }
        judge.arrived(&arrival(2, now));
        judge.arrived(&arrival(2, now));
        judge.arrived(&arrival(1, now));
        judge.arrived(&Arrival { topic: "others", ..arrival(9, now) });
        let verdict = judge.verdict();
        assert_eq!(
            (verdict.lost, verdict.duplicated, verdict.phantom, verdict.out_of_order),
            (1, 1, 1, 1)
        );
        assert!(!verdict.is_sound());
    }
}
