//! Asks the brokers for topic metadata on a thread of its own, so that the thread that sends records does
//! not wait.
//!
//! Input: queries, one at a time: one topic by name, or all topics. Output: the number of partitions, or
//! why it is not known; or the list of topics, which also tells whether a missing name collides with an
//! existing one (`.` and `_` are alike to Kafka). Invariant: a call returns at once; a reply was given
//! after its query was sent. The thread ends when `TopicQueries` is dropped and the last query is answered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::deliveries::Deliveries;
use postrider_core::pipeline::TopicFault;
use postrider_core::route::as_compared;

/// How long a broker that answers may take to say how many partitions a topic has.
const COUNT_LIMIT: Duration = Duration::from_millis(500);
/// The same for all topics of a cluster, which may be very many.
const LIST_LIMIT: Duration = Duration::from_secs(2);

/// What is asked.
#[derive(Debug)]
pub(super) enum BrokerQuery {
    /// For one topic by its name, which makes brokers create it that do so.
    One(String),
    /// For all topics. The bytes of the stream that were received by then.
    All { received: u64 },
}

/// What the brokers said of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartitionCount {
    Partitions(usize),
    /// It does not exist, or we may not know.
    None(TopicFault),
    /// They said something else.
    Unknown,
    /// They did not answer.
    Unanswered,
}

/// What came of a question.
#[derive(Debug)]
pub(super) enum BrokerReply {
    One(String, PartitionCount),
    /// `None`: they did not say.
    All(Option<Listed>),
}

/// All topics that the brokers show us.
#[derive(Debug)]
pub(super) struct Listed {
    /// See [`BrokerQuery::All`].
    pub(super) received: u64,
    /// When it was asked for.
    pub(super) at: Instant,
    /// The number of partitions; 0 where the brokers told something else.
    pub(super) topics: HashMap<String, usize>,
    /// Their names as Kafka compares them, if these are others.
    alike: HashSet<String>,
}

impl Listed {
    fn of(metadata: &Metadata, received: u64, at: Instant) -> Self {
        let topics: HashMap<String, usize> = metadata
            .topics()
            .iter()
            .map(|topic| {
                let sound = topic.error().is_none();
                (topic.name().to_owned(), if sound { topic.partitions().len() } else { 0 })
            })
            .collect();
        let with_dots = topics.keys().filter(|name| name.contains(['.', '_']));
        let alike = with_dots.map(|name| as_compared(name)).collect();
        Self { received, at, topics, alike }
    }

    /// Whether the brokers refuse to create such a topic, for one that is there.
    pub(super) fn collides(&self, topic: &str) -> bool {
        self.alike.contains(&as_compared(topic)) && !self.topics.contains_key(topic)
    }
}

/// The thread that asks, and the question that it was asked last.
#[derive(Debug)]
pub(super) struct TopicQueries {
    to: Sender<BrokerQuery>,
    from: Receiver<BrokerReply>,
    /// When it was asked, and whether it is for all topics; `None`: it is answered.
    pub(super) asked: Option<(Instant, bool)>,
}

impl TopicQueries {
    /// Starts the thread.
    pub(super) fn start(client: Arc<BaseProducer<Deliveries>>) -> std::io::Result<Self> {
        let (to, questions) = channel();
        let (answered, from) = channel();
        let thread = std::thread::Builder::new().name("postrider-topics".to_owned());
        let span = tracing::Span::current();
        thread.spawn(move || {
            let _of_stream = span.entered();
            while let Ok(question) = questions.recv() {
                if answered.send(answer(&client, question)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { to, from, asked: None })
    }

    /// Asks, unless a question is under way. False: the thread is gone.
    pub(super) fn ask(&mut self, question: BrokerQuery) -> bool {
        if self.asked.is_some() {
            return true;
        }
        self.asked = Some((Instant::now(), matches!(question, BrokerQuery::All { .. })));
        self.to.send(question).is_ok()
    }

    /// The answer, once it has come, and how long that took.
    pub(super) fn answer(&mut self) -> Option<(BrokerReply, Duration)> {
        let (at, _) = self.asked?;
        match self.from.try_recv() {
            Ok(answer) => {
                self.asked = None;
                Some((answer, at.elapsed()))
            }
            Err(TryRecvError::Empty) => None,
            // Whoever asks next hears that nobody answers.
            Err(TryRecvError::Disconnected) => {
                self.asked = None;
                None
            }
        }
    }
}

fn answer(client: &BaseProducer<Deliveries>, question: BrokerQuery) -> BrokerReply {
    match question {
        BrokerQuery::One(topic) => {
            let count = count(client, &topic);
            BrokerReply::One(topic, count)
        }
        BrokerQuery::All { received } => {
            let at = Instant::now();
            let metadata = client.client().fetch_metadata(None, LIST_LIMIT);
            BrokerReply::All(metadata.ok().map(|metadata| Listed::of(&metadata, received, at)))
        }
    }
}

fn count(client: &BaseProducer<Deliveries>, topic: &str) -> PartitionCount {
    let Ok(metadata) = client.client().fetch_metadata(Some(topic), COUNT_LIMIT) else {
        return PartitionCount::Unanswered;
    };
    let named = |found: &&MetadataTopic| found.name() == topic;
    let Some(found) = metadata.topics().iter().find(named) else { return PartitionCount::Unknown };
    match found.error().map(Code::from) {
        None => PartitionCount::Partitions(found.partitions().len()),
        Some(Code::UnknownTopicOrPartition) => PartitionCount::None(TopicFault::Missing),
        Some(Code::TopicAuthorizationFailed) => PartitionCount::None(TopicFault::Forbidden),
        Some(Code::LeaderNotAvailable | Code::RequestTimedOut | Code::BrokerNotAvailable) => {
            PartitionCount::Unanswered
        }
        Some(_) => PartitionCount::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_gone_keeps_nobody_waiting() {
        let (to, questions) = channel();
        let (answered, from) = channel::<BrokerReply>();
        let mut asking = TopicQueries { to, from, asked: None };
        assert!(asking.ask(BrokerQuery::All { received: 1 }));
        assert!(asking.answer().is_none() && asking.asked.is_some());
        drop((questions, answered));
        assert!(asking.answer().is_none());
        assert!(!asking.ask(BrokerQuery::All { received: 1 }));
    }
}
