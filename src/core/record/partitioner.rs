//! Defines [`Partitioner`]: the setting that says how a record's key chooses its partition.
//!
//! The words are librdkafka's; `murmur2_random` agrees with the default of Java's producers.

use crate::route::keyword_enum;

keyword_enum!(
    /// How a key chooses its partition; librdkafka's names.
    Partitioner {
        /// Java's default: murmur2, random for null keys.
        Murmur2Random = "murmur2_random",
        /// Murmur2, null keys to one partition.
        Murmur2 = "murmur2",
        /// CRC32, random for empty and null keys.
        ConsistentRandom = "consistent_random",
        /// CRC32, empty and null keys to one partition.
        Consistent = "consistent",
        /// FNV-1a, random for null keys.
        Fnv1aRandom = "fnv1a_random",
        /// FNV-1a, null keys to one partition.
        Fnv1a = "fnv1a",
        /// Any partition: gives up order per key.
        Random = "random",
    }
);
