//! Creates the topics of `postrider setup`.
//!
//! Input: [`WantedTopic`]s. Output: which were created and which existed, with findings about the latter.
//! Invariant: an existing topic is never changed. Blocks.

use std::fmt::Write as _;

use rdkafka::admin::{NewTopic, TopicReplication};

use super::check_settings::{Grade, Purpose, TopicFinding, judge};
use super::metadata::{Inquiry, TopicMetadata, wait};
use super::{PROGRESS_SETTINGS, TopicsError, create};
use crate::settings::KafkaSpec;

/// A dead letter is kept until somebody has seen to it, not for the seven days of other topics.
const DEAD_LETTER_SETTINGS: [(&str, &str); 1] = [("retention.ms", "-1")];

/// The brokers' default.
const DEFAULT: i32 = -1;

/// A topic that should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedTopic {
    /// Its name.
    pub name: String,
    /// What it is for, which decides its settings.
    pub purpose: Purpose,
    /// Partitions, or -1: the brokers' default. Progress is kept in one.
    pub partitions: i32,
    /// Replicas, or -1: the brokers' default.
    pub replication: i32,
}

impl WantedTopic {
    /// With the brokers' defaults.
    pub fn new(name: impl Into<String>, purpose: Purpose) -> Self {
        let partitions = if purpose == Purpose::Progress { 1 } else { DEFAULT };
        Self { name: name.into(), purpose, partitions, replication: DEFAULT }
    }

    const fn settings(&self) -> &'static [(&'static str, &'static str)] {
        match self.purpose {
            Purpose::Rows => &[],
            Purpose::DeadLetters => &DEAD_LETTER_SETTINGS,
            Purpose::Progress => &PROGRESS_SETTINGS,
        }
    }

    /// The command that would make it.
    pub fn command(&self) -> String {
        let mut command = format!(
            "kafka-topics.sh --bootstrap-server BROKER --create --if-not-exists --topic '{}'",
            self.name
        );
        // Writing to a string cannot fail.
        if self.partitions != DEFAULT {
            let _ = write!(command, " --partitions {}", self.partitions);
        }
        if self.replication != DEFAULT {
            let _ = write!(command, " --replication-factor {}", self.replication);
        }
        for (name, value) in self.settings() {
            let _ = write!(command, " --config {name}={value}");
        }
        command
    }

    fn request(&self) -> NewTopic<'_> {
        let replication = TopicReplication::Fixed(self.replication);
        let topic = NewTopic::new(&self.name, self.partitions, replication);
        self.settings().iter().fold(topic, |topic, (name, value)| topic.set(name, value))
    }
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MadeTopics {
    /// Those that were missing, by name.
    pub created: Vec<String>,
    /// The others.
    pub existing: Vec<String>,
    /// What is to be said about those that existed.
    pub findings: Vec<TopicFinding>,
}

/// Makes those that are missing. One that exists and cannot serve its purpose is an error.
pub fn make_topics(kafka: &KafkaSpec, wanted: &[WantedTopic]) -> Result<MadeTopics, TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    let mut made = MadeTopics::default();
    for topic in wanted {
        match inquiry.look(&topic.name)? {
            TopicMetadata::Topic(facts) => {
                made.findings.extend(judge(&facts, topic.purpose, kafka.message_max_bytes));
                made.existing.push(topic.name.clone());
            }
            TopicMetadata::Unauthorised => {
                return Err(TopicsError::Unauthorised { topic: topic.name.clone() });
            }
            TopicMetadata::Missing => {
                wait(create(inquiry.admin(), &[topic.request()]))?;
                inquiry.look_again(&topic.name)?;
                made.created.push(topic.name.clone());
            }
        }
    }
    match made.findings.iter().position(|finding| finding.grade == Grade::Unfit) {
        Some(worst) => Err(TopicsError::Unfit(made.findings.swap_remove(worst))),
        None => Ok(made),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_says_what_the_request_asks_for() {
        let rows = WantedTopic {
            partitions: 6,
            replication: 3,
            ..WantedTopic::new("orders", Purpose::Rows)
        };
        assert!(
            rows.command().ends_with(
                "--if-not-exists --topic 'orders' --partitions 6 --replication-factor 3"
            )
        );
        let letters = WantedTopic::new("dead", Purpose::DeadLetters).command();
        assert!(letters.ends_with("--topic 'dead' --config retention.ms=-1"), "{letters}");
        let progress = WantedTopic::new("progress", Purpose::Progress).command();
        assert!(progress.contains("--partitions 1 --config cleanup.policy=compact"), "{progress}");
    }
}
