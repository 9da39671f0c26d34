//! How many messages are left, as the brokers know it.
//!
//! Enters: what the member holds. Leaves: the number of messages after what is settled, or that the
//! brokers did not answer. What always holds: nobody waits longer than the limit for one question,
//! and there are three at most: one for the ends, two more where an assignment is new.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::membership::{Holdings, Partition};

/// How long one question to the brokers may take.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// What the brokers say of the partitions that are held.
#[derive(Debug, Default)]
pub(super) struct Ends {
    begins: BTreeMap<Partition, i64>,
    ends: BTreeMap<Partition, i64>,
}

impl Ends {
    /// Asks the brokers. With nothing held, whether they answer at all, about one of the `topics`.
    ///
    /// A member whose partitions are paused fetches nothing, so what it last heard of their ends with
    /// a fetch may be old; they are asked for.
    pub(super) fn ask<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
        topics: &[String],
        (held, unknown): (Vec<Partition>, Vec<Partition>),
    ) -> KafkaResult<Self> {
        if held.is_empty() {
            let topic = topics.first().map(String::as_str);
            return consumer.fetch_metadata(topic, ASK_LIMIT).map(|_| Self::default());
        }
        let mut begins = BTreeMap::new();
        if !unknown.is_empty() {
            let committed = consumer.committed_offsets(list(&unknown, Offset::Invalid)?, ASK_LIMIT);
            begins = known(&committed?);
        }
        let fresh: Vec<Partition> =
            unknown.into_iter().filter(|partition| !begins.contains_key(partition)).collect();
        if !fresh.is_empty() {
            begins.append(&mut limits(consumer, &fresh, Offset::Beginning)?);
        }
        Ok(Self { begins, ends: limits(consumer, &held, Offset::End)? })
    }

    /// Messages that are not settled.
    pub(super) fn behind(&self, holdings: &mut Holdings) -> u64 {
        holdings.begin(&self.begins);
        holdings.behind(&self.ends)
    }
}

/// Those of `topics` that the brokers do not show us; none where they do not answer.
pub(super) fn unseen<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topics: &[String],
) -> Vec<String> {
    let Ok(all) = consumer.fetch_metadata(None, ASK_LIMIT) else { return Vec::new() };
    let is_shown = |name: &str| {
        let mut shown = all.topics().iter();
        shown.any(|topic| topic.name() == name && !topic.partitions().is_empty())
    };
    topics.iter().filter(|topic| !is_shown(topic)).cloned().collect()
}

/// The library sends the offset as the time that is asked for, and the protocol has the two limits
/// as times of their own, so that one question does for all partitions of a broker. Under
/// `read_committed` the end is that of what is committed.
/// Source: Kafka's protocol, ListOffsets; librdkafka 2.12, `rd_kafka_offsets_for_times`.
fn limits<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[Partition],
    which: Offset,
) -> KafkaResult<BTreeMap<Partition, i64>> {
    let answer = consumer.offsets_for_times(list(partitions, which)?, ASK_LIMIT)?;
    Ok(known(&answer))
}

fn list(partitions: &[Partition], offset: Offset) -> KafkaResult<TopicPartitionList> {
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
