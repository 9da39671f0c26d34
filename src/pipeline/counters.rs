//! What has passed, in plain integers: telemetry reads them once per tick.
//!
//! Enters: one call per message. Leaves: [`Counters`], which live as long as their pipeline; the
//! relay adds them up across sessions. A frame that is offered twice is counted once.

use std::collections::HashMap;

use crate::route::RejectionCode;

/// Topics that are counted by name. Rows choose topics, so their number is not ours to trust (G3);
/// 1,000 is far beyond any sane dashboard.
const TOPICS_MAX: usize = 1_000;

/// Totals of one session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// Transactions begun.
    pub begins: u64,
    /// Transactions ended.
    pub commits: u64,
    /// Signs of life from the server.
    pub keepalives: u64,
    /// Table descriptions.
    pub relations: u64,
    /// Names of types and origins.
    pub annotations: u64,
    /// Rows of outbox tables that were sent or skipped.
    pub rows: u64,
    /// Rows of other tables in the publication.
    pub foreign_rows: u64,
    /// UPDATEs of outbox tables.
    pub updates: u64,
    /// DELETEs from outbox tables: how an outbox is usually kept small.
    pub deletes: u64,
    /// TRUNCATEs that emptied an outbox table.
    pub truncates: u64,
    /// Messages written with `pg_logical_emit_message`.
    pub logical_messages: u64,
    /// Records the sink took, dead letters for rejected rows included.
    pub records: u64,
    /// Their keys, values and headers in bytes.
    pub bytes: u64,
    /// Records the brokers stored.
    pub confirmed: u64,
    /// Rows that became dead letters, before or after the brokers saw them.
    pub dead_letters: u64,
    /// Rows left out by policy.
    pub skipped: u64,
    /// Rejections, by position in [`RejectionCode::ALL`].
    rejections: [u64; RejectionCode::ALL.len()],
    topics: Topics,
}

impl Counters {
    /// Rows rejected for this reason.
    pub fn rejections(&self, code: RejectionCode) -> u64 {
        let all = RejectionCode::ALL.iter().zip(self.rejections);
        all.filter(|(known, _)| **known == code).map(|(_, count)| count).sum()
    }

    /// Records the sink took and their bytes, by topic; topics beyond the first 1,000 share the
    /// name `""`. The dead letter of a record that the brokers refused is not counted again: it
    /// goes out under the refused record's ticket.
    pub fn topics(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let counts = self.topics.counts.iter();
        counts.map(|count| (count.topic.as_str(), count.records, count.bytes))
    }

    pub(super) fn count_rejection(&mut self, code: RejectionCode) {
        let all = RejectionCode::ALL.iter().zip(&mut self.rejections);
        all.filter(|(known, _)| **known == code).for_each(|(_, count)| *count += 1);
    }

    /// The place of a topic's count, so that counting needs no name.
    pub(super) fn topic_place(&mut self, topic: &str) -> TopicPlace {
        self.topics.place(topic)
    }

    pub(super) fn count_record(&mut self, topic: TopicPlace, weight: u64) {
        self.records += 1;
        self.bytes += weight;
        if let Some(count) = self.topics.counts.get_mut(topic.0) {
            count.records += 1;
            count.bytes += weight;
        }
    }
}

/// Where a topic's count stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicPlace(usize);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Topics {
    counts: Vec<TopicCount>,
    places: HashMap<String, usize>,
    /// Neighbouring rows often share a topic; comparing names is cheaper than hashing them.
    last: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct TopicCount {
    topic: String,
    records: u64,
    bytes: u64,
}

impl Topics {
    fn place(&mut self, topic: &str) -> TopicPlace {
        if self.counts.get(self.last).is_none_or(|count| count.topic != topic) {
            self.last = self.places.get(topic).copied().unwrap_or_else(|| self.add(topic));
        }
        TopicPlace(self.last)
    }

    fn add(&mut self, topic: &str) -> usize {
        if self.counts.len() < TOPICS_MAX {
            self.places.insert(topic.to_owned(), self.counts.len());
            self.counts.push(TopicCount { topic: topic.to_owned(), ..TopicCount::default() });
        } else if self.counts.len() == TOPICS_MAX {
            self.counts.push(TopicCount::default());
        }
        self.counts.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_counted_by_name() {
        let mut counters = Counters::default();
        for topic in ["a", "b", "a", "a"] {
            let place = counters.topic_place(topic);
            assert_eq!(counters.topic_place(topic), place);
            counters.count_record(place, 10);
        }
        assert_eq!(counters.topics().collect::<Vec<_>>(), [("a", 3, 30), ("b", 1, 10)]);
        assert_eq!((counters.records, counters.bytes), (4, 40));
    }

    #[test]
    fn g3_hostile_topics_do_not_grow_the_counters() {
        let mut counters = Counters::default();
        for number in 0..3_000 {
            let place = counters.topic_place(&number.to_string());
            counters.count_record(place, 1);
        }
        assert_eq!(counters.topics().count(), TOPICS_MAX + 1);
        assert_eq!(counters.topics().last(), Some(("", 2_000, 2_000)));
    }

    #[test]
    fn rejections_are_counted_by_code() {
        let mut counters = Counters::default();
        counters.count_rejection(RejectionCode::TooLarge);
        for code in RejectionCode::ALL {
            assert_eq!(counters.rejections(code), u64::from(code == RejectionCode::TooLarge));
        }
    }
}
