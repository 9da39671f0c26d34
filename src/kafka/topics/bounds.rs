//! What a topic holds: the first and the last offset of each partition, and whether older records of a key may
//! be gone.
//!
//! Input: a [`KafkaSpec`] and names. Output: [`TopicBounds`], or none for a topic that does not exist. Of brokers
//! that cannot be asked for settings, such as the embedded one, a topic counts as not compacted.

use std::collections::BTreeMap;

use super::metadata::{Inquiry, TopicMetadata};
use super::{KafkaSpec, TopicsError, is_compacted};
use crate::reader::Isolation;

/// What a topic holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicBounds {
    /// In the order of their numbers.
    pub partitions: Vec<PartitionBounds>,
    /// Of a key only the newest record is sure to be kept.
    pub is_compacted: bool,
}

/// What a partition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionBounds {
    /// Its number.
    pub partition: i32,
    /// The first offset that is kept; above 0 if records were removed.
    pub first: u64,
    /// The offset of the next record, markers of transactions counted.
    pub end: u64,
    /// Readers of committed records see nothing from here on: below `end` while a transaction is open, or has just
    /// been committed and its markers are not written yet.
    pub stable: u64,
}

/// Looks at topics; those that do not exist are not in the answer.
pub fn topic_bounds(
    kafka: &KafkaSpec,
    topics: &[String],
) -> Result<BTreeMap<String, TopicBounds>, TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    let mut found = BTreeMap::new();
    for topic in topics {
        let is_compacted = match inquiry.look(topic) {
            Ok(TopicMetadata::Topic(facts)) => is_compacted(&facts),
            Ok(TopicMetadata::Missing) => continue,
            Ok(TopicMetadata::Unauthorised) => {
                return Err(TopicsError::Unauthorised { topic: topic.clone() });
            }
            Err(TopicsError::Unsupported) => false,
            Err(error) => return Err(error),
        };
        let Some(mut numbers) = inquiry.partitions(topic)? else { continue };
        numbers.sort_unstable();
        let mut partitions = Vec::with_capacity(numbers.len());
        for partition in numbers {
            let (first, end) = inquiry.watermarks(topic, partition, Isolation::Uncommitted)?;
            let (_, stable) = inquiry.watermarks(topic, partition, Isolation::Committed)?;
            partitions.push(PartitionBounds { partition, first, end, stable });
        }
        found.insert(topic.clone(), TopicBounds { partitions, is_compacted });
    }
    Ok(found)
}
