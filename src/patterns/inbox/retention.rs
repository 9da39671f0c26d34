//! Asks Kafka how long topics keep a record, because a marker must outlive every delivery.
//! Invariant: a topic without an answer is an error, never a default.

use std::error::Error;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

const POLICY: &str = "cleanup.policy";
const RETENTION: &str = "retention.ms";
const SEGMENT: &str = "segment.ms";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Time for which a topic keeps its records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicRetention {
    /// Name of the topic.
    pub topic: String,
    /// Sum of `retention.ms` and `segment.ms`, because Kafka deletes a record with the newest one
    /// of its segment. `None` means for ever: unlimited or compacted.
    pub longest: Option<Duration>,
}

impl TopicRetention {
    /// Creates a value.
    pub fn new(topic: impl Into<String>, longest: Option<Duration>) -> Self {
        Self { topic: topic.into(), longest }
    }
}

/// Reason why the retention is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// The brokers did not answer, or refuse the client.
    #[error("Kafka does not say how long its topics keep records")]
    Brokers(#[source] Box<dyn Error + Send + Sync>),
    /// The topic does not exist, or this user may not describe it.
    #[error("Kafka does not say how long the topic `{topic}` keeps records: {reason}")]
    Topic {
        /// Name of the topic.
        topic: String,
        /// The brokers' reason.
        reason: String,
    },
    /// The answer lacks a setting that every topic has.
    #[error("the brokers' answer has no valid `{setting}` of the topic `{topic}`")]
    Setting {
        /// Name of the topic.
        topic: String,
        /// Name of the setting.
        setting: &'static str,
    },
}

impl RetentionError {
    /// Exact fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Topic { .. } => {
                Some("create the topic, or grant DescribeConfigs on it to the Kafka user")
            }
            Self::Brokers(_) | Self::Setting { .. } => None,
        }
    }
}

/// Asks the brokers, for at most 15 s per topic.
pub async fn topic_retention(
    kafka: &[(String, String)],
    topics: &[&str],
) -> Result<Vec<TopicRetention>, RetentionError> {
    let config: ClientConfig = kafka.iter().cloned().collect();
    let client: AdminClient<_> = config.create().map_err(unanswered)?;
    let mut all = Vec::with_capacity(topics.len());
    for topic in topics {
        all.push(ask(&client, topic).await?);
    }
    Ok(all)
}

fn unanswered(error: KafkaError) -> RetentionError {
    RetentionError::Brokers(error.into())
}

/// An error in the answer does not name its topic, so each topic has its own request.
async fn ask(
    client: &AdminClient<DefaultClientContext>,
    topic: &str,
) -> Result<TopicRetention, RetentionError> {
    let options = AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT));
    let answers = client
        .describe_configs([&ResourceSpecifier::Topic(topic)], &options)
        .await
        .map_err(unanswered)?;
    let refused = |code: RDKafkaErrorCode| RetentionError::Topic {
        topic: topic.to_owned(),
        reason: code.to_string(),
    };
    let answer = answers.into_iter().next();
    let settings = answer.unwrap_or(Err(RDKafkaErrorCode::InvalidRequest)).map_err(refused)?;
    let setting = |name| settings.get(name).and_then(|entry| entry.value.as_deref());
    longest(topic, setting)
}

fn longest<'a>(
    topic: &str,
    setting: impl Fn(&'static str) -> Option<&'a str>,
) -> Result<TopicRetention, RetentionError> {
    let invalid = |setting| RetentionError::Setting { topic: topic.to_owned(), setting };
    let is_deleted =
        setting(POLICY).ok_or_else(|| invalid(POLICY))?.split(',').any(|it| it == "delete");
    let milliseconds = |name| {
        let value = setting(name).and_then(|value| value.parse::<i64>().ok());
        value.ok_or_else(|| invalid(name))
    };
    // A negative value means no limit.
    let retention = u64::try_from(milliseconds(RETENTION)?).ok();
    let segment = u64::try_from(milliseconds(SEGMENT)?).map_err(|_| invalid(SEGMENT))?;
    let longest =
        retention.filter(|_| is_deleted).map(|retention| retention.saturating_add(segment));
    Ok(TopicRetention::new(topic, longest.map(Duration::from_millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        policy: &str,
        retention: &str,
        segment: &str,
    ) -> Result<Option<Duration>, RetentionError> {
        let settings = [(POLICY, policy), (RETENTION, retention), (SEGMENT, segment)];
        let setting = |name| settings.iter().find(|(it, _)| *it == name).map(|(_, value)| *value);
        longest("orders", setting).map(|it| it.longest)
    }

    #[test]
    fn a_record_is_kept_until_the_newest_of_its_segment_may_go() {
        let days = |days: u64| Some(Duration::from_hours(24 * days));
        assert_eq!(of("delete", "604800000", "604800000").unwrap(), days(14));
        assert_eq!(of("compact,delete", "86400000", "0").unwrap(), days(1));
        for for_ever in [of("delete", "-1", "1"), of("compact", "604800000", "1")] {
            assert_eq!(for_ever.unwrap(), None);
        }
        for (policy, retention, segment) in
            [("delete", "", "1"), ("delete", "1", "-1"), ("delete", "x", "1")]
        {
            let error = of(policy, retention, segment).unwrap_err();
            assert!(error.to_string().contains(".ms` of the topic `orders`"), "{error}");
        }
    }
}
