//! Checks before a record is sent if a broker is connected, and how many partitions the topic has.
//! Another thread queries the brokers.
//!
//! Invariant: a record whose topic is unavailable is not accepted, so waiting for the topic repeats
//! nothing. A call waits at most 100 ms for brokers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer as _};

use super::deliveries::Deliveries;
use super::first_write_gate::Admission;
use super::producer::invalid_topic;
use super::settings::KafkaSpec;
use super::topic_queries::{BrokerQuery, BrokerReply, Listed, PartitionCount, TopicQueries};
use super::{SendError, SinkError};
use postrider_core::pipeline::{Allowance, TopicDecision, TopicFault};
use postrider_core::route::Record;

/// Longest time per call for speeding up the library's connect.
const CONNECT_LIMIT: Duration = Duration::from_millis(100);
/// Time limit for a missing topic without a policy. Brokers create topics within a second.
const MISSING_LIMIT: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Wait of rows for answers about single topics, at once and in percent of all time. Enough for
/// dozens of topics at a session's start.
const BY_NAME: Allowance = Allowance::new(Duration::from_millis(300), 5);
/// Shortest useful rest of `BY_NAME`.
const BY_NAME_MIN: Duration = Duration::from_millis(20);
/// After so many unanswered queries a record is sent anyway, as if the brokers were away.
const UNANSWERED_MAX: u32 = 3;
const RECOUNTS_MAX: usize = 1_000;
/// A younger list counts as a topic's own answer.
const LIST_AGE: Duration = Duration::from_secs(2);

/// Answers so far.
///
/// A query by name costs a round trip, returns an exact answer, and makes brokers create the topic
/// if so configured. Rows choose topics, so beyond [`BY_NAME`] all topics are listed instead. A
/// list is valid for rows received before its request, because Postgres sends a row after its
/// commit. Lists may be large, so they take at most half of the time.
#[derive(Debug)]
pub(super) struct Admissions {
    connected: bool,
    missing: BTreeMap<String, Missing>,
    questions: Option<TopicQueries>,
    start: Instant,
    by_name: Allowance,
    unanswered: u32,
    list: Option<Listed>,
    /// Topics counted again because a row chose a missing partition, with the bytes received until
    /// then. Partitions of those rows must have existed.
    recounts: BTreeMap<String, u64>,
    next_list: Instant,
    /// Start of the current row in the received bytes, and their number.
    at: (u64, u64),
}

#[derive(Debug)]
struct Missing {
    since: Instant,
    asked: Instant,
}

impl Default for Admissions {
    fn default() -> Self {
        let start = Instant::now();
        Self {
            connected: false,
            missing: BTreeMap::new(),
            questions: None,
            start,
            by_name: BY_NAME,
            unanswered: 0,
            list: None,
            recounts: BTreeMap::new(),
            next_list: start,
            at: (0, 0),
        }
    }
}

impl Admissions {
    #[inline]
    pub(super) const fn reading(&mut self, row: u64, received: u64) {
        self.at = (row, received);
    }

    pub(super) fn admit(
        &mut self,
        inner: &Arc<BaseProducer<Deliveries>>,
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
        let admits = || inner.context().gathered().first_writes.admit(topic, key, partition);
        match admits() {
            Admission::Count => {}
            answer => return Ok(answer),
        }
        if self.hear(inner, kafka)? {
            match admits() {
                Admission::Count => {}
                answer => return Ok(answer),
            }
        }
        let mut by_name = match kafka.topics.decide(topic, || inner.in_flight_count() == 0) {
            Some(TopicDecision::Reject(rejection)) => return Err(SendError::Refused(rejection)),
            Some(TopicDecision::Wait | TopicDecision::Create(_)) => return Ok(Admission::Wait),
            Some(TopicDecision::Ask) => false,
            Some(TopicDecision::AskByName) | None => true,
        };
        if self.missing.get(topic).is_some_and(|missing| missing.asked.elapsed() < ASK_EVERY) {
            return Ok(Admission::Wait);
        }
        self.list.take_if(|list| list.at.elapsed() >= LIST_AGE);
        if !by_name && let Some(list) = self.list.as_ref().filter(|list| self.covers(list)) {
            match list.topics.get(topic) {
                Some(0) => by_name = true,
                Some(partitions) => {
                    counted(inner, kafka, topic, *partitions);
                    return Ok(admits());
                }
                None => match kafka.topics.unlisted(kafka, topic, list.collides(topic)) {
                    Some(TopicDecision::Reject(rejection)) => {
                        return Err(SendError::Refused(rejection));
                    }
                    Some(TopicDecision::Wait | TopicDecision::Create(_)) => {
                        return Ok(Admission::Wait);
                    }
                    Some(TopicDecision::Ask | TopicDecision::AskByName) | None => by_name = true,
                },
            }
        }
        // Such a name cannot be queried.
        if topic.contains('\0') {
            return Err(invalid_topic());
        }
        self.ask(inner, topic, by_name)?;
        Ok(Admission::Wait)
    }

    /// True if the record must be offered again after a query. Partitions may have been added; the
    /// library checks every five minutes (`topic.metadata.refresh.interval.ms`). Upholds G4.
    pub(super) fn lacks_partition(
        &mut self,
        inner: &BaseProducer<Deliveries>,
        topic: &str,
    ) -> bool {
        let (row, received) = self.at;
        let is_counted = match received {
            // Without row positions the count is valid for one record.
            0 => self.recounts.remove(topic).is_some(),
            _ => self.recounts.get(topic).is_some_and(|received| row < *received),
        };
        if is_counted {
            return false;
        }
        if !inner.context().gathered().first_writes.count_again(topic) {
            return true;
        }
        if self.recounts.len() >= RECOUNTS_MAX {
            self.recounts.clear();
        }
        self.recounts.insert(topic.to_owned(), received);
        self.list = None;
        true
    }

    const fn covers(&self, list: &Listed) -> bool {
        self.at.0 < list.received
    }

    fn ask(
        &mut self,
        inner: &Arc<BaseProducer<Deliveries>>,
        topic: &str,
        by_name: bool,
    ) -> Result<(), SinkError> {
        let now = Instant::now();
        let (row, received) = self.at;
        let is_expensive = self.by_name.left(now - self.start) < BY_NAME_MIN;
        let questions = match &mut self.questions {
            Some(questions) => questions,
            none => none.insert(started(TopicQueries::start(Arc::clone(inner)))?),
        };
        // A list does not cover a row without a position.
        let question = if !by_name && is_expensive && row < received && now >= self.next_list {
            BrokerQuery::All { received }
        } else {
            BrokerQuery::One(topic.to_owned())
        };
        if questions.ask(question) {
            return Ok(());
        }
        Err(SinkError::NotReady("the thread that asks for topics has ended".to_owned()))
    }

    fn hear(
        &mut self,
        inner: &BaseProducer<Deliveries>,
        kafka: &KafkaSpec,
    ) -> Result<bool, SinkError> {
        let Some((answer, took)) = self.questions.as_mut().and_then(TopicQueries::answer) else {
            return Ok(false);
        };
        let now = Instant::now();
        match answer {
            BrokerReply::All(list) => {
                self.list = list;
                self.next_list = now + took;
            }
            BrokerReply::One(topic, count) => {
                self.by_name.spend(took, now - self.start);
                self.heard_of(inner, kafka, &topic, count)?;
            }
        }
        Ok(true)
    }

    fn heard_of(
        &mut self,
        inner: &BaseProducer<Deliveries>,
        kafka: &KafkaSpec,
        topic: &str,
        count: PartitionCount,
    ) -> Result<(), SinkError> {
        self.unanswered = if count == PartitionCount::Unanswered { self.unanswered + 1 } else { 0 };
        let partitions = match count {
            PartitionCount::Partitions(partitions) => partitions,
            PartitionCount::Unanswered if self.unanswered < UNANSWERED_MAX => return Ok(()),
            PartitionCount::Unanswered => {
                // Unreachable brokers have counted nothing, so no row is refused (G4).
                self.recounts.remove(topic);
                0
            }
            PartitionCount::Unknown => {
                tracing::debug!(topic, "the brokers did not say how many partitions there are");
                0
            }
            PartitionCount::None(fault) if kafka.topics.absent(kafka, topic, fault).is_some() => {
                return Ok(());
            }
            PartitionCount::None(fault) => return self.wait_for(topic, fault),
        };
        self.missing.remove(topic);
        counted(inner, kafka, topic, partitions);
        Ok(())
    }

    /// Speeds up the library's connect: without this the first record waits half a second for a
    /// producer id (measured, 2.12.1).
    fn connect(&mut self, inner: &BaseProducer<Deliveries>, topic: &str) {
        let (let_in, answering) = {
            let events = inner.context().events();
            (events.ever_let_in(), events.answering())
        };
        self.connected = answering;
        if let_in && !answering {
            // Only the connection matters, not the answer.
            let _ = inner.client().fetch_metadata(Some(topic), CONNECT_LIMIT);
        }
    }

    fn wait_for(&mut self, topic: &str, fault: TopicFault) -> Result<(), SinkError> {
        let now = Instant::now();
        let missing =
            self.missing.entry(topic.to_owned()).or_insert(Missing { since: now, asked: now });
        missing.asked = now;
        if now.duration_since(missing.since) < MISSING_LIMIT {
            return Ok(());
        }
        let topic = topic.to_owned();
        Err(match fault {
            TopicFault::Missing | TopicFault::Unlisted => SinkError::UnknownTopic { topic },
            TopicFault::Forbidden | TopicFault::Denied => SinkError::Unauthorised { topic },
        })
    }
}

fn counted(inner: &BaseProducer<Deliveries>, kafka: &KafkaSpec, topic: &str, partitions: usize) {
    if partitions > 0 {
        kafka.topics.seen(topic);
        kafka.tap.counted(topic, partitions);
    }
    inner.context().gathered().first_writes.counted(topic, partitions);
}

fn started(questions: std::io::Result<TopicQueries>) -> Result<TopicQueries, SinkError> {
    questions.map_err(|error| SinkError::NotReady(error.to_string()))
}
