//! The topics, as they lie there in the end.
//!
//! Enters: a broker. Leaves: all records of the shop's topics, the dead letters, and how many records
//! a consumer has not finished with.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::shop_chaos::audit::Letter;
use crate::shop_chaos::poison;
use crate::shop_chaos::stage::PARTITIONS;
use crate::shop_chaos::who::{self, READERS, Reader};
use support::topic::{self, Stored};

/// Where the relay lays rows that it cannot route; there must be none.
pub(crate) const UNROUTED: &str = "relay.dead-letters";

/// How long the broker may take to tell offsets.
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// All records of the shop's topics, echoes and poison included.
pub(crate) fn read(bootstrap: &str) -> Vec<Stored> {
    topic::read(bootstrap, &who::topics())
}

/// Records behind the offsets that the consumers have committed, for each of their partitions.
pub(crate) fn lag(bootstrap: &str, records: &[Stored]) -> BTreeMap<String, usize> {
    let mut lag = BTreeMap::new();
    for reader in &READERS {
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

/// By topic and partition, where a consumer would go on; 0 where it has never been.
fn committed(bootstrap: &str, reader: &Reader) -> BTreeMap<(String, i32), i64> {
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
pub(crate) fn letters(bootstrap: &str) -> Vec<Letter> {
    let letters_of = |reader: &Reader| {
        let records = topic::read(bootstrap, &[who::dead_letters_of(reader)]);
        records.into_iter().map(|record| {
            let number = record.header(poison::HEADER).and_then(|number| number.parse().ok());
            (reader.name.to_owned(), number)
        })
    };
    let unrouted = topic::read(bootstrap, &[UNROUTED.to_owned()]);
    let unrouted = unrouted.iter().map(|_| ("the relay".to_owned(), None));
    READERS.iter().flat_map(letters_of).chain(unrouted).collect()
}
