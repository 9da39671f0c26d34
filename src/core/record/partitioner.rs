//! Defines [`Partitioner`], with librdkafka's names.

use crate::route::keyword_enum;

keyword_enum!(
    /// How a key chooses its partition.
    Partitioner {
        /// Java's default: murmur2, random for null keys.
        Murmur2Random = "murmur2_random",
        /// Murmur2, one partition for null keys.
        Murmur2 = "murmur2",
        /// CRC32, random for empty and null keys.
        ConsistentRandom = "consistent_random",
        /// CRC32, one partition for empty and null keys.
        Consistent = "consistent",
        /// FNV-1a, random for null keys.
        Fnv1aRandom = "fnv1a_random",
        /// FNV-1a, one partition for null keys.
        Fnv1a = "fnv1a",
        /// Any partition, without order per key.
        Random = "random",
    }
);
