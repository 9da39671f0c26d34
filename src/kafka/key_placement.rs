//! Compares the partitions of a topic's newest records with the partitioners' choices. A change of
//! partitioner moves keys, and loses their order at that point.

use std::time::{Duration, Instant};

use super::key_hash::hash_of;
use super::reader::{Reader, ReaderError, ReaderEvent, ReaderSpec};
use super::settings::KafkaSpec;
use super::start_offset::StartOffset;
use super::topics::partition_count;
use postrider_core::record::Partitioner;

/// So many that no other partitioner fits by chance.
const SAMPLE: i64 = 100;
const SLICE: Duration = Duration::from_millis(100);

/// A partitioner per hash.
const HASHES: [Partitioner; 3] =
    [Partitioner::Murmur2Random, Partitioner::ConsistentRandom, Partitioner::Fnv1aRandom];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlacement {
    pub partitions: usize,
    /// Examined records with a key.
    pub keyed: usize,
    /// Per hash, the number of records in its partition.
    fits: [usize; HASHES.len()],
}

impl KeyPlacement {
    const fn of_partitions(partitions: usize) -> Self {
        Self { partitions, keyed: 0, fits: [0; HASHES.len()] }
    }

    fn add(&mut self, partition: i32, key: Option<&[u8]>) {
        // Some partitioners place such keys at random.
        let Some(key) = key.filter(|key| !key.is_empty()) else { return };
        self.keyed += 1;
        for (fits, partitioner) in self.fits.iter_mut().zip(HASHES) {
            let hash = hash_of(partitioner).map(|hash| hash(key) as usize);
            let home = hash.and_then(|hash| hash.checked_rem(self.partitions));
            *fits += usize::from(home.is_some() && home == usize::try_from(partition).ok());
        }
    }

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

    /// The only partitioner that fits every record, in its random variant.
    pub fn placed_by(&self) -> Option<Partitioner> {
        let all = HASHES.into_iter().filter(|_| self.keyed > 0);
        let mut fitting = all.filter(|partitioner| self.elsewhere(*partitioner) == 0);
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

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
        let mut single = KeyPlacement::of_partitions(1);
        single.add(0, Some(b"k"));
        assert_eq!((single.elsewhere(Partitioner::Murmur2Random), single.placed_by()), (0, None));
    }
}
