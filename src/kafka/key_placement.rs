//! Where the newest records of a topic lie, compared with where partitioners put their keys: whoever changes over to
//! another partitioner moves keys, and loses their order at that point.
//!
//! Input: a [`KafkaSpec`], a topic, a deadline. Output: [`KeyPlacement`]. Invariant: at most [`SAMPLE`] records of each
//! partition are read, nothing is written, and no group is joined; records whose key decides nothing are not counted.

use std::time::{Duration, Instant};

use super::key_hash::hash_of;
use super::reader::{Reader, ReaderError, ReaderEvent, ReaderSpec};
use super::settings::KafkaSpec;
use super::start_offset::StartOffset;
use super::topics::partition_count;
use postrider_core::record::Partitioner;

/// Records of each partition: enough that no other partitioner fits by chance, and read in a moment.
const SAMPLE: i64 = 100;
/// Longest single wait for a record.
const SLICE: Duration = Duration::from_millis(100);

/// One partitioner of each hash: which partition it gives to a key.
const HASHES: [Partitioner; 3] =
    [Partitioner::Murmur2Random, Partitioner::ConsistentRandom, Partitioner::Fnv1aRandom];

/// Where keys lie in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlacement {
    /// Partitions of the topic.
    pub partitions: usize,
    /// Records with a key that were looked at.
    pub keyed: usize,
    /// How many of them lie where a partitioner of this hash puts their key.
    fits: [usize; HASHES.len()],
}

impl KeyPlacement {
    const fn of_partitions(partitions: usize) -> Self {
        Self { partitions, keyed: 0, fits: [0; HASHES.len()] }
    }

    /// Takes in a record.
    fn add(&mut self, partition: i32, key: Option<&[u8]>) {
        // What lies anywhere under one of the partitioners tells nothing.
        let Some(key) = key.filter(|key| !key.is_empty()) else { return };
        self.keyed += 1;
        for (fits, partitioner) in self.fits.iter_mut().zip(HASHES) {
            let hash = hash_of(partitioner).map(|hash| hash(key) as usize);
            let home = hash.and_then(|hash| hash.checked_rem(self.partitions));
            *fits += usize::from(home.is_some() && home == usize::try_from(partition).ok());
        }
    }

    /// How many records lie elsewhere than this partitioner puts their keys; none for one that draws.
    pub fn elsewhere(&self, partitioner: Partitioner) -> usize {
        let [murmur2, crc32, fnv1a] = self.fits;
        self.keyed
            - match partitioner {
                Partitioner::Murmur2 | Partitioner::Murmur2Random => murmur2,
                Partitioner::Consistent | Partitioner::ConsistentRandom => crc32,
                Partitioner::Fnv1a | Partitioner::Fnv1aRandom => fnv1a,
                Partitioner::Random => self.keyed,
            }
    }

    /// The partitioner that has placed every record, if there is just one; of those with this hash the one that draws
    /// for records without a key.
    pub fn placed_by(&self) -> Option<Partitioner> {
        let all = HASHES.into_iter().filter(|_| self.keyed > 0);
        let mut fitting = all.filter(|partitioner| self.elsewhere(*partitioner) == 0);
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

/// Looks at the end of a topic that exists. What was not read by the deadline is left out.
pub fn key_placement(
    kafka: &KafkaSpec,
    topic: &str,
    deadline: Instant,
) -> Result<KeyPlacement, ReaderError> {
    let count = partition_count(kafka, topic);
    let count = count.map_err(|error| ReaderError::Client(error.to_string()))?;
    let Some(partitions) = count else {
        return Err(ReaderError::UnknownTopic(topic.to_owned()));
    };
    let mut placement = KeyPlacement::of_partitions(partitions);
    let left = || deadline.saturating_duration_since(Instant::now());
    let spec = ReaderSpec { start: StartOffset::Last(SAMPLE), ..ReaderSpec::whole(&[topic]) };
    let mut reader = Reader::open(kafka, spec, left())?;
    while !left().is_zero() {
        match reader.next(left().min(SLICE))? {
            ReaderEvent::Record(record) => placement.add(record.partition(), record.key()),
            ReaderEvent::Idle => {}
            ReaderEvent::End => break,
        }
    }
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(by: Partitioner, keys: usize) -> KeyPlacement {
        let mut placement = KeyPlacement::of_partitions(7);
        let hash = hash_of(by).unwrap();
        for key in 0..keys {
            let key = format!("key-{key}");
            let partition = i32::try_from(hash(key.as_bytes()) % 7).unwrap();
            placement.add(partition, Some(key.as_bytes()));
        }
        placement
    }

    #[test]
    fn who_has_placed_the_records_is_known_from_where_they_lie() {
        for by in HASHES {
            let placement = placed(by, 50);
            assert_eq!((placement.keyed, placement.elsewhere(by)), (50, 0));
            assert_eq!(placement.placed_by(), Some(by));
            let others = HASHES.into_iter().filter(|other| *other != by);
            assert!(others.into_iter().all(|other| placement.elsewhere(other) > 25));
        }
        assert_eq!(placed(Partitioner::Murmur2, 50).elsewhere(Partitioner::Murmur2Random), 0);
        assert_eq!(placed(Partitioner::Fnv1a, 50).elsewhere(Partitioner::Random), 0);
    }

    #[test]
    fn what_decides_nothing_is_not_counted() {
        let mut placement = KeyPlacement::of_partitions(3);
        placement.add(0, None);
        placement.add(1, Some(b""));
        assert_eq!((placement.keyed, placement.placed_by()), (0, None));
        // All in one partition: every partitioner fits.
        let mut single = KeyPlacement::of_partitions(1);
        single.add(0, Some(b"k"));
        assert_eq!((single.elsewhere(Partitioner::Murmur2Random), single.placed_by()), (0, None));
    }
}
