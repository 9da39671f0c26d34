//! Asks the brokers for lag, ends of partitions, the group's offsets, and missing topics.
//! Invariant: each request has a time limit.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::MetadataTopic;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};

use super::assignments::{Assignments, Partition};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Watermarks {
    starts: BTreeMap<Partition, i64>,
    ends: BTreeMap<Partition, i64>,
}

impl Watermarks {
    /// Without partitions, only checks that the brokers answer. librdkafka's cached watermarks may
    /// be old, because paused partitions are not fetched.
    pub(super) fn ask<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
        topics: &[String],
        (held, unknown): (Vec<Partition>, Vec<Partition>),
    ) -> KafkaResult<Self> {
        if held.is_empty() {
            let topic = topics.first().map(String::as_str);
            return consumer.fetch_metadata(topic, REQUEST_TIMEOUT).map(|_| Self::default());
        }
        let mut starts = BTreeMap::new();
        if !unknown.is_empty() {
            starts = committed_offsets(consumer, &unknown)?;
        }
        let fresh: Vec<Partition> =
            unknown.into_iter().filter(|partition| !starts.contains_key(partition)).collect();
        if !fresh.is_empty() {
            starts.append(&mut watermark_offsets(consumer, &fresh, Offset::Beginning)?);
        }
        Ok(Self { starts, ends: watermark_offsets(consumer, &held, Offset::End)? })
    }

    pub(super) fn lag(&self, assignments: &mut Assignments) -> u64 {
        assignments.set_start(&self.starts);
        assignments.lag(&self.ends)
    }
}

#[derive(Debug)]
pub(super) struct LogEnds {
    low: BTreeMap<Partition, i64>,
    high: BTreeMap<Partition, i64>,
}

impl LogEnds {
    pub(super) fn ask<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
        partitions: &[Partition],
    ) -> KafkaResult<Self> {
        let low = watermark_offsets(consumer, partitions, Offset::Beginning)?;
        Ok(Self { low, high: watermark_offsets(consumer, partitions, Offset::End)? })
    }

    pub(super) fn of(&self, partition: &Partition) -> Option<(i64, i64)> {
        Some((*self.low.get(partition)?, *self.high.get(partition)?))
    }
}

/// Omits partitions without a committed offset.
pub(super) fn committed_offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[Partition],
) -> KafkaResult<BTreeMap<Partition, i64>> {
    let asked = list(partitions, Offset::Invalid)?;
    let answer = consumer.committed_offsets(asked, REQUEST_TIMEOUT)?;
    // An offset that could not be read differs from a missing offset.
    answer.elements().iter().try_for_each(TopicPartitionListElem::error)?;
    Ok(known(&answer))
}

pub(super) fn partitions_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topics: &[String],
) -> KafkaResult<Vec<Partition>> {
    let mut partitions = Vec::new();
    for topic in topics {
        let metadata = consumer.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
        let found = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        partitions.extend(found.map(|partition| (topic.clone(), partition.id())));
    }
    Ok(partitions)
}

/// Returns none if the brokers do not answer.
pub(super) fn missing_topics<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topics: &[String],
) -> Vec<String> {
    let Ok(all) = consumer.fetch_metadata(None, REQUEST_TIMEOUT) else { return Vec::new() };
    let is_shown = |name: &str| {
        let mut shown = all.topics().iter();
        shown.any(|topic| topic.name() == name && !topic.partitions().is_empty())
    };
    topics.iter().filter(|topic| !is_shown(topic)).cloned().collect()
}

/// Sends one request per broker: librdkafka sends the logical offset as the timestamp of ListOffsets,
/// where -2 and -1 mean the two watermarks (librdkafka 2.12, `rd_kafka_offsets_for_times`). Under
/// `read_committed` the end is the last stable offset.
fn watermark_offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[Partition],
    which: Offset,
) -> KafkaResult<BTreeMap<Partition, i64>> {
    let answer = consumer.offsets_for_times(list(partitions, which)?, REQUEST_TIMEOUT)?;
    Ok(known(&answer))
}

pub(super) fn list(partitions: &[Partition], offset: Offset) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition_offset(topic, *partition, offset)?;
    }
    Ok(list)
}

fn known(list: &TopicPartitionList) -> BTreeMap<Partition, i64> {
    let elements = list.elements();
    let known = elements.iter().filter(|element| element.error().is_ok());
    known
        .filter_map(|element| match element.offset() {
            Offset::Offset(offset) => {
                Some(((element.topic().to_owned(), element.partition()), offset))
            }
            _ => None,
        })
        .collect()
}
