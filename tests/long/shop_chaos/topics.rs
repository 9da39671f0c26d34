//! The topics at the end of a run.
//!
//! Input: a broker. Output: all records of the shop's topics, the dead letters, and the lag of each
//! consumer.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::shop_chaos::audit::DeadLetter;
use crate::shop_chaos::consumers::{self, CONSUMERS, ConsumerTopics};
use crate::shop_chaos::poison;
use crate::shop_chaos::stage::PARTITIONS;
use support::topic::{self, Stored};

/// The relay's dead-letter topic; it must stay empty.
pub(crate) const UNROUTED: &str = "relay.dead-letters";

/// How long the broker may take to tell offsets.
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// All records of the shop's topics, duplicates and poison included.
pub(crate) fn read(bootstrap: &str) -> Vec<Stored> {
    topic::read(bootstrap, &consumers::topics())
}

/// Records behind the offsets that the consumers have committed, for each of their partitions.
pub(crate) fn lag(bootstrap: &str, records: &[Stored]) -> BTreeMap<String, usize> {
    let mut lag = BTreeMap::new();
    for reader in &CONSUMERS {
        let committed = committed(bootstrap, reader);
        for record in records {
            let place = (record.topic.clone(), record.partition);
            if committed.get(&place).is_some_and(|&offset| record.offset >= offset) {
                let (topic, partition) = place;
                let whose = format!("{} in {topic} {partition}", reader.name);
                *lag.entry(whose).or_default() += 1;
            }
        }
    }
    lag
}

/// Committed offsets by topic and partition; 0 where there is none.
fn committed(bootstrap: &str, reader: &ConsumerTopics) -> BTreeMap<(String, i32), i64> {
    let consumer: BaseConsumer =
        topic::client(bootstrap).set("group.id", reader.name).create().unwrap();
    let mut wanted = TopicPartitionList::new();
    for name in reader.topics {
        wanted.add_partition_range(name, 0, PARTITIONS - 1);
    }
    let found = consumer.committed_offsets(wanted, ASK_LIMIT).unwrap();
    let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
    let elements = found.elements();
    let places = elements.iter().map(|element| {
        ((element.topic().to_owned(), element.partition()), offset(element.offset()))
    });
    places.collect()
}

/// All dead letters: by whom, and which poison.
pub(crate) fn letters(bootstrap: &str) -> Vec<DeadLetter> {
    let letters_of = |reader: &ConsumerTopics| {
        let records = topic::read(bootstrap, &[consumers::dead_letters_of(reader)]);
        records.into_iter().map(|record| {
            let number = record.header(poison::HEADER).and_then(|number| number.parse().ok());
            (reader.name.to_owned(), number)
        })
    };
    let unrouted = topic::read(bootstrap, &[UNROUTED.to_owned()]);
    let unrouted = unrouted.iter().map(|_| ("the relay".to_owned(), None));
    CONSUMERS.iter().flat_map(letters_of).chain(unrouted).collect()
}
