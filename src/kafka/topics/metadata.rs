//! Asks the brokers for the metadata and settings of topics, and for settings of a broker (does it create
//! topics, how old is it).
//!
//! Input: a [`KafkaSpec`] and names. Output: `TopicMetadata`. Invariant: no topic is created by being asked
//! for. An `Inquiry` owns two clients of the library: one reads metadata and hears of refused logins, one
//! uses the admin API; a third one is made where records of open transactions count. `wait` blocks a thread
//! for an answer of that asynchronous API.

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

/// Brokers that have not answered by then are out of reach. A topic that was just created is known to
/// all of them well within this.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first call for metadata ends after this long, each further one after twice as long as the one before:
/// brokers may be far away, and what is told between two calls, that we are not let in, is to be heard soon.
const SLICE_FIRST: Duration = Duration::from_millis(250);
/// Between two looks at a topic that is coming into being.
const AGAIN: Duration = Duration::from_millis(50);

/// What there is of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TopicMetadata {
    /// It exists.
    Topic(TopicFacts),
    /// It does not.
    Missing,
    /// We may not know.
    Unauthorised,
}

/// Connected clients.
pub(super) struct Inquiry {
    config: ClientConfig,
    tokens: Option<TokenKeeper>,
    metadata: Unawaited<BaseConsumer<ConsumerEvents>>,
    /// One that sees records of open transactions, once it was needed.
    uncommitted: Option<Unawaited<BaseConsumer<ConsumerEvents>>>,
    admin: Unawaited<AdminClient<DefaultClientContext>>,
    /// The cluster's, as the latest answer has them.
    brokers: Vec<i32>,
    /// Settings of one of them.
    broker_settings: TopicQuery,
}

/// Settings of a broker, which are asked for once.
enum TopicQuery {
    NotYet,
    /// We may not know them.
    Forbidden,
    Known(TopicSettings),
}

/// Names and values in effect.
type TopicSettings = BTreeMap<String, String>;

impl Inquiry {
    /// Connects.
    pub(super) fn open(kafka: &KafkaSpec) -> Result<Self, TopicsError> {
        let mut config = kafka.common_config()?;
        let admin = open_admin(kafka)?;
        let tokens = kafka.secrets.tokens.clone();
        // The library wants a name; no group is joined.
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

    /// Whether a topic comes into being when a record is sent to it; `None` if nobody tells us.
    pub(super) fn creates_topics(&mut self) -> Result<Option<bool>, TopicsError> {
        Ok(self.of_broker("auto.create.topics.enable")?.map(|value| value == "true"))
    }

    /// What is to be said about the brokers' age.
    pub(super) fn age(&mut self) -> Result<Option<TopicFinding>, TopicsError> {
        Ok(self.of_broker("inter.broker.protocol.version")?.and_then(|version| age_of(&version)))
    }

    /// Where each broker says that it is reached.
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

    /// A setting of a broker, after brokers or a topic were looked at.
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

    /// Looks at a topic.
    pub(super) fn look(&mut self, topic: &str) -> Result<TopicMetadata, TopicsError> {
        let metadata = self.metadata_of(Some(topic))?;
        self.brokers = metadata.brokers().iter().map(MetadataBroker::id).collect();
        // A broker without the admin API says so at once; the search for a controller would not end.
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

    /// A topic's partitions, of brokers that may have no admin API; `None`: it does not exist.
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

    /// The first offset that is kept, and the one behind the last for readers of this kind.
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

    /// What our login may do with topics, where the brokers tell.
    pub(super) fn rights(&self, topics: &[&str]) -> BTreeMap<String, TopicRights> {
        // Brokers that do not answer this question leave the rights unknown.
        topic_rights(self.admin.inner(), topics, PATIENCE).unwrap_or_default()
    }

    /// Every topic that the brokers show us.
    pub(super) fn all(&self) -> Result<BTreeSet<String>, TopicsError> {
        let metadata = self.metadata_of(None)?;
        let sound = metadata.topics().iter().filter(|found| found.error().is_none());
        Ok(sound.map(|found| found.name().to_owned()).collect())
    }

    /// Looks at a topic that was just created.
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

    /// Settings in effect; `None` if we may not know them, or the brokers never tell them.
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

/// A consumer that is assigned nothing.
fn open_quietly(
    config: &ClientConfig,
    tokens: Option<TokenKeeper>,
) -> Result<BaseConsumer<ConsumerEvents>, TopicsError> {
    ConsumerEvents::quiet(tokens).consumer(config, false).map_err(|error| match error {
        NoConsumer::Client(error) => of_client(&error),
        NoConsumer::Login(error) => error.into(),
    })
}

/// A client for questions about settings, and for creating topics.
pub(super) fn open_admin(
    kafka: &KafkaSpec,
) -> Result<AdminClient<DefaultClientContext>, TopicsError> {
    let admin: AdminClient<DefaultClientContext> =
        kafka.common_config()?.create().map_err(|error| of_client(&error))?;
    log_in(admin.inner(), kafka.secrets.tokens.as_ref())?;
    Ok(admin)
}

/// Whether a broker may answer otherwise a little later, as one that has not heard of a topic yet.
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

/// No answer in time, with the reason why no broker answers where that is known.
fn unanswered(error: &KafkaError, reason: Option<String>) -> TopicsError {
    match (of_client(error), reason) {
        (TopicsError::Client(words), Some(reason)) => {
            TopicsError::Client(format!("{words}: {reason}"))
        }
        (other, _) => other,
    }
}

/// Waits for an answer of the admin API, which a thread of the library's brings.
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
        let reason = "what answers there is not a Kafka broker".to_owned();
        let told = unanswered(&error, Some(reason.clone())).to_string();
        assert!(told.starts_with("cannot describe topics") && told.ends_with(&reason));
        assert_eq!(unanswered(&error, None), of_client(&error));
        let unsupported = KafkaError::MetadataFetch(Code::UnsupportedVersion);
        assert_eq!(unanswered(&unsupported, Some(reason)), TopicsError::Unsupported);
    }
}
