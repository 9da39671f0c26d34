//! One pass over a consumer's dead-letter topic.
//!
//! Enters: the topic's name and a [`Filter`]. Leaves: the letters that are meant, each knowing
//! whether it was sent again. What always holds: nothing is committed and no group is joined; the
//! letters that are meant are held in memory with their values. Called by `office`.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::courier::valueless;
use super::letter::receipt_of;
use super::office::SUFFIX;
use super::{DeadLetterError, Letter, Place, Record};

/// How long one question to a broker may take.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Brokers that are there and send nothing for this long, before the end is reached, have failed.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(100);

/// Which dead letters are meant; all that is given must hold. The default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Set aside for this reason.
    pub code: Option<String>,
    /// Received from this topic.
    pub topic: Option<String>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// With this id, as its header says it.
    pub id: Option<String>,
    /// Lying here; each must be there. Empty for anywhere.
    pub places: BTreeSet<Place>,
}

impl Filter {
    fn admits(&self, letter: &Letter) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        is(&self.code, Some(&letter.grounds.code))
            && is(&self.topic, Some(&letter.record.topic))
            && is(&self.event_type, letter.header("event_type"))
            && is(&self.id, letter.header("id"))
            && (self.places.is_empty() || self.places.contains(&letter.place))
    }
}

/// Reads all of the topic, and gives back what is meant in the order of places.
pub(super) fn read(
    settings: &[(String, String)],
    topic: &str,
    filter: &Filter,
) -> Result<Vec<Letter>, DeadLetterError> {
    let consumer = client(settings)?;
    let mut unfinished = begin(&consumer, topic)?;
    let (mut letters, mut retried) = (Vec::new(), HashSet::new());
    let mut heard = Instant::now();
    while !unfinished.is_empty() {
        match consumer.poll(TICK) {
            Some(Ok(message)) => {
                let record = Record::copy(&message);
                if let Some(place) = receipt_of(&record) {
                    retried.insert(place);
                } else if let Some(letter) = Letter::read(record)
                    && filter.admits(&letter)
                {
                    letters.push(letter);
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(unfinished.remove(&partition)),
            Some(Err(source @ KafkaError::MessageConsumptionFatal(_))) => {
                return Err(DeadLetterError::Read { topic: topic.to_owned(), source });
            }
            // Others pass, or end in silence.
            Some(Err(_)) | None if heard.elapsed() < SILENCE_LIMIT => continue,
            Some(Err(_)) | None => {
                let (topic, seconds) = (topic.to_owned(), SILENCE_LIMIT.as_secs());
                return Err(DeadLetterError::Silent { topic, seconds });
            }
        }
        heard = Instant::now();
    }
    for letter in &mut letters {
        letter.is_retried = retried.contains(&letter.place);
    }
    letters.sort_unstable_by_key(|letter| letter.place);
    let missing = filter.places.iter().find(|place| letters.iter().all(|it| it.place != **place));
    missing.map_or(Ok(letters), |&place| Err(DeadLetterError::Missing(place)))
}

fn client(settings: &[(String, String)]) -> Result<BaseConsumer, DeadLetterError> {
    let mut config = ClientConfig::new();
    for (name, value) in settings {
        config.set(name, value);
    }
    config
        // The library wants a name to assign partitions by hand; nothing is ever committed.
        .set("group.id", "postrider-reader")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("allow.auto.create.topics", "false")
        .set("enable.partition.eof", "true")
        .set_log_level(RDKafkaLogLevel::Critical);
    config.create().map_err(|error| DeadLetterError::Client(valueless(error)))
}

/// Assigns every partition from its beginning.
fn begin(consumer: &BaseConsumer, topic: &str) -> Result<BTreeSet<i32>, DeadLetterError> {
    let failed = |source| DeadLetterError::Metadata { topic: topic.to_owned(), source };
    let metadata = consumer.fetch_metadata(Some(topic), ASK_LIMIT).map_err(failed)?;
    let partitions: BTreeSet<i32> = metadata.topics().first().map_or_else(BTreeSet::new, |topic| {
        topic.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect()
    });
    if partitions.is_empty() {
        let all = consumer.fetch_metadata(None, ASK_LIMIT).map_err(failed)?;
        let names = all.topics().iter().filter_map(|topic| topic.name().strip_suffix(SUFFIX));
        return Err(DeadLetterError::NoLetters {
            consumer: topic.strip_suffix(SUFFIX).unwrap_or(topic).to_owned(),
            topic: topic.to_owned(),
            others: names.map(str::to_owned).collect(),
        });
    }
    let mut assignment = TopicPartitionList::new();
    for &partition in &partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).map_err(failed)?;
    }
    consumer.assign(&assignment).map_err(failed)?;
    Ok(partitions)
}
