//! Queries topic metadata on another thread, one query at a time.
//!
//! Invariant: a call returns at once; a reply was given after its query was sent. The thread ends
//! after `TopicQueries` is dropped and the last query is answered.

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

const COUNT_LIMIT: Duration = Duration::from_millis(500);
const LIST_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum BrokerQuery {
    /// Makes brokers create the topic if so configured.
    One(String),
    /// `received`: bytes of the stream received by then.
    All { received: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartitionCount {
    Partitions(usize),
    None(TopicFault),
    Unknown,
    Unanswered,
}

#[derive(Debug)]
pub(super) enum BrokerReply {
    One(String, PartitionCount),
    All(Option<Listed>),
}

#[derive(Debug)]
pub(super) struct Listed {
    pub(super) received: u64,
    pub(super) at: Instant,
    /// Number of partitions; 0 after another answer.
    pub(super) topics: HashMap<String, usize>,
    /// Names as Kafka compares them (`.` and `_` are equal), if different.
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

    /// True if an existing name prevents the creation.
    pub(super) fn collides(&self, topic: &str) -> bool {
        self.alike.contains(&as_compared(topic)) && !self.topics.contains_key(topic)
    }
}

#[derive(Debug)]
pub(super) struct TopicQueries {
    to: Sender<BrokerQuery>,
    from: Receiver<BrokerReply>,
    /// Time of the open query, and true if it lists all topics.
    pub(super) asked: Option<(Instant, bool)>,
}

impl TopicQueries {
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

    /// False if the thread is gone.
    pub(super) fn ask(&mut self, question: BrokerQuery) -> bool {
        if self.asked.is_some() {
            return true;
        }
        self.asked = Some((Instant::now(), matches!(question, BrokerQuery::All { .. })));
        self.to.send(question).is_ok()
    }

    pub(super) fn answer(&mut self) -> Option<(BrokerReply, Duration)> {
        let (at, _) = self.asked?;
        match self.from.try_recv() {
            Ok(answer) => {
                self.asked = None;
                Some((answer, at.elapsed()))
            }
            Err(TryRecvError::Empty) => None,
            // The next query reports the missing thread.
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
