//! What lies before the first record of a session and of each topic: a connection, and the topic's
//! number of partitions.
//!
//! Enters: the record about to be sent. Leaves: whether it may go now, or why the session is over.
//! What always holds: a record whose topic is not to be had is not taken, so that waiting for the topic
//! repeats nothing; what becomes of its row [`TopicBook`](super::TopicBook) says. Called by `producer`, on its thread; a call takes as long as a
//! broker's answer, once per topic and session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::deliveries::Deliveries;
use super::introductions::Admission;
use super::settings::KafkaSpec;
use super::{SendError, SinkError};
use crate::pipeline::{Decision, TopicFault};
use crate::route::Record;

/// How long a broker that answers may take to say how many partitions a topic has.
const COUNT_LIMIT: Duration = Duration::from_millis(500);
/// How long one call may hurry the library to connect.
const CONNECT_LIMIT: Duration = Duration::from_millis(100);
/// How long a topic that no policy is about may be missing before that is an error: brokers that create
/// topics by themselves take a second at most.
const MISSING_LIMIT: Duration = Duration::from_secs(5);
/// Between two questions for a missing topic.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct Admissions {
    /// A broker has answered since the start.
    connected: bool,
    missing: BTreeMap<String, Missing>,
}

#[derive(Debug)]
struct Missing {
    since: Instant,
    asked: Instant,
}

/// What the brokers said of a topic.
enum Count {
    Partitions(usize),
    /// It does not exist, or we may not know.
    None(TopicFault),
    /// They did not say.
    Unknown,
}

impl Admissions {
    /// Whether the record may go to its partition now; see `introductions`.
    pub(super) fn admit(
        &mut self,
        inner: &BaseProducer<Deliveries>,
        kafka: &KafkaSpec,
        record: &Record<'_>,
    ) -> Result<Admission, SendError> {
        if !self.connected {
            self.connect(inner, record.topic);
        }
        if !self.connected {
            return Ok(Admission::Wait);
        }
        let Record { topic, key, partition, .. } = *record;
        let ask = || inner.context().gathered().introductions.admit(topic, key, partition);
        match ask() {
            Admission::Count => {}
            answer => return Ok(answer),
        }
        let has_policy = match kafka.topics.decide(topic, || inner.in_flight_count() == 0) {
            Some(Decision::Reject(rejection)) => return Err(SendError::Refused(rejection)),
            Some(Decision::Ask) => true,
            Some(Decision::Wait | Decision::Create(_)) => return Ok(Admission::Wait),
            None => false,
        };
        if self.missing.get(topic).is_some_and(|missing| missing.asked.elapsed() < ASK_EVERY) {
            return Ok(Admission::Wait);
        }
        let partitions = match count(inner, topic) {
            Count::Partitions(partitions) => partitions,
            Count::Unknown => {
                tracing::debug!(topic, "the brokers did not say how many partitions there are");
                0
            }
            Count::None(fault) if has_policy => {
                return match kafka.topics.absent(kafka, topic, fault) {
                    Some(Decision::Reject(rejection)) => Err(SendError::Refused(rejection)),
                    _ => Ok(Admission::Wait),
                };
            }
            Count::None(fault) => return Ok(self.wait_for(topic, fault)?),
        };
        if partitions > 0 {
            kafka.topics.seen(topic);
        }
        self.missing.remove(topic);
        inner.context().gathered().introductions.counted(topic, partitions);
        Ok(ask())
    }

    /// Hurries the library, which connects to a broker it has just learned of when it wants
    /// something of it, and asks for its producer's number when it hears from one or half a second
    /// later. Without this the first record waits for that half second (measured, 2.12.1).
    fn connect(&mut self, inner: &BaseProducer<Deliveries>, topic: &str) {
        let (let_in, answering) = {
            let watch = inner.context().watch();
            (watch.ever_let_in(), watch.answering())
        };
        self.connected = answering;
        if let_in && !answering {
            // It is the connection that matters, not the answer.
            let _ = inner.client().fetch_metadata(Some(topic), CONNECT_LIMIT);
        }
    }

    fn wait_for(&mut self, topic: &str, fault: TopicFault) -> Result<Admission, SinkError> {
        let now = Instant::now();
        let missing =
            self.missing.entry(topic.to_owned()).or_insert(Missing { since: now, asked: now });
        missing.asked = now;
        if now.duration_since(missing.since) < MISSING_LIMIT {
            return Ok(Admission::Wait);
        }
        let topic = topic.to_owned();
        Err(match fault {
            TopicFault::Missing => SinkError::UnknownTopic { topic },
            TopicFault::Forbidden | TopicFault::Denied => SinkError::Unauthorised { topic },
        })
    }
}

fn count(inner: &BaseProducer<Deliveries>, topic: &str) -> Count {
    let Ok(metadata) = inner.client().fetch_metadata(Some(topic), COUNT_LIMIT) else {
        return Count::Unknown;
    };
    let Some(found) = metadata.topics().first() else { return Count::Unknown };
    match found.error().map(Code::from) {
        None => Count::Partitions(found.partitions().len()),
        Some(Code::UnknownTopicOrPartition) => Count::None(TopicFault::Missing),
        Some(Code::TopicAuthorizationFailed) => Count::None(TopicFault::Forbidden),
        Some(_) => Count::Unknown,
    }
}
