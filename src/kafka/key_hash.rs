//! librdkafka's key hashes: the remainder by the number of partitions is the partition.
//!
//! Keys that a partitioner places at random (null, and for `consistent_random` the empty one) must
//! not be passed.

use postrider_core::record::Partitioner;

pub(super) type KeyHash = fn(&[u8]) -> u32;

/// `None` for a random partitioner.
pub(super) fn hash_of(partitioner: Partitioner) -> Option<KeyHash> {
    match partitioner {
        Partitioner::Murmur2 | Partitioner::Murmur2Random => Some(murmur2),
        Partitioner::Consistent | Partitioner::ConsistentRandom => Some(crc32fast::hash),
        Partitioner::Fnv1a | Partitioner::Fnv1aRandom => Some(fnv1a),
        Partitioner::Random => None,
    }
}

/// `org.apache.kafka.common.utils.Utils.murmur2`, as a positive number.
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

/// Sarama's key hash: the absolute value of FNV-1a.
fn fnv1a(key: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    key.iter().fold(0x811c_9dc5, step).cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `rdmurmur2.c` and `UtilsTest.java`.
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
