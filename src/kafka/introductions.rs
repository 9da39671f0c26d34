//! A producer introduces itself to each partition with one record, and follows it with others only
//! when that one is stored.
//!
//! Enters: the records about to be sent with a key, and what the broker reported of them. Leaves:
//! whether a record may go now. What always holds: until a partition has stored a record of this
//! session, at most one record with a key is under way to it. Upholds G2. Called by `producer`.
//!
//! Why: Kafka takes whatever sequence number comes first from a producer that a partition knows
//! nothing of. When a leader has just been elected it can refuse a session's first batch and take
//! the second, already under way; the second's records then stand before the first's (seen on
//! Apache Kafka 4.3 with topics that had just come into being). Once one batch is stored, every
//! leader to come knows the producer from the log, and refuses what arrives out of turn.
//!
//! Which partition a record will go to is foretold as the library will decide it: the key's hash,
//! modulo the number of partitions. The number is asked for after a topic's first record is stored;
//! until then the topic as a whole counts as one partition. Foretelling wrongly, after partitions
//! were added, costs the protection and nothing else, and is noticed.

use std::collections::HashMap;

use crate::ledger::Ticket;

/// Whether a record may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may: its partition knows us, or it has no place in any order.
    Free,
    /// It may, and introduces us; tell [`Introductions::begun`] when it is sent.
    First(Place),
    /// The introduction is under way.
    Wait,
    /// Find the topic's number of partitions, tell [`Introductions::counted`], and ask again.
    Count,
}

/// Where an introduction goes: a topic and, if its partitions are counted, one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    topic: usize,
    partition: Option<usize>,
}

/// What a partition, or an uncounted topic, knows of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Acquaintance {
    #[default]
    None,
    UnderWay,
    Made,
}

#[derive(Debug, Default)]
struct Topic {
    /// Of the topic as long as its partitions are not counted.
    whole: Acquaintance,
    partitions: Vec<Acquaintance>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Introductions {
    hash: Option<fn(&[u8]) -> u32>,
    names: HashMap<String, usize>,
    topics: Vec<Topic>,
    under_way: Vec<(Ticket, Place)>,
}

impl Introductions {
    /// Foretells as this partitioner of the library decides; `random` leaves nothing to foretell.
    pub(super) fn new(partitioner: &str) -> Self {
        let hash: Option<fn(&[u8]) -> u32> = match partitioner {
            "murmur2" | "murmur2_random" => Some(murmur2),
            "consistent" | "consistent_random" => Some(crc32fast::hash),
            "fnv1a" | "fnv1a_random" => Some(fnv1a),
            _ => None,
        };
        Self { hash, ..Self::default() }
    }

    /// Whether a record may be sent now. Records without a key always may: order is promised to
    /// keys.
    pub(super) fn admit(
        &mut self,
        name: &str,
        key: Option<&[u8]>,
        partition: Option<i32>,
    ) -> Admission {
        let (Some(hash), Some(key)) = (self.hash, key) else { return Admission::Free };
        let topic = self.names.get(name).copied().unwrap_or_else(|| self.add(name));
        let Some(Topic { whole, partitions }) = self.topics.get(topic) else {
            return Admission::Free;
        };
        if partitions.is_empty() {
            return match whole {
                Acquaintance::None => Admission::First(Place { topic, partition: None }),
                Acquaintance::UnderWay => Admission::Wait,
                Acquaintance::Made => Admission::Count,
            };
        }
        let chosen = partition.and_then(|partition| usize::try_from(partition).ok());
        let partition = chosen.unwrap_or_else(|| hash(key) as usize % partitions.len());
        match partitions.get(partition) {
            Some(Acquaintance::None) => {
                Admission::First(Place { topic, partition: Some(partition) })
            }
            Some(Acquaintance::UnderWay) => Admission::Wait,
            Some(Acquaintance::Made) | None => Admission::Free,
        }
    }

    fn add(&mut self, name: &str) -> usize {
        let topic = self.topics.len();
        self.names.insert(name.to_owned(), topic);
        self.topics.push(Topic::default());
        topic
    }

    /// A record that was admitted as the first is sent.
    pub(super) fn begun(&mut self, ticket: Ticket, place: Place) {
        self.set(place, Acquaintance::UnderWay);
        self.under_way.push((ticket, place));
    }

    /// The number of a topic's partitions; 0 if it could not be found, then the topic is introduced
    /// to once more as a whole.
    pub(super) fn counted(&mut self, name: &str, partitions: usize) {
        if let Some(topic) = self.names.get(name).and_then(|topic| self.topics.get_mut(*topic)) {
            topic.whole = Acquaintance::None;
            topic.partitions = vec![Acquaintance::None; partitions];
        }
    }

    /// Whether no introduction is under way, so that no report matters.
    pub(super) fn are_settled(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The broker's answer for any record.
    pub(super) fn reported(&mut self, name: &str, ticket: Ticket, stored_in: Option<i32>) {
        let Some(&topic) = self.names.get(name) else { return };
        let partition = stored_in.and_then(|partition| usize::try_from(partition).ok());
        let ours = |(of, place): &(Ticket, Place)| *of == ticket && place.topic == topic;
        // Tickets are shared by records of one transaction and size: prefer the one foretold.
        let exact = self
            .under_way
            .iter()
            .position(|introduction| ours(introduction) && introduction.1.partition == partition);
        let Some(found) = exact.or_else(|| self.under_way.iter().position(ours)) else { return };
        let (_, place) = self.under_way.swap_remove(found);
        match (partition, place.partition) {
            // Refused: it introduced nobody.
            (None, _) => self.set(place, Acquaintance::None),
            (Some(_), None) => self.set(place, Acquaintance::Made),
            (Some(actual), Some(foretold)) if actual == foretold => {
                self.set(place, Acquaintance::Made);
            }
            (Some(_), Some(_)) => self.recount(topic),
        }
    }

    /// The foretelling was wrong: partitions were added.
    fn recount(&mut self, topic: usize) {
        self.under_way.retain(|(_, place)| place.topic != topic);
        if let Some(topic) = self.topics.get_mut(topic) {
            *topic = Topic { whole: Acquaintance::Made, partitions: Vec::new() };
        }
    }

    fn set(&mut self, place: Place, acquaintance: Acquaintance) {
        let Some(topic) = self.topics.get_mut(place.topic) else { return };
        let known = match place.partition {
            None => Some(&mut topic.whole),
            Some(partition) => topic.partitions.get_mut(partition),
        };
        if let Some(known) = known {
            *known = acquaintance;
        }
    }
}

/// Java's hash of keys (`org.apache.kafka.common.utils.Utils.murmur2`), as a positive number.
fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const MIX: u32 = 0x5bd1_e995;
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MIX);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MIX) ^ word.wrapping_mul(MIX);
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |tail, byte| tail << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    (hash ^ hash >> 15) & 0x7fff_ffff
}

/// Sarama's hash of keys: FNV-1a, and of that the absolute value.
fn fnv1a(key: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    key.iter().fold(0x811c_9dc5, step).cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;
    use crate::kafka::embedded::Broker;
    use crate::kafka::{KafkaSpec, Reader, ReaderSpec};

    const KEY: Option<&[u8]> = Some(b"k");

    fn ticket(transaction: u32) -> Ticket {
        Ticket::new(transaction, 100)
    }

    fn first(all: &mut Introductions, key: &[u8]) -> Place {
        match all.admit("t", Some(key), None) {
            Admission::First(place) => place,
            other => panic!("{other:?}"),
        }
    }

    /// A topic of three partitions, counted after one record.
    fn counted() -> Introductions {
        let mut all = Introductions::new("murmur2_random");
        let place = first(&mut all, b"k");
        all.begun(ticket(1), place);
        assert_eq!(all.admit("t", Some(b"other"), None), Admission::Wait);
        all.reported("t", ticket(1), Some(2));
        assert_eq!(all.admit("t", KEY, None), Admission::Count);
        all.counted("t", 3);
        all
    }

    #[test]
    fn g2_a_partition_takes_one_record_until_it_has_stored_one() {
        let mut all = counted();
        let place = first(&mut all, b"k");
        all.begun(ticket(2), place);
        assert_eq!(all.admit("t", KEY, None), Admission::Wait);
        let elsewhere: Vec<_> = (0..20_u8).map(|key| all.admit("t", Some(&[key]), None)).collect();
        assert!(elsewhere.iter().any(|admission| matches!(admission, Admission::First(_))));
        all.reported("t", ticket(9), Some(0));
        assert_eq!(all.admit("t", KEY, None), Admission::Wait, "another record's report");
        let Some(partition) = place.partition else { panic!("counted") };
        all.reported("t", ticket(2), i32::try_from(partition).ok());
        assert_eq!(all.admit("t", KEY, None), Admission::Free);
    }

    #[test]
    fn a_refused_record_introduces_nobody() {
        let mut all = counted();
        let place = first(&mut all, b"k");
        all.begun(ticket(2), place);
        all.reported("t", ticket(2), None);
        assert_eq!(first(&mut all, b"k"), place);
    }

    #[test]
    fn partitions_that_were_added_are_noticed_and_block_nothing() {
        let mut all = counted();
        let place = first(&mut all, b"k");
        all.begun(ticket(2), place);
        let elsewhere = place.partition.map_or(0, |partition| (partition + 1) % 3);
        all.reported("t", ticket(2), i32::try_from(elsewhere).ok());
        assert_eq!(all.admit("t", KEY, None), Admission::Count);
        all.counted("t", 0);
        assert_eq!(first(&mut all, b"k").partition, None);
    }

    /// The library decides; we only foretell.
    #[test]
    fn keys_go_where_it_was_foretold() {
        const PARTITIONS: i32 = 7;
        let limit = Duration::from_secs(20);
        for partitioner in ["murmur2", "consistent_random", "fnv1a_random"] {
            let broker = Broker::start(1, &[("t", PARTITIONS)]).unwrap();
            let mut spec = KafkaSpec::of_brokers(&broker.bootstrap());
            spec.partitioner = partitioner.into();
            let producer: BaseProducer = spec.producer_config().unwrap().create().unwrap();
            for length in 1..60 {
                let key: Vec<u8> = (0..length).map(|byte: u8| byte.wrapping_mul(37)).collect();
                producer.send(BaseRecord::to("t").key(&key).payload("")).unwrap();
            }
            producer.flush(limit).unwrap();
            let mut reader = Reader::open(&spec, ReaderSpec::whole(&["t"]), limit).unwrap();
            let stored = reader.collect(59, limit).unwrap();
            let hash = Introductions::new(partitioner).hash.unwrap();
            for record in &stored {
                let foretold = hash(record.key.as_ref().unwrap()) % PARTITIONS.cast_unsigned();
                assert_eq!(foretold, record.partition.cast_unsigned(), "{partitioner}");
            }
        }
    }

    #[test]
    fn what_has_no_order_is_free() {
        let mut all = Introductions::new("murmur2_random");
        assert_eq!(all.admit("t", None, None), Admission::Free);
        assert_eq!(Introductions::new("random").admit("t", KEY, None), Admission::Free);
    }

    /// From librdkafka's and Kafka's own tests (`rdmurmur2.c`, `UtilsTest.java`).
    #[test]
    fn keys_hash_as_in_java() {
        for (key, hash) in [
            ("kafka", 0xd067_cf64_u32),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("PreAmbleWillBeRemoved,ThePrePartThatIs", 0x7842_4f1c),
            ("reAmbleWillBeRemoved,ThePrePartThatIs", 0x4a62_b377),
            ("", 0x106e_08d9),
        ] {
            let ours = murmur2(key.as_bytes());
            assert_eq!(ours, hash & 0x7fff_ffff, "{key}");
        }
    }
}
