//! Where a reader begins in each partition.
//!
//! Enters: a [`Start`] and the partitions. Leaves: an offset for each. The end is found out before
//! reading begins, so that whatever is written after that is read. Called by `reader`.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::reader::ReaderError;
use super::start::Start;

/// Between two attempts, and the least that one is given.
const SLICE: Duration = Duration::from_millis(100);

fn client(error: &KafkaError) -> ReaderError {
    ReaderError::Client(error.to_string())
}

/// Gives each partition its first offset.
pub(super) fn place<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    mut wanted: TopicPartitionList,
    start: Start,
    deadline: Instant,
) -> Result<TopicPartitionList, ReaderError> {
    let offset = match start {
        Start::Beginning => Offset::Beginning,
        Start::Last(count) => Offset::OffsetTail(count),
        Start::Offset(offset) => Offset::Offset(offset),
        Start::End => return at_the_end(consumer, wanted, deadline),
        Start::Time(ms) => return from_time(consumer, wanted, ms, deadline),
    };
    wanted.set_all_offsets(offset).map_err(|error| client(&error))?;
    Ok(wanted)
}

fn at_the_end<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    wanted: TopicPartitionList,
    deadline: Instant,
) -> Result<TopicPartitionList, ReaderError> {
    for mut element in wanted.elements() {
        let (topic, partition) = (element.topic().to_owned(), element.partition());
        let end = loop {
            let rest = deadline.saturating_duration_since(Instant::now()).max(SLICE);
            match consumer.fetch_watermarks(&topic, partition, rest) {
                Ok((_, end)) => break end,
                Err(error) if Instant::now() > deadline => return Err(client(&error)),
                // A topic that has just come into being may have no leader yet.
                Err(_) => std::thread::sleep(SLICE),
            }
        };
        element.set_offset(Offset::Offset(end)).map_err(|error| client(&error))?;
    }
    Ok(wanted)
}

fn from_time<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    mut wanted: TopicPartitionList,
    ms: i64,
    deadline: Instant,
) -> Result<TopicPartitionList, ReaderError> {
    wanted.set_all_offsets(Offset::Offset(ms)).map_err(|error| client(&error))?;
    let rest = deadline.saturating_duration_since(Instant::now()).max(SLICE);
    let mut found = consumer.offsets_for_times(wanted, rest).map_err(|error| client(&error))?;
    let later: Vec<(String, i32)> = found
        .elements()
        .iter()
        .filter(|element| !matches!(element.offset(), Offset::Offset(_)))
        .map(|element| (element.topic().to_owned(), element.partition()))
        .collect();
    for (topic, partition) in later {
        found
            .set_partition_offset(&topic, partition, Offset::End)
            .map_err(|error| client(&error))?;
    }
    Ok(found)
}
