//! Queries metadata and settings of topics, and settings of a broker. Invariant: queries create no
//! topic.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataPartition};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::check_settings::{TopicFacts, TopicFinding, age_of, version_of};
use super::cluster::AdvertisedBroker;
use super::{TopicsError, of_client};
use crate::consumer_events::NoConsumer;
use crate::consumer_events::{ConsumerEvents, serve};
use crate::reader::Isolation;
use crate::settings::KafkaSpec;
use crate::token_login::log_in;
use crate::unawaited::Unawaited;
use postrider_credentials::TokenKeeper;
use postrider_librdkafka::{TopicRights, topic_rights};

/// All brokers know a new topic well before.
const PATIENCE: Duration = Duration::from_secs(5);
/// Each further call takes twice as long. A refused login is reported between two calls, so it
/// should be noticed soon.
const SLICE_FIRST: Duration = Duration::from_millis(250);
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TopicMetadata {
    Topic(TopicFacts),
    Missing,
    Unauthorised,
}

pub(super) struct Inquiry {
    config: ClientConfig,
    tokens: Option<TokenKeeper>,
    metadata: Unawaited<BaseConsumer<ConsumerEvents>>,
    /// Created when needed.
    uncommitted: Option<Unawaited<BaseConsumer<ConsumerEvents>>>,
    admin: Unawaited<AdminClient<DefaultClientContext>>,
    brokers: Vec<i32>,
    broker_settings: TopicQuery,
}

enum TopicQuery {
    NotYet,
    Forbidden,
    Known(TopicSettings),
}

type TopicSettings = BTreeMap<String, String>;

impl Inquiry {
    pub(super) fn open(kafka: &KafkaSpec) -> Result<Self, TopicsError> {
        let mut config = kafka.common_config()?;
        let admin = open_admin(kafka)?;
        let tokens = kafka.secrets.tokens.clone();
        // The library requires a group name; no group is joined.
        config.set("group.id", "postrider-topics");
        let metadata = open_quietly(&config, tokens.clone())?;
        Ok(Self {
            config,
            tokens,
            metadata: metadata.into(),
            uncommitted: None,
            admin: admin.into(),
            brokers: Vec::new(),
            broker_settings: TopicQuery::NotYet,
        })
    }

    pub(super) fn admin(&self) -> &AdminClient<DefaultClientContext> {
        &self.admin
    }

    /// `None` if unknown.
    pub(super) fn creates_topics(&mut self) -> Result<Option<bool>, TopicsError> {
        Ok(self.of_broker("auto.create.topics.enable")?.map(|value| value == "true"))
    }

    pub(super) fn age(&mut self) -> Result<Option<TopicFinding>, TopicsError> {
        Ok(self.of_broker("inter.broker.protocol.version")?.and_then(|version| age_of(&version)))
    }

    pub(super) fn advertised(&mut self) -> Result<Vec<AdvertisedBroker>, TopicsError> {
        let metadata = self.metadata_of(None)?;
        self.brokers = metadata.brokers().iter().map(MetadataBroker::id).collect();
        let brokers = metadata.brokers().iter();
        let advertised = brokers.map(|broker| AdvertisedBroker {
            id: broker.id(),
            host: broker.host().to_owned(),
            port: u16::try_from(broker.port()).unwrap_or(0),
        });
        Ok(advertised.collect())
    }

    /// Needs a query of brokers or a topic before.
    pub(super) fn of_broker(&mut self, name: &str) -> Result<Option<String>, TopicsError> {
        if let (TopicQuery::NotYet, Some(&broker)) = (&self.broker_settings, self.brokers.first()) {
            let settings = self.settings(&ResourceSpecifier::Broker(broker))?;
            self.broker_settings = settings.map_or(TopicQuery::Forbidden, TopicQuery::Known);
        }
        Ok(match &self.broker_settings {
            TopicQuery::Known(settings) => settings.get(name).cloned(),
            TopicQuery::NotYet | TopicQuery::Forbidden => None,
        })
    }

    pub(super) fn look(&mut self, topic: &str) -> Result<TopicMetadata, TopicsError> {
        let metadata = self.metadata_of(Some(topic))?;
        self.brokers = metadata.brokers().iter().map(MetadataBroker::id).collect();
        // A broker without the admin API answers this; a search for a controller would not end.
        self.of_broker("")?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let Some(found) = found else {
            return Err(TopicsError::Client(format!("topic `{topic}` is not in the answer")));
        };
        let partitions = found.partitions().iter();
        let replicas: Vec<_> = partitions.map(|partition| partition.replicas().len()).collect();
        let error = found.error().map(Code::from);
        match error {
            None => {}
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
                return Ok(TopicMetadata::Missing);
            }
            Some(Code::TopicAuthorizationFailed) => return Ok(TopicMetadata::Unauthorised),
            Some(code) => return Err(TopicsError::Client(format!("topic `{topic}`: {code}"))),
        }
        let partitions = replicas.len();
        let Some(replicas) = replicas.into_iter().min() else {
            return Err(TopicsError::Client(format!("topic `{topic}` has no partition yet")));
        };
        let settings = self.settings(&ResourceSpecifier::Topic(topic))?;
        let protocol = self.of_broker("inter.broker.protocol.version")?;
        Ok(TopicMetadata::Topic(TopicFacts {
            protocol: protocol.and_then(|protocol| version_of(&protocol)),
            name: topic.to_owned(),
            brokers: self.brokers.len(),
            partitions,
            replicas,
            settings,
        }))
    }

    /// Works without the admin API; `None`: the topic does not exist.
    pub(super) fn partitions(&self, topic: &str) -> Result<Option<Vec<i32>>, TopicsError> {
        let metadata = self.metadata_of(Some(topic))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(None);
        };
        match found.error().map(Code::from) {
            None => Ok(Some(found.partitions().iter().map(MetadataPartition::id).collect())),
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(None),
            Some(Code::TopicAuthorizationFailed) => {
                Err(TopicsError::Unauthorised { topic: topic.to_owned() })
            }
            Some(code) => Err(TopicsError::Client(format!("topic `{topic}`: {code}"))),
        }
    }

    pub(super) fn watermarks(
        &mut self,
        topic: &str,
        partition: i32,
        isolation: Isolation,
    ) -> Result<(u64, u64), TopicsError> {
        let consumer = match (isolation, &self.uncommitted) {
            (Isolation::Committed, _) => &self.metadata,
            (Isolation::Uncommitted, Some(known)) => known,
            (Isolation::Uncommitted, None) => {
                let mut config = self.config.clone();
                config.set("isolation.level", "read_uncommitted");
                self.uncommitted.insert(open_quietly(&config, self.tokens.clone())?.into())
            }
        };
        let answer = consumer.fetch_watermarks(topic, partition, PATIENCE);
        let (first, end) =
            answer.map_err(|error| unanswered(&error, consumer.context().outage_reason()))?;
        let (Ok(first), Ok(end)) = (u64::try_from(first), u64::try_from(end)) else {
            let words = format!("partition {partition} of `{topic}` has no offsets");
            return Err(TopicsError::Client(words));
        };
        Ok((first, end))
    }

    pub(super) fn rights(&self, topics: &[&str]) -> BTreeMap<String, TopicRights> {
        // Brokers may lack this request.
        topic_rights(self.admin.inner(), topics, PATIENCE).unwrap_or_default()
    }

    pub(super) fn all(&self) -> Result<BTreeSet<String>, TopicsError> {
        let metadata = self.metadata_of(None)?;
        let sound = metadata.topics().iter().filter(|found| found.error().is_none());
        Ok(sound.map(|found| found.name().to_owned()).collect())
    }

    pub(super) fn look_again(&mut self, topic: &str) -> Result<TopicMetadata, TopicsError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.look(topic) {
                Ok(TopicMetadata::Missing) | Err(TopicsError::Client(_))
                    if Instant::now() < deadline =>
                {
                    thread::sleep(AGAIN);
                }
                seen => return seen,
            }
        }
    }

    pub(super) fn metadata_of(&self, topic: Option<&str>) -> Result<Metadata, TopicsError> {
        let deadline = Instant::now() + PATIENCE;
        let mut slice = SLICE_FIRST;
        loop {
            let answer = self.metadata.fetch_metadata(topic, slice);
            slice *= 2;
            serve(&self.metadata).map_err(TopicsError::NoEntry)?;
            match answer {
                Ok(metadata) => return Ok(metadata),
                Err(error) if Instant::now() >= deadline => {
                    return Err(unanswered(&error, self.metadata.context().outage_reason()));
                }
                Err(_) => {}
            }
        }
    }

    /// `None` if not visible.
    fn settings(&self, of: &ResourceSpecifier<'_>) -> Result<Option<TopicSettings>, TopicsError> {
        let options = AdminOptions::new().request_timeout(Some(PATIENCE));
        let answer = wait(self.admin.describe_configs([of], &options));
        let resources = answer.map_err(|error| of_client(&error))?;
        match resources.into_iter().next() {
            Some(Ok(resource)) => {
                let entries = resource.entries.into_iter();
                Ok(Some(entries.filter_map(|entry| Some((entry.name, entry.value?))).collect()))
            }
            Some(Err(code)) if !passes(code) => Ok(None),
            Some(Err(code)) => Err(TopicsError::Client(format!("settings of {of:?}: {code}"))),
            None => Err(TopicsError::Client(format!("no settings of {of:?} in the answer"))),
        }
    }
}

fn open_quietly(
    config: &ClientConfig,
    tokens: Option<TokenKeeper>,
) -> Result<BaseConsumer<ConsumerEvents>, TopicsError> {
    ConsumerEvents::quiet(tokens).consumer(config, false).map_err(|error| match error {
        NoConsumer::Client(error) => of_client(&error),
        NoConsumer::Login(error) => error.into(),
    })
}

pub(super) fn open_admin(
    kafka: &KafkaSpec,
) -> Result<AdminClient<DefaultClientContext>, TopicsError> {
    let admin: AdminClient<DefaultClientContext> =
        kafka.common_config()?.create().map_err(|error| of_client(&error))?;
    log_in(admin.inner(), kafka.secrets.tokens.as_ref())?;
    Ok(admin)
}

const fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::NotController
            | Code::RequestTimedOut
            | Code::OperationTimedOut
            | Code::MessageTimedOut
            | Code::NetworkException
            | Code::BrokerNotAvailable
            | Code::BrokerTransportFailure
    )
}

fn unanswered(error: &KafkaError, reason: Option<String>) -> TopicsError {
    match (of_client(error), reason) {
        (TopicsError::Client(words), Some(reason)) => {
            TopicsError::Client(format!("{words}: {reason}"))
        }
        (other, _) => other,
    }
}

/// Blocks for an answer, which the library's thread delivers.
pub(super) fn wait<T>(answer: impl Future<Output = T>) -> T {
    struct Sleeper(Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut answer = pin!(answer);
    loop {
        match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_is_told_with_its_reason() {
        let error = KafkaError::MetadataFetch(Code::BrokerTransportFailure);
        let reason = "the server there is not a Kafka broker".to_owned();
        let told = unanswered(&error, Some(reason.clone())).to_string();
        assert!(told.starts_with("cannot describe topics") && told.ends_with(&reason));
        assert_eq!(unanswered(&error, None), of_client(&error));
        let unsupported = KafkaError::MetadataFetch(Code::UnsupportedVersion);
        assert_eq!(unanswered(&unsupported, Some(reason)), TopicsError::Unsupported);
    }
}
