//! Samples of the last 15 minutes, one per second, for the charts of the dashboard. An unknown
//! value is `null`, never 0.

use std::collections::VecDeque;

use serde::Serialize;

use super::topics::{Pace, TopicsPast};
use crate::telemetry::{Histogram, View};

/// 15 minutes.
const SAMPLES_MAX: usize = 900;
/// With one sample per latency value, the curves have gaps at 1 transaction per second.
const LATENCY_SAMPLES: usize = 10;

#[derive(Debug, Clone, Copy)]
struct Sample {
    at_ms: i64,
    confirmed: u64,
    in_flight: u64,
    received: u64,
    settled: u64,
    lag: Option<u64>,
    retained: Option<u64>,
    /// Median, 95th and 99th percentile, in microseconds.
    latency: [Option<u64>; 3],
}

#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// Totals at the last samples, oldest first.
    latencies: VecDeque<Histogram>,
    topics: TopicsPast,
}

/// Lists of equal length, oldest sample first.
#[derive(Debug, Default, Serialize)]
pub(super) struct Columns {
    /// Milliseconds since the Unix epoch.
    at_ms: Vec<i64>,
    confirmed: Vec<u64>,
    in_flight: Vec<u64>,
    received: Vec<u64>,
    settled: Vec<u64>,
    /// Bytes that the slot has not passed, and bytes that it retains on disk.
    lag: Vec<Option<u64>>,
    retained: Vec<Option<u64>>,
    /// Upper bounds of the latency from commit to confirmation over the last ten seconds.
    p50_us: Vec<Option<u64>>,
    p95_us: Vec<Option<u64>>,
    p99_us: Vec<Option<u64>>,
}

impl History {
    pub(super) fn add(&mut self, view: &View, at_ms: i64) {
        let snapshot = &view.snapshot;
        self.topics.add(view, at_ms);
        let is_full = self.latencies.len() == LATENCY_SAMPLES;
        let before = self.latencies.front().copied().filter(|_| is_full).unwrap_or_default();
        let latency = snapshot.commit_to_confirm.since(&before);
        self.latencies.push_back(snapshot.commit_to_confirm);
        if self.latencies.len() > LATENCY_SAMPLES {
            self.latencies.pop_front();
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at_ms,
            confirmed: snapshot.confirmed,
            in_flight: snapshot.in_flight_records,
            received: snapshot.received_lsn,
            settled: snapshot.settled_lsn,
            lag: view.slot.map(|slot| slot.lag_bytes),
            retained: view.slot.map(|slot| slot.retained_bytes),
            latency: [500, 950, 990].map(|quantile| latency.quantile_us(quantile)),
        });
    }

    pub(super) fn pace(&self, topic: &str) -> Pace {
        self.topics.pace(topic)
    }

    /// Records per second, and 99th percentile of the latency in microseconds.
    pub(super) fn latest(&self) -> (Option<f64>, Option<u64>) {
        let Some(last) = self.samples.back() else { return (None, None) };
        let from = self.samples.len().saturating_sub(LATENCY_SAMPLES + 1);
        let rate = self.samples.get(from).and_then(|first| {
            let (took_ms, came) =
                (last.at_ms - first.at_ms, last.confirmed.saturating_sub(first.confirmed));
            #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
            let rate = came as f64 * 1_000.0 / took_ms as f64;
            (took_ms > 0).then_some(rate)
        });
        (rate, last.latency[2])
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn after(&self, at_ms: i64) -> Columns {
        let mut columns = Columns::default();
        for sample in self.samples.iter().filter(|sample| sample.at_ms > at_ms) {
            let Sample { at_ms, confirmed, in_flight, received, settled, lag, retained, latency } =
                *sample;
            let [p50, p95, p99] = latency;
            columns.at_ms.push(at_ms);
            columns.confirmed.push(confirmed);
            columns.in_flight.push(in_flight);
            columns.received.push(received);
            columns.settled.push(settled);
            columns.lag.push(lag);
            columns.retained.push(retained);
            columns.p50_us.push(p50);
            columns.p95_us.push(p95);
            columns.p99_us.push(p99);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{BuildInfo, Snapshot, Telemetry};

    #[test]
    fn the_oldest_samples_are_forgotten() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let mut history = History::default();
        for second in 1..=i64::try_from(SAMPLES_MAX).unwrap() + 5 {
            history.add(&telemetry.view(), second * 1_000);
        }
        let columns = history.after(0);
        assert_eq!((columns.at_ms.len(), columns.at_ms[0]), (SAMPLES_MAX, 6_000));
        assert_eq!(columns.lag[0], None, "no slot was seen");
        assert_eq!(history.after(904_000).at_ms, [905_000]);
    }

    #[test]
    fn latencies_are_those_of_the_last_samples() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let mut history = History::default();
        let mut commit_to_confirm = Histogram::default();
        commit_to_confirm.record(900);
        telemetry.publish(Snapshot { commit_to_confirm, ..Snapshot::default() });
        history.add(&telemetry.view(), 1);
        history.add(&telemetry.view(), 2);
        commit_to_confirm.record(4_000_000);
        telemetry.publish(Snapshot { commit_to_confirm, ..Snapshot::default() });
        history.add(&telemetry.view(), 3);
        assert_eq!(history.after(0).p99_us, [Some(1_000), Some(1_000), Some(5_000_000)]);
        for second in 4..=20 {
            history.add(&telemetry.view(), second);
        }
        let all = history.after(0).p99_us;
        assert_eq!((all[11], all[12]), (Some(5_000_000), None), "{all:?}");
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let mut history = History::default();
        assert_eq!(history.latest(), (None, None));
        for second in 0..30_u32 {
            let confirmed = u64::from(second.saturating_sub(15)) * 20;
            telemetry.publish(Snapshot { confirmed, ..Snapshot::default() });
            history.add(&telemetry.view(), i64::from(second) * 1_000);
        }
        assert_eq!(history.latest().0, Some(20.0));
    }
}
