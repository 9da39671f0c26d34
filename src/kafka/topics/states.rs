//! Reads the state of topics for `postrider doctor`: visibility, rights, and lagging replicas.
//! Queries create no topic.

use postrider_librdkafka::TopicRights;
use rdkafka::metadata::MetadataTopic;

use super::TopicsError;
use super::metadata::{Inquiry, TopicMetadata};
use crate::settings::KafkaSpec;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicState {
    pub name: String,
    /// True if the brokers do not show the topic; it may exist.
    pub is_hidden: bool,
    pub rights: Option<TopicRights>,
    pub min_in_sync: Option<usize>,
    pub lagging: Vec<LaggingPartition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaggingPartition {
    pub id: i32,
    /// Replicas with all records.
    pub in_sync: usize,
    pub replicas: usize,
    /// Brokers with an out-of-sync replica.
    pub behind: Vec<i32>,
}

/// May block for seconds.
pub fn topic_states(kafka: &KafkaSpec, topics: &[String]) -> Result<Vec<TopicState>, TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    let mut states = Vec::new();
    for name in topics {
        let mut state = TopicState {
            name: name.clone(),
            is_hidden: false,
            rights: None,
            min_in_sync: None,
            lagging: Vec::new(),
        };
        match inquiry.look(name)? {
            TopicMetadata::Missing => continue,
            TopicMetadata::Unauthorised => state.is_hidden = true,
            TopicMetadata::Topic(facts) => {
                let number = facts.setting("min.insync.replicas");
                state.min_in_sync = number.and_then(|number| number.parse().ok());
                state.lagging = lagging(&inquiry, name)?;
            }
        }
        states.push(state);
    }
    let seen: Vec<&str> =
        states.iter().filter(|state| !state.is_hidden).map(|state| state.name.as_str()).collect();
    let rights = inquiry.rights(&seen);
    for state in &mut states {
        state.rights = rights.get(&state.name).copied();
    }
    Ok(states)
}

fn lagging(inquiry: &Inquiry, name: &str) -> Result<Vec<LaggingPartition>, TopicsError> {
    let metadata = inquiry.metadata_of(Some(name))?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == name);
    let partitions = topic.into_iter().flat_map(MetadataTopic::partitions);
    let lagging = partitions.filter(|one| one.isr().len() < one.replicas().len());
    let state = lagging.map(|one| LaggingPartition {
        id: one.id(),
        in_sync: one.isr().len(),
        replicas: one.replicas().len(),
        behind: one.replicas().iter().filter(|id| !one.isr().contains(id)).copied().collect(),
    });
    Ok(state.collect())
}
