//! First-write gate: a producer's first record in each partition must be stored before others
//! follow. Upholds G2: the records of one key are stored in commit order.
//!
//! Invariant: until a partition has stored a record of this session, at most one record with a key
//! is in flight to it.

use std::collections::{HashMap, HashSet};

use super::key_hash::{KeyHash, hash_of};
use postrider_core::ledger::Ticket;
use postrider_core::record::Partitioner;

/// Rows choose topics, so their number is not trustworthy.
const TOPICS_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Free,
    /// Call [`FirstWriteGate::begun`] when it is sent.
    First(FirstWrite),
    /// The first write is in flight.
    Wait,
    /// Call [`FirstWriteGate::counted`], and ask again.
    Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstWrite {
    topic: usize,
    /// Known once the partitions are counted.
    partition: Option<usize>,
    /// True if the row chose the partition.
    chosen: bool,
    key_hash: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) topic: &'a str,
    pub(super) key: Option<&'a [u8]>,
    /// Negative if the record never got one.
    pub(super) partition: i32,
    pub(super) stored: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum FirstWriteState {
    #[default]
    None,
    UnderWay,
    Stored,
}

#[derive(Debug, Default)]
struct Topic {
    /// State until the partitions are counted. Once a first write is stored, they must be.
    whole: FirstWriteState,
    partitions: Vec<FirstWriteState>,
}

impl Topic {
    const UNCOUNTED: Self = Self { whole: FirstWriteState::Stored, partitions: Vec::new() };
}

/// State of each partition for this session's producer.
///
/// Kafka accepts any first sequence number from a producer that a partition does not know. A new
/// leader can refuse a session's first batch and accept the second (seen on Apache Kafka 4.3 with
/// new topics). Once a batch is stored, later leaders know the producer from the log, and refuse
/// batches out of order.
///
/// The library's rule predicts the partition: the key's hash modulo the number of partitions. A
/// topic without a known number counts as one partition until it has stored a record. A wrong
/// prediction, after partitions were added, only loses the protection, and is detected.
///
/// Beyond `TOPICS_MAX`, topics without a first write in flight are forgotten, and their first write
/// is repeated (G3).
#[derive(Debug, Default)]
pub(super) struct FirstWriteGate {
    hash: Option<KeyHash>,
    names: HashMap<String, usize>,
    topics: Vec<Topic>,
    free: Vec<usize>,
    under_way: Vec<(Ticket, FirstWrite)>,
}

impl FirstWriteGate {
    /// `random` cannot be predicted.
    pub(super) fn new(partitioner: Partitioner) -> Self {
        Self { hash: hash_of(partitioner), ..Self::default() }
    }

    /// In a counted topic a record without a key is free: order is promised to keys.
    pub(super) fn admit(
        &mut self,
        name: &str,
        key: Option<&[u8]>,
        partition: Option<i32>,
    ) -> Admission {
        let Some(&topic) = self.names.get(name) else { return Admission::Count };
        let Some(Topic { whole, partitions }) = self.topics.get(topic) else {
            unreachable!("a name has its place")
        };
        if partitions.is_empty() && *whole == FirstWriteState::Stored {
            return Admission::Count;
        }
        let (Some(hash), Some(key)) = (self.hash, key) else { return Admission::Free };
        let key_hash = hash(key);
        if partitions.is_empty() {
            let first_write = FirstWrite { topic, partition: None, chosen: false, key_hash };
            return match whole {
                FirstWriteState::None => Admission::First(first_write),
                FirstWriteState::UnderWay | FirstWriteState::Stored => Admission::Wait,
            };
        }
        let chosen = partition.and_then(|partition| usize::try_from(partition).ok());
        let partition = chosen.unwrap_or_else(|| key_hash as usize % partitions.len());
        match partitions.get(partition) {
            Some(FirstWriteState::None) => Admission::First(FirstWrite {
                topic,
                partition: Some(partition),
                chosen: chosen.is_some(),
                key_hash,
            }),
            Some(FirstWriteState::UnderWay) => Admission::Wait,
            Some(FirstWriteState::Stored) | None => Admission::Free,
        }
    }

    fn add(&mut self, name: &str) -> usize {
        if self.names.len() >= TOPICS_MAX {
            self.forget();
        }
        let topic = self.free.pop().unwrap_or_else(|| {
            self.topics.push(Topic::default());
            self.topics.len() - 1
        });
        self.names.insert(name.to_owned(), topic);
        topic
    }

    /// Other records in flight are in partitions that know this producer.
    #[cold]
    fn forget(&mut self) {
        let Self { names, topics, free, under_way, .. } = self;
        let begun: HashSet<usize> = under_way.iter().map(|(_, begun)| begun.topic).collect();
        names.retain(|_, topic| {
            let stays = begun.contains(topic);
            if !stays {
                free.push(*topic);
                if let Some(known) = topics.get_mut(*topic) {
                    *known = Topic::default();
                }
            }
            stays
        });
    }

    pub(super) fn begun(&mut self, ticket: Ticket, first_write: FirstWrite) {
        self.set(first_write, FirstWriteState::UnderWay);
        self.under_way.push((ticket, first_write));
    }

    /// Sets the number of partitions; 0: the topic counts as one partition again.
    pub(super) fn counted(&mut self, name: &str, partitions: usize) {
        let topic = self.names.get(name).copied().unwrap_or_else(|| self.add(name));
        let Some(topic) = self.topics.get_mut(topic) else { unreachable!("a name has its place") };
        topic.whole = FirstWriteState::None;
        topic.partitions = vec![FirstWriteState::None; partitions];
    }

    pub(super) fn partitions(&self) -> usize {
        self.topics.iter().map(|topic| topic.partitions.len()).sum()
    }

    pub(super) fn are_settled(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(super) fn reported(&mut self, ticket: Ticket, report: Report<'_>) {
        let (Some(hash), Some(key)) = (self.hash, report.key) else { return };
        let Some(&topic) = self.names.get(report.topic) else { return };
        let (key_hash, partition) = (hash(key), usize::try_from(report.partition).ok());
        // Records of one transaction and size share a ticket.
        let mut ours = self.under_way.iter().enumerate().filter(|(_, (of, first_write))| {
            *of == ticket && first_write.topic == topic && first_write.key_hash == key_hash
        });
        let there = |first_write: &FirstWrite| {
            first_write.partition.is_none_or(|predicted| partition.is_none_or(|p| p == predicted))
        };
        let found = ours.clone().find(|(_, (_, first_write))| there(first_write));
        if let Some((at, _)) = found {
            let (_, first_write) = self.under_way.swap_remove(at);
            let made = if report.stored { FirstWriteState::Stored } else { FirstWriteState::None };
            self.set(first_write, made);
        } else if ours.any(|(_, (_, first_write))| !first_write.chosen) {
            self.recount(topic);
        }
    }

    /// Partitions may have been added. False while a first write is in flight.
    pub(super) fn count_again(&mut self, name: &str) -> bool {
        let Some(&topic) = self.names.get(name) else { return true };
        let is_settled = self.under_way.iter().all(|(_, begun)| begun.topic != topic);
        if is_settled {
            self.recount(topic);
        }
        is_settled
    }

    fn recount(&mut self, topic: usize) {
        self.under_way.retain(|(_, first_write)| first_write.topic != topic);
        if let Some(topic) = self.topics.get_mut(topic) {
            *topic = Topic::UNCOUNTED;
        }
    }

    fn set(&mut self, first_write: FirstWrite, state: FirstWriteState) {
        let Some(topic) = self.topics.get_mut(first_write.topic) else { return };
        let known = match first_write.partition {
            None => Some(&mut topic.whole),
            Some(partition) => topic.partitions.get_mut(partition),
        };
        if let Some(known) = known {
            *known = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;
    use crate::embedded::Broker;
    use crate::{KafkaSpec, Reader, ReaderSpec};

    const K: &[u8] = b"k";

    fn ticket(transaction: u32) -> Ticket {
        Ticket::new(transaction, 100)
    }

    fn first(all: &mut FirstWriteGate, key: &[u8]) -> FirstWrite {
        match all.admit("t", Some(key), None) {
            Admission::First(first_write) => first_write,
            other => panic!("{other:?}"),
        }
    }

    fn stored(key: &[u8], partition: i32) -> Report<'_> {
        Report { topic: "t", key: Some(key), partition, stored: true }
    }

    fn counted() -> FirstWriteGate {
        let mut all = FirstWriteGate::new(Partitioner::Murmur2Random);
        assert_eq!(all.admit("t", Some(K), None), Admission::Count);
        all.counted("t", 3);
        all
    }

    fn elsewhere(all: &mut FirstWriteGate) -> (Vec<u8>, i32) {
        let home = first(all, K).partition;
        let mut keys = (0..20_u8).map(|key| vec![key]);
        let key = keys.find(|key| first(all, key).partition != home).unwrap();
        let partition = first(all, &key).partition.unwrap();
        (key, partition.try_into().unwrap())
    }

    fn home(first_write: FirstWrite) -> i32 {
        first_write.partition.unwrap().try_into().unwrap()
    }

    #[test]
    fn g2_an_uncounted_topic_is_one_partition() {
        let mut all = FirstWriteGate::new(Partitioner::Murmur2Random);
        assert_eq!(all.admit("t", Some(K), None), Admission::Count);
        all.counted("t", 0);
        let first_write = first(&mut all, K);
        all.begun(ticket(1), first_write);
        assert_eq!(all.admit("t", Some(b"other"), None), Admission::Wait);
        all.reported(ticket(1), stored(K, 2));
        assert_eq!(all.admit("t", Some(K), None), Admission::Count, "it exists by now");
    }

    #[test]
    fn g2_a_partition_takes_one_record_until_it_has_stored_one() {
        let mut all = counted();
        let (other, _) = elsewhere(&mut all);
        let first_write = first(&mut all, K);
        all.begun(ticket(2), first_write);
        assert_eq!(all.admit("t", Some(K), None), Admission::Wait);
        first(&mut all, &other);
        all.reported(ticket(9), stored(K, home(first_write)));
        assert_eq!(all.admit("t", Some(K), None), Admission::Wait, "another record's report");
        all.reported(ticket(2), stored(K, home(first_write)));
        assert_eq!(all.admit("t", Some(K), None), Admission::Free);
    }

    #[test]
    fn g2_records_of_one_transaction_and_size_are_told_apart_by_their_keys() {
        let mut all = counted();
        let (other, there) = elsewhere(&mut all);
        let first_write = first(&mut all, &other);
        all.begun(ticket(1), first_write);
        all.reported(ticket(1), stored(&other, there));
        let first_write = first(&mut all, K);
        all.begun(ticket(2), first_write);
        all.reported(ticket(2), stored(&other, there));
        assert_eq!(all.admit("t", Some(K), None), Admission::Wait);
        assert_eq!(all.admit("t", Some(&other), None), Admission::Free);
        all.reported(ticket(2), stored(K, home(first_write)));
        assert_eq!(all.admit("t", Some(K), None), Admission::Free);
    }

    #[test]
    fn a_refused_record_is_no_first_write() {
        let mut all = counted();
        let first_write = first(&mut all, K);
        all.begun(ticket(2), first_write);
        all.reported(ticket(2), Report { stored: false, ..stored(K, home(first_write)) });
        assert_eq!(first(&mut all, K), first_write);
    }

    #[test]
    fn partitions_that_were_added_are_noticed_and_block_nothing() {
        let mut all = counted();
        let first_write = first(&mut all, K);
        all.begun(ticket(2), first_write);
        all.reported(ticket(2), stored(K, (home(first_write) + 1) % 3));
        assert_eq!(all.admit("t", Some(K), None), Admission::Count);
        all.counted("t", 0);
        assert_eq!(first(&mut all, K).partition, None);
    }

    #[test]
    fn a_row_that_chooses_its_partition_proves_no_foretelling_wrong() {
        let mut all = counted();
        let Admission::First(first_write) = all.admit("t", Some(K), Some(0)) else {
            panic!("the first")
        };
        all.begun(ticket(1), first_write);
        all.reported(ticket(1), stored(K, 1));
        assert_eq!(all.admit("t", Some(K), Some(0)), Admission::Wait);
        all.reported(ticket(1), stored(K, 0));
        assert_eq!(all.admit("t", Some(K), Some(0)), Admission::Free);
    }

    #[test]
    fn keys_go_where_it_was_predicted() {
        const PARTITIONS: i32 = 7;
        let limit = Duration::from_secs(20);
        let hashes =
            [Partitioner::Murmur2, Partitioner::ConsistentRandom, Partitioner::Fnv1aRandom];
        for partitioner in hashes {
            let broker = Broker::start(1, &[("t", PARTITIONS)]).unwrap();
            let mut spec = KafkaSpec::of_brokers(&broker.bootstrap());
            spec.partitioner = partitioner;
            let producer: BaseProducer = spec.producer_config().unwrap().create().unwrap();
            for length in 1..60 {
                let key: Vec<u8> = (0..length).map(|byte: u8| byte.wrapping_mul(37)).collect();
                producer.send(BaseRecord::to("t").key(&key).payload("")).unwrap();
            }
            producer.flush(limit).unwrap();
            let mut reader = Reader::open(&spec, ReaderSpec::whole(&["t"]), limit).unwrap();
            let stored = reader.collect(59, limit).unwrap();
            let hash = FirstWriteGate::new(partitioner).hash.unwrap();
            for record in &stored {
                let predicted = hash(record.key.as_ref().unwrap()) % PARTITIONS.cast_unsigned();
                assert_eq!(predicted, record.partition.cast_unsigned(), "{partitioner:?}");
            }
        }
    }

    #[test]
    fn g3_topics_that_rows_name_do_not_grow_what_is_known() {
        let mut all = counted();
        let first_write = first(&mut all, K);
        all.begun(ticket(1), first_write);
        for number in 0..3 * TOPICS_MAX {
            let name = number.to_string();
            assert_eq!(all.admit(&name, Some(K), None), Admission::Count);
            if number % 3 == 0 {
                all.counted(&name, 2);
                assert!(matches!(all.admit(&name, Some(K), None), Admission::First(_)));
            }
        }
        assert!(all.names.len() <= TOPICS_MAX && all.topics.len() <= TOPICS_MAX + 1);
        for number in (0..9 * TOPICS_MAX).step_by(3) {
            all.counted(&format!("more-{number}"), 1);
        }
        assert!(all.names.len() <= TOPICS_MAX && all.topics.len() <= TOPICS_MAX + 1);
        // Upholds G2: a partition whose first write is in flight is not forgotten.
        assert_eq!(all.admit("t", Some(K), None), Admission::Wait);
        all.reported(ticket(1), stored(K, home(first_write)));
        assert_eq!(all.admit("t", Some(K), None), Admission::Free);
    }

    #[test]
    fn what_has_no_order_is_free() {
        let mut all = counted();
        assert_eq!(all.admit("t", None, None), Admission::Free);
        let mut all = FirstWriteGate::new(Partitioner::Random);
        assert_eq!(all.admit("t", Some(K), None), Admission::Count);
        all.counted("t", 0);
        assert_eq!(all.admit("t", Some(K), None), Admission::Free);
    }
}
