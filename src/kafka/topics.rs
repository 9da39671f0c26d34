//! Creates topics that are missing, for the demo: the relay itself creates none.
//!
//! Enters: brokers and names. Leaves: topics, or the first reason why not. Called by `cli::demo`.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::settings::{KafkaSpec, SettingsError};

/// A controller that has not answered by then is out of reach.
const LIMIT: Duration = Duration::from_secs(20);

/// Why a topic could not be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicsError {
    /// A setting cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The brokers cannot be asked.
    #[error("the topics cannot be created: {0}")]
    Client(String),
    /// The brokers will not.
    #[error("topic `{topic}` cannot be created: {reason}")]
    Refused {
        /// The topic.
        topic: String,
        /// The brokers' reason.
        reason: String,
    },
}

impl TopicsError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Settings(error) => error.hint(),
            Self::Client(_) => Some("check that the brokers are running and reachable".into()),
            Self::Refused { .. } => None,
        }
    }
}

/// Creates those of `names` that do not exist, with the brokers' default replication.
pub async fn create_missing(
    kafka: &KafkaSpec,
    names: &[String],
    partitions: i32,
) -> Result<(), TopicsError> {
    let failed = |error: rdkafka::error::KafkaError| TopicsError::Client(error.to_string());
    let client: AdminClient<DefaultClientContext> =
        kafka.common_config()?.create().map_err(failed)?;
    // -1: the brokers' default.
    let replicated = || TopicReplication::Fixed(-1);
    let wanted: Vec<_> =
        names.iter().map(|name| NewTopic::new(name, partitions, replicated())).collect();
    let options = AdminOptions::new().request_timeout(Some(LIMIT)).operation_timeout(Some(LIMIT));
    for result in client.create_topics(&wanted, &options).await.map_err(failed)? {
        match result {
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                return Err(TopicsError::Refused { topic, reason: code.to_string() });
            }
        }
    }
    Ok(())
}
