//! Counts rows, records, rejections and transactions of a session for metrics.
//!
//! A repeated frame is counted once. Topics beyond the first 1,000 share one count, because rows
//! choose their topics (G3).

use std::collections::HashMap;

use crate::route::RejectionCode;

/// Totals of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// Transactions begun.
    pub begins: u64,
    /// Transactions ended.
    pub commits: u64,
    /// Keepalives.
    pub keepalives: u64,
    /// Table descriptions.
    pub relations: u64,
    /// Names of types and origins, and rolled-back transactions.
    pub annotations: u64,
    /// Rows sent, skipped or dropped.
    pub rows: u64,
    /// Rows dropped by a rule.
    pub dropped: u64,
    /// Rows that an earlier session stored.
    pub repeats: u64,
    /// Rows of other tables.
    pub foreign_rows: u64,
    /// UPDATEs of outboxes.
    pub updates: u64,
    /// DELETEs from outboxes.
    pub deletes: u64,
    /// TRUNCATEs of outboxes.
    pub truncates: u64,
    /// Logical messages that are not rows.
    pub logical_messages: u64,
    /// Records and dead letters that the sink took; equals the number of tickets.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records and dead letters stored. A count per topic would cost a look-up per row.
    pub confirmed: u64,
    /// Rows that became dead letters.
    pub dead_letters: u64,
    /// Rows skipped by policy.
    pub skipped: u64,
    rejections: [u64; RejectionCode::ALL.len()],
    topics: Topics,
}

impl Counters {
    /// Rows rejected for this reason.
    pub fn rejections(&self, code: RejectionCode) -> u64 {
        let all = RejectionCode::ALL.iter().zip(self.rejections);
        all.filter(|(known, _)| **known == code).map(|(_, count)| count).sum()
    }

    /// Totals by topic; `""` stands for those beyond the first 1,000.
    pub fn topics(&self) -> &[TopicTotal] {
        &self.topics.totals
    }

    pub(super) fn count_rejection(&mut self, code: RejectionCode) {
        let all = RejectionCode::ALL.iter().zip(&mut self.rejections);
        all.filter(|(known, _)| **known == code).for_each(|(_, count)| *count += 1);
    }

    /// Counts a record that the sink took; a dead letter if there is a `rejection`.
    pub fn count_record(&mut self, topic: &str, weight: u64, rejection: Option<RejectionCode>) {
        self.records += 1;
        self.bytes += weight;
        if let Some(code) = rejection {
            self.count_dead_letter(topic, weight, code);
        } else if let Some(total) = self.topics.total(topic) {
            total.sent += 1;
            total.bytes += weight;
        }
    }

    pub(super) fn count_dead_letter(&mut self, topic: &str, weight: u64, code: RejectionCode) {
        self.dead_letters += 1;
        self.count_rejection(code);
        if let Some(total) = self.topics.total(topic) {
            total.dead_letters += 1;
            total.bytes += weight;
        }
    }
}

/// Totals of one topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicTotal {
    /// Name; `""` for all beyond the first 1,000.
    pub topic: String,
    /// Records that the sink took, without dead letters. A refused record stays counted.
    pub sent: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Bytes of both.
    pub bytes: u64,
}

impl TopicTotal {
    /// Topics counted by name (G3).
    pub const NAMED_MAX: usize = 1_000;
    /// Shared name of other topics.
    pub const OTHERS: &str = "";
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Topics {
    totals: Vec<TopicTotal>,
    places: HashMap<String, usize>,
    /// Neighbouring rows often share a topic, and comparing is cheaper than hashing.
    last: usize,
}

impl Topics {
    fn total(&mut self, topic: &str) -> Option<&mut TopicTotal> {
        if self.totals.get(self.last).is_none_or(|total| total.topic != topic) {
            self.last = self.places.get(topic).copied().unwrap_or_else(|| self.add(topic));
        }
        self.totals.get_mut(self.last)
    }

    fn add(&mut self, topic: &str) -> usize {
        if self.totals.len() < TopicTotal::NAMED_MAX {
            self.places.insert(topic.to_owned(), self.totals.len());
            self.totals.push(TopicTotal { topic: topic.to_owned(), ..TopicTotal::default() });
        } else if self.totals.len() == TopicTotal::NAMED_MAX {
            self.totals.push(TopicTotal::default());
        }
        self.totals.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(topic: &str, sent: u64, dead_letters: u64, bytes: u64) -> TopicTotal {
        TopicTotal { topic: topic.to_owned(), sent, dead_letters, bytes }
    }

    #[test]
    fn a_dead_letter_counts_where_it_goes_whenever_it_goes() {
        let mut counters = Counters::default();
        counters.count_record("orders", 10, None);
        counters.count_record("dead", 7, Some(RejectionCode::NoRoute));
        // One more dead letter without another ticket.
        counters.count_dead_letter("dead", 12, RejectionCode::TooLarge);
        assert_eq!(counters.topics(), [total("orders", 1, 0, 10), total("dead", 0, 2, 19)]);
        assert_eq!((counters.records, counters.bytes, counters.dead_letters), (2, 17, 2));
        assert_eq!(counters.rejections(RejectionCode::TooLarge), 1);
    }

    #[test]
    fn topics_are_counted_by_name() {
        let mut counters = Counters::default();
        for topic in ["a", "b", "a", "a"] {
            counters.count_record(topic, 10, None);
        }
        assert_eq!(counters.topics(), [total("a", 3, 0, 30), total("b", 1, 0, 10)]);
        assert_eq!((counters.records, counters.bytes), (4, 40));
    }

    #[test]
    fn g3_hostile_topics_do_not_grow_the_counters() {
        let mut counters = Counters::default();
        for number in 0..3_000 {
            counters.count_record(&number.to_string(), 1, None);
        }
        assert_eq!(counters.topics().len(), TopicTotal::NAMED_MAX + 1);
        assert_eq!(counters.topics().last(), Some(&total("", 2_000, 0, 2_000)));
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
