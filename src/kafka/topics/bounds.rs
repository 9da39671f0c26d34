//! Reads the first and the last offset of each partition. Brokers without settings, for example the
//! embedded one, count as not compacted.

use std::collections::BTreeMap;

use super::metadata::{Inquiry, TopicMetadata};
use super::{KafkaSpec, TopicsError, is_compacted};
use crate::reader::Isolation;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicBounds {
    pub partitions: Vec<PartitionBounds>,
    /// True if only a key's newest record is certainly kept.
    pub is_compacted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionBounds {
    pub partition: i32,
    /// Above 0 if records were removed.
    pub first: u64,
    /// Next offset, including transaction markers.
    pub end: u64,
    /// End for readers of committed records: below `end` while a transaction is open.
    pub stable: u64,
}

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
