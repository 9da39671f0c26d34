//! Creates the topics of `postrider setup`, each with the settings for its purpose. Invariant: an
//! existing topic is never changed.

use std::fmt::Write as _;

use rdkafka::admin::{NewTopic, TopicReplication};

use super::check_settings::{Grade, Purpose, TopicFacts, TopicFinding, judge};
use super::metadata::{Inquiry, TopicMetadata, wait};
use super::{PROGRESS_SETTINGS, TopicsError, create, create_progress};
use crate::settings::KafkaSpec;

/// A dead letter is kept until someone has handled it.
const DEAD_LETTER_SETTINGS: [(&str, &str); 1] = [("retention.ms", "-1")];

const DEFAULT: i32 = -1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedTopic {
    pub name: String,
    /// Decides the settings.
    pub purpose: Purpose,
    /// -1: the brokers' default. Progress uses one.
    pub partitions: i32,
    /// -1: the brokers' default.
    pub replication: i32,
}

impl WantedTopic {
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

    pub fn command(&self) -> String {
        let mut command = format!(
            "kafka-topics.sh --bootstrap-server BROKER --create --if-not-exists --topic '{}'",
            self.name
        );
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

    /// A wrong number of partitions for progress is an error elsewhere.
    fn differences(&self, facts: &TopicFacts) -> Vec<TopicFinding> {
        let name = &self.name;
        let differs = |asked: i32, found: usize, of: &str, help: String| {
            let is_other = asked != DEFAULT && found > 0 && usize::try_from(asked) != Ok(found);
            is_other.then(|| {
                let what = format!("exists with {of} {found}, not {asked}; it was not changed");
                facts.finding(Grade::Warning, what, help)
            })
        };
        let partitions = match usize::try_from(self.partitions) {
            Ok(asked) if asked < facts.partitions => {
                "Kafka cannot remove partitions: keep them, or recreate the topic".to_owned()
            }
            _ => format!(
                "add partitions: kafka-topics.sh --bootstrap-server BROKER --alter --topic '{name}' \
                 --partitions {}; records of a key may then go to another partition than before",
                self.partitions
            ),
        };
        let replicas = format!(
            "change the replication factor of topic '{name}' with kafka-reassign-partitions.sh"
        );
        let rows = self.purpose != Purpose::Progress;
        let partitions =
            rows.then(|| differs(self.partitions, facts.partitions, "partition count", partitions));
        let replicas = differs(self.replication, facts.replicas, "replication factor", replicas);
        partitions.flatten().into_iter().chain(replicas).collect()
    }

    fn request(&self) -> NewTopic<'_> {
        let replication = TopicReplication::Fixed(self.replication);
        let topic = NewTopic::new(&self.name, self.partitions, replication);
        self.settings().iter().fold(topic, |topic, (name, value)| topic.set(name, value))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MadeTopics {
    pub created: Vec<String>,
    pub existing: Vec<String>,
    pub findings: Vec<TopicFinding>,
}

impl MadeTopics {
    pub fn has(&self, name: &str) -> bool {
        self.created.iter().chain(&self.existing).any(|seen| seen == name)
    }
}

/// An existing topic that cannot serve its purpose is an error.
pub fn make_topics(kafka: &KafkaSpec, wanted: &[WantedTopic]) -> Result<MadeTopics, TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    let mut made = MadeTopics::default();
    for topic in wanted {
        match inquiry.look(&topic.name)? {
            TopicMetadata::Topic(facts) => {
                made.findings.extend(judge(&facts, topic.purpose, kafka.message_max_bytes));
                made.findings.extend(topic.differences(&facts));
                made.existing.push(topic.name.clone());
            }
            TopicMetadata::Unauthorised => {
                return Err(TopicsError::Unauthorised { topic: topic.name.clone() });
            }
            TopicMetadata::Missing => {
                if topic.purpose == Purpose::Progress {
                    create_progress(inquiry.admin(), &topic.name, topic.replication)?;
                } else {
                    wait(create(inquiry.admin(), &[topic.request()]))?;
                }
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
    fn what_was_asked_for_and_an_existing_topic_has_not_is_told() {
        let told = |partitions, replication, purpose| {
            let wanted =
                WantedTopic { partitions, replication, ..WantedTopic::new("orders", purpose) };
            let name = "orders".to_owned();
            let facts = TopicFacts { name, partitions: 3, replicas: 2, ..TopicFacts::default() };
            let differences = wanted.differences(&facts).into_iter();
            differences.map(|one| format!("{one}: {}", one.help)).collect::<Vec<_>>()
        };
        assert_eq!(told(DEFAULT, DEFAULT, Purpose::Rows), [""; 0]);
        assert_eq!(told(3, 2, Purpose::Rows), [""; 0]);
        assert_eq!(told(1, 2, Purpose::Progress), [""; 0], "that is an error of its own");
        let both = told(6, 3, Purpose::DeadLetters);
        for (told, words) in both.iter().zip([
            [
                "topic `orders` exists with partition count 3, not 6",
                "--alter --topic 'orders' --partitions 6",
            ],
            ["topic `orders` exists with replication factor 2, not 3", "reassign-partitions"],
        ]) {
            assert!(words.iter().all(|words| told.contains(words)), "{told}");
        }
        assert_eq!(both.len(), 2);
        assert!(told(1, DEFAULT, Purpose::Rows)[0].contains("cannot remove partitions"));
    }

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
