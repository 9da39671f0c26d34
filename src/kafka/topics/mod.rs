//! Looks up topics, checks their settings, and creates those that Postrider may create.
//!
//! Invariant: an existing topic is never changed. Topics of brokers without the admin API, for
//! example the embedded one, are neither checked nor created.

mod bounds;
mod check_settings;
mod cluster;
mod create;
mod metadata;
mod states;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::Producer;
use super::settings::{KafkaSpec, SettingsError};
use super::sink::SinkError;
use check_settings::{TopicFacts, judge, missing};
use metadata::{Inquiry, TopicMetadata, open_admin, wait};
use postrider_core::pipeline::CreateRule;

pub use bounds::{PartitionBounds, TopicBounds, topic_bounds};
pub use check_settings::{Grade, Purpose, TopicFinding};
pub use cluster::{AdvertisedBroker, ClusterFacts, cluster_facts};
pub use create::{MadeTopics, WantedTopic, make_topics};
pub use states::{LaggingPartition, TopicState, topic_states};

/// A controller counts as unreachable after this time.
const LIMIT: Duration = Duration::from_secs(20);

/// Time within which a refused login is reported.
const ENTRY_LIMIT: Duration = Duration::from_secs(2);

/// Only a key's newest record counts: a start reads the rest. Only the first setting is
/// indispensable.
const PROGRESS_SETTINGS: [(&str, &str); 4] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "16777216"),
    ("segment.ms", "3600000"),
    ("min.cleanable.dirty.ratio", "0.1"),
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicsError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    NoEntry(SinkError),
    #[error("cannot describe topics: {0}")]
    Client(String),
    #[error("these brokers have no admin API")]
    Unsupported,
    #[error("not authorised to use topic `{topic}`")]
    Unauthorised {
        /// Topic of the request.
        topic: String,
    },
    /// The relay may not create the missing topic.
    #[error("not authorised to create topic `{topic}`, which is missing")]
    Uncreated {
        topic: String,
        /// Command that creates it.
        help: String,
    },
    #[error("topic `{topic}` cannot be created: {reason}")]
    Refused {
        topic: String,
        reason: String,
        /// Remedy.
        help: String,
    },
    #[error("{0}")]
    Unfit(TopicFinding),
}

impl TopicsError {
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Client(_))
    }

    pub const fn is_permission(&self) -> bool {
        matches!(
            self,
            Self::Unauthorised { .. }
                | Self::Uncreated { .. }
                | Self::NoEntry(SinkError::Authentication(_))
        )
    }

    /// True if the login was refused, or no secret was available.
    pub const fn is_login_refused(&self) -> bool {
        match self {
            Self::NoEntry(SinkError::Authentication(_)) => true,
            Self::Settings(error) => error.is_of_login(),
            _ => false,
        }
    }

    pub const fn is_refused_at_connect(&self) -> bool {
        match self {
            Self::NoEntry(error) => error.is_refused_at_connect(),
            Self::Settings(error) => {
                error.is_of_login() || matches!(error, SettingsError::Client(_))
            }
            _ => self.is_permission(),
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Settings(error) => error.hint(),
            Self::NoEntry(error) => error.hint(),
            Self::Client(_) => {
                Some("check kafka.brokers, and that the brokers are running and reachable".into())
            }
            Self::Unauthorised { topic } => Some(format!(
                "allow it: kafka-acls.sh --bootstrap-server BROKER --add --allow-principal \
                 User:NAME --operation Read --operation Write --operation Describe --topic '{topic}'"
            )),
            Self::Uncreated { help, .. } | Self::Refused { help, .. } => Some(help.clone()),
            Self::Unfit(finding) => Some(finding.help.clone()),
            Self::Unsupported => Some(
                "use brokers that let clients describe topics and their settings \
                 (DescribeConfigs), or create the topics with the brokers' own tools"
                    .into(),
            ),
        }
    }
}

/// The worst findings are first. A missing topic for rows is not a finding: the delivery reports
/// it.
pub fn survey(
    kafka: &KafkaSpec,
    topics: &[(String, Purpose)],
) -> Result<Vec<TopicFinding>, TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    let mut findings = Vec::new();
    for (topic, purpose) in topics {
        match inquiry.look(topic)? {
            TopicMetadata::Topic(facts) => {
                note(kafka, topic, &facts);
                findings.extend(judge(&facts, *purpose, kafka.message_max_bytes));
            }
            TopicMetadata::Missing => {
                findings.extend(missing(topic, *purpose, inquiry.creates_topics()?));
            }
            TopicMetadata::Unauthorised if *purpose == Purpose::Rows => {}
            TopicMetadata::Unauthorised => findings.push(TopicFinding::unauthorised(topic)),
        }
        kafka.topics.brokers_create(inquiry.creates_topics()?);
    }
    findings.sort_by_key(|finding| finding.grade);
    Ok(findings)
}

/// `None`: the topic does not exist.
pub(super) fn partition_count(
    kafka: &KafkaSpec,
    topic: &str,
) -> Result<Option<usize>, TopicsError> {
    Ok(Inquiry::open(kafka)?.partitions(topic)?.map(|numbers| numbers.len()))
}

pub(super) fn is_hidden_or_there(kafka: &KafkaSpec, topic: &str) -> Result<bool, TopicsError> {
    Ok(match Inquiry::open(kafka)?.partitions(topic) {
        Err(TopicsError::Unauthorised { .. }) => true,
        found => found?.is_some(),
    })
}

/// True if a topic does not exist, even if the brokers would create it: a mistyped name must not
/// become a topic.
pub fn lacks_topic(kafka: &KafkaSpec, topic: &str) -> Result<bool, TopicsError> {
    match Inquiry::open(kafka)?.partitions(topic) {
        Err(TopicsError::Unauthorised { .. }) => Ok(false),
        found => Ok(found?.is_none()),
    }
}

pub fn topic_names(kafka: &KafkaSpec) -> Result<BTreeSet<String>, TopicsError> {
    Inquiry::open(kafka)?.all()
}

/// Stores possible causes of refusals in the book.
pub fn learn_topic_settings(kafka: &KafkaSpec, topics: &[String]) -> Result<(), TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    for topic in topics {
        if let TopicMetadata::Topic(facts) = inquiry.look(topic)? {
            note(kafka, topic, &facts);
        }
    }
    Ok(())
}

fn note(kafka: &KafkaSpec, topic: &str, facts: &TopicFacts) {
    if is_compacted(facts) {
        kafka.topics.note_compacted(topic);
    }
}

fn is_compacted(facts: &TopicFacts) -> bool {
    facts.setting("cleanup.policy").is_some_and(|policy| policy.contains("compact"))
}

/// Creates a missing progress topic. Only an unusable topic is an error. Does nothing without an
/// admin API.
pub fn ensure_progress_topic(kafka: &KafkaSpec) -> Result<Vec<TopicFinding>, TopicsError> {
    let topic = kafka.progress_topic.as_str();
    let mut inquiry = Inquiry::open(kafka)?;
    let mut seen = match inquiry.look(topic) {
        Err(TopicsError::Unsupported) => return Ok(Vec::new()),
        Err(error) => return Err(why(kafka, error)),
        Ok(seen) => seen,
    };
    if let TopicMetadata::Missing = seen {
        match create_progress(inquiry.admin(), topic, -1) {
            Err(TopicsError::Unsupported) => return Ok(Vec::new()),
            created => created?,
        }
        tracing::info!("created topic `{topic}`, which stores delivery progress");
        seen = inquiry.look_again(topic)?;
    }
    let facts = match seen {
        TopicMetadata::Topic(facts) => facts,
        TopicMetadata::Missing => {
            return Err(TopicsError::Client(format!("`{topic}` does not appear")));
        }
        TopicMetadata::Unauthorised => {
            return Err(TopicsError::Unauthorised { topic: topic.to_owned() });
        }
    };
    let mut findings = judge(&facts, Purpose::Progress, kafka.message_max_bytes);
    findings.extend(inquiry.age()?);
    match findings.iter().position(|finding| finding.grade == Grade::Unfit) {
        Some(worst) => Err(TopicsError::Unfit(findings.swap_remove(worst))),
        None => Ok(findings),
    }
}

/// If the brokers refuse the settings, requests only compaction: Amazon MSK Serverless lacks
/// `segment.bytes` (its documentation).
fn create_progress(
    client: &AdminClient<DefaultClientContext>,
    topic: &str,
    replication: i32,
) -> Result<(), TopicsError> {
    let (compacted, _) = PROGRESS_SETTINGS.split_at(1);
    let create = |settings: &[(&str, &str)]| {
        let new = NewTopic::new(topic, 1, TopicReplication::Fixed(replication));
        let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
        wait(create(client, &[new]))
    };
    let refused = match create(&PROGRESS_SETTINGS) {
        Err(refused @ TopicsError::Refused { .. }) => refused,
        created => return created,
    };
    if create(compacted).is_err() {
        return Err(refused);
    }
    tracing::info!(
        reason = %refused,
        "created topic `{topic}` with cleanup.policy=compact alone: the brokers refuse its other settings"
    );
    Ok(())
}

pub(super) fn create_one(
    kafka: &KafkaSpec,
    name: &str,
    rule: &CreateRule,
) -> Result<(), TopicsError> {
    let client = open_admin(kafka)?;
    // -1: the brokers' default.
    let replication = TopicReplication::Fixed(rule.replication.unwrap_or(-1));
    let mut topic = NewTopic::new(name, rule.partitions.unwrap_or(-1), replication);
    for (name, value) in &rule.settings {
        topic = topic.set(name, value);
    }
    wait(create(&client, &[topic]))
}

/// Reports unavailable topics that exist by now. May block for seconds.
pub fn look_for_absent(kafka: &KafkaSpec) -> Result<(), TopicsError> {
    let names = kafka.topics.names();
    if names.is_empty() {
        return Ok(());
    }
    let there = Inquiry::open(kafka)?.all()?;
    for name in names.iter().filter(|name| there.contains(*name)) {
        kafka.topics.seen(name);
    }
    Ok(())
}

/// Reports deleted topics. May block for seconds.
///
/// In a transaction the library retries records of a deleted topic until `transaction.timeout.ms`
/// (seen with Kafka 4.3 in 5 of 20 relays).
pub fn look_for_gone(kafka: &KafkaSpec, topics: &[String]) -> Result<(), TopicsError> {
    let there = Inquiry::open(kafka)?.all()?;
    for topic in topics.iter().filter(|topic| !there.contains(*topic)) {
        kafka.topics.gone(topic);
    }
    Ok(())
}

/// Uses the brokers' default replication.
pub async fn create_missing(
    kafka: &KafkaSpec,
    names: &[String],
    partitions: i32,
) -> Result<(), TopicsError> {
    let client = open_admin(kafka)?;
    let replicated = || TopicReplication::Fixed(-1);
    let wanted: Vec<_> =
        names.iter().map(|name| NewTopic::new(name, partitions, replicated())).collect();
    create(&client, &wanted).await
}

async fn create(
    client: &AdminClient<DefaultClientContext>,
    wanted: &[NewTopic<'_>],
) -> Result<(), TopicsError> {
    let options = AdminOptions::new().request_timeout(Some(LIMIT)).operation_timeout(Some(LIMIT));
    let results =
        client.create_topics(wanted, &options).await.map_err(|error| of_client(&error))?;
    for result in results {
        match result {
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((topic, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed)) => {
                let help = command_to_create(&topic, wanted);
                return Err(TopicsError::Uncreated { topic, help });
            }
            // The next attempt may reach another controller, or a quota with room.
            Err((topic, code)) if may_pass(code) => {
                return Err(TopicsError::Client(format!("topic `{topic}`: {code}")));
            }
            Err((topic, code)) => {
                let help = after_refusal(code).to_owned() + &command_to_create(&topic, wanted);
                return Err(TopicsError::Refused { topic, reason: code.to_string(), help });
            }
        }
    }
    Ok(())
}

const fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::RequestTimedOut
            | Code::NotController
            | Code::CoordinatorNotAvailable
            | Code::BrokerNotAvailable
            | Code::ThrottlingQuotaExceeded
    )
}

fn after_refusal(code: Code) -> &'static str {
    match code {
        Code::InvalidReplicationFactor => {
            "ask for no more replicas than there are brokers (--replication of `postrider setup`, or \
             the brokers' default.replication.factor); or "
        }
        Code::InvalidPartitions => "ask for 1 partition or more; or ",
        Code::InvalidTopic => {
            "choose another name: Kafka takes names that differ only in `.` and `_` for the same; \
             or "
        }
        Code::PolicyViolation => {
            "the brokers' create.topic.policy.class.name asks for other settings: with those, "
        }
        _ => "the brokers' log says more; ",
    }
}

fn command_to_create(topic: &str, wanted: &[NewTopic<'_>]) -> String {
    let mut options = String::new();
    // The brokers choose a value of -1.
    for wanted in wanted.iter().filter(|wanted| wanted.name == topic) {
        if wanted.num_partitions > 0 {
            let _ = write!(options, " --partitions {}", wanted.num_partitions);
        }
        if let TopicReplication::Fixed(replicas @ 1..) = wanted.replication {
            let _ = write!(options, " --replication-factor {replicas}");
        }
        for (name, value) in &wanted.config {
            let _ = write!(options, " --config {name}={value}");
        }
    }
    format!(
        "as a user with the right to create topics: kafka-topics.sh --bootstrap-server BROKER \
         --create --topic '{topic}'{options}"
    )
}

/// Prefers a refused login that a producer reports.
fn why(kafka: &KafkaSpec, error: TopicsError) -> TopicsError {
    let Ok(mut producer) = Producer::open(kafka) else { return error };
    let (deadline, mut none) = (Instant::now() + ENTRY_LIMIT, Vec::new());
    while error.is_transient() && Instant::now() < deadline {
        match producer.poll(&mut none) {
            Err(refusal) if refusal.is_definite() => return TopicsError::NoEntry(refusal),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    error
}

fn code_of(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        error => error.rdkafka_error_code(),
    }
}

fn of_client(error: &KafkaError) -> TopicsError {
    match code_of(error) {
        Some(Code::UnsupportedFeature | Code::UnsupportedVersion) => TopicsError::Unsupported,
        _ => TopicsError::Client(error.to_string()),
    }
}
