//! Rate and time of the last delivery per topic, from samples of the counters.
//!
//! Invariant: a record counts as delivered once the position received at its first sample is
//! settled. The rate counts delivered records only: while no broker answers, librdkafka still
//! queues records.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::telemetry::View;

pub(super) const TOPICS_MAX: usize = 200;
/// With one sample, a steady rate of 20 records appears to alternate between 0 and 40.
const RATE_SAMPLES: usize = 10;
/// Samples that wait for their position to settle.
const AWAITED_MAX: usize = 60;

#[derive(Debug, Default)]
pub(super) struct TopicsPast {
    topics: HashMap<Arc<str>, Topic>,
}

#[derive(Debug, Default)]
struct Topic {
    /// Time in milliseconds, and number of records delivered so far.
    samples: VecDeque<(i64, u64)>,
    /// Position to settle, and number of records sent up to it.
    awaited: VecDeque<(u64, u64)>,
    /// Number of records at the last sample.
    sent: u64,
    delivered: u64,
    last_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Pace {
    /// Records per second over the last ten seconds.
    pub(super) rate: Option<f64>,
    /// Milliseconds since the Unix epoch.
    pub(super) last_ms: Option<i64>,
}

impl TopicsPast {
    pub(super) fn add(&mut self, view: &View, at_ms: i64) {
        let snapshot = &view.snapshot;
        for count in snapshot.topics.iter().take(TOPICS_MAX) {
            let is_known = self.topics.contains_key(&count.topic);
            let before = if is_known { None } else { Some((at_ms - 1_000, 0)) };
            let topic = self.topics.entry(Arc::clone(&count.topic)).or_default();
            topic.samples.extend(before);
            // Dead letters count as records of the topic that stores them.
            let all_sent = count.sent + count.dead_lettered;
            if all_sent > topic.sent {
                topic.sent = all_sent;
                if topic.awaited.len() == AWAITED_MAX {
                    topic.awaited.pop_back();
                }
                topic.awaited.push_back((snapshot.received_lsn, all_sent));
            }
            let is_settled = |awaited: &(u64, u64)| {
                snapshot.holds_slot
                    && (snapshot.in_flight_records == 0 || snapshot.settled_lsn >= awaited.0)
            };
            while topic.awaited.front().is_some_and(is_settled) {
                let Some((_, sent)) = topic.awaited.pop_front() else { break };
                topic.delivered = sent;
                topic.last_ms = Some(at_ms);
            }
            topic.samples.push_back((at_ms, topic.delivered));
            if topic.samples.len() > RATE_SAMPLES + 1 {
                topic.samples.pop_front();
            }
        }
    }

    pub(super) fn pace(&self, name: &str) -> Pace {
        let Some(topic) = self.topics.get(name) else { return Pace::default() };
        Pace { rate: topic.rate(), last_ms: topic.last_ms }
    }
}

impl Topic {
    fn rate(&self) -> Option<f64> {
        let ((from_ms, before), (to_ms, now)) = (*self.samples.front()?, *self.samples.back()?);
        let (took_ms, sent) = (to_ms.saturating_sub(from_ms), now.saturating_sub(before));
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
        let rate = sent as f64 * 1_000.0 / took_ms as f64;
        (took_ms > 0).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{BuildInfo, Snapshot, Telemetry, TopicCount};

    fn view(sent: u64, (received_lsn, settled_lsn): (u64, u64)) -> View {
        let telemetry = Telemetry::new(BuildInfo::default());
        let topic = TopicCount { topic: "orders".into(), sent, dead_lettered: 0, bytes: 0 };
        telemetry.publish(Snapshot {
            holds_slot: true,
            topics: vec![topic],
            in_flight_records: u64::from(settled_lsn < received_lsn),
            received_lsn,
            settled_lsn,
            ..Snapshot::default()
        });
        telemetry.view()
    }

    #[test]
    fn a_steady_rate_is_steady_however_samples_fall() {
        let mut past = TopicsPast::default();
        for (second, sent) in
            [0, 40, 40, 80, 80, 120, 120, 160, 160, 200, 200, 240].into_iter().enumerate()
        {
            past.add(&view(sent, (1, 1)), i64::try_from(second).unwrap() * 1_000);
        }
        assert_eq!(past.pace("orders").rate, Some(20.0));
        assert_eq!(past.pace("other"), Pace::default());
    }

    #[test]
    fn a_record_is_delivered_once_its_position_is_settled() {
        let mut past = TopicsPast::default();
        past.add(&view(5, (100, 0)), 1_000);
        past.add(&view(5, (200, 99)), 2_000);
        let pace = past.pace("orders");
        assert_eq!((pace.rate, pace.last_ms), (Some(0.0), None), "nothing is settled");
        past.add(&view(9, (300, 100)), 3_000);
        assert_eq!(past.pace("orders").last_ms, Some(3_000));
        past.add(&view(9, (300, 100)), 4_000);
        past.add(&view(9, (300, 100)), 5_000);
        assert_eq!(past.pace("orders").last_ms, Some(3_000), "four records are under way");
    }
}
