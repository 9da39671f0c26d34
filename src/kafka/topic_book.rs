//! A process's knowledge of its topics across sessions: which are missing, forbidden, deleted or
//! compacted.
//!
//! `MissingTopics` in the core decides; the book adds clock, lock, log and the creation of topics.
//! Invariant: the lock is held only while a decision is taken.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::settings::KafkaSpec;
use super::topics::create_one;
use postrider_core::pipeline::{
    AbsentTopic, CreateRule, MissingPolicy, MissingTopic, MissingTopics, TopicDecision, TopicFault,
};
use postrider_core::route::PROGRESS_PREFIX;

/// Others are only counted.
pub(super) const NAMED_MAX: usize = 20;
const COMPACTED_MAX: usize = 1_000;

/// A shared book. Without a policy, as in tools, a missing topic is an error.
#[derive(Clone, Default)]
pub struct TopicBook(Option<Arc<Book>>);

struct Book {
    start: Instant,
    policy: MissingPolicy,
    exempt: Vec<String>,
    topics: Mutex<MissingTopics>,
    compacted: Mutex<HashSet<String>>,
    gone: Mutex<Option<String>>,
    any_gone: AtomicBool,
    /// A stored record may be news then.
    any_denied: AtomicBool,
    /// True once a broker accepted a login. A restarting broker's refusal then does not count as a
    /// wrong password.
    let_in: AtomicBool,
    remarks: Mutex<HashSet<String>>,
}

impl PartialEq for TopicBook {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for TopicBook {}

impl fmt::Debug for TopicBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TopicBook").field(&self.0.as_ref().map(|book| &book.policy)).finish()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableTopic {
    pub absent: AbsentTopic,
    pub age: Duration,
    /// Command that fixes it.
    pub help: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unavailable {
    pub topics: Vec<UnavailableTopic>,
    pub missing: usize,
    /// Topics that the relay is not authorised to use.
    pub forbidden: usize,
}

impl TopicBook {
    pub fn new(policy: MissingPolicy, exempt: Vec<String>) -> Self {
        let topics = Mutex::new(MissingTopics::new(policy.clone()));
        Self(Some(Arc::new(Book {
            start: Instant::now(),
            policy,
            exempt,
            topics,
            compacted: Mutex::default(),
            gone: Mutex::default(),
            any_gone: AtomicBool::new(false),
            any_denied: AtomicBool::new(false),
            let_in: AtomicBool::new(false),
            remarks: Mutex::default(),
        })))
    }

    /// `None`: no policy applies.
    pub(super) fn decide(
        &self,
        topic: &str,
        quiet: impl FnOnce() -> bool,
    ) -> Option<TopicDecision> {
        let book = self.about(topic)?;
        let mut topics = book.topics();
        if topics.is_empty() {
            return Some(TopicDecision::Ask);
        }
        let decision = topics.decide(topic, book.now(), quiet());
        let rejects = matches!(decision, TopicDecision::Reject(_));
        let untold = if rejects { topics.untold(topic) } else { None };
        let named = topics.len() <= NAMED_MAX;
        drop(topics);
        if let Some(fault) = untold {
            book.tell(topic, fault, &decision, named);
        }
        Some(decision)
    }

    pub(super) fn absent(
        &self,
        kafka: &KafkaSpec,
        topic: &str,
        fault: TopicFault,
    ) -> Option<TopicDecision> {
        let book = self.about(topic)?;
        let mut topics = book.topics();
        let found = topics.absent(topic, fault, book.now());
        Some(self.found(kafka, topic, (fault, found), topics))
    }

    /// `collides`: another name may be in the way.
    pub(super) fn unlisted(
        &self,
        kafka: &KafkaSpec,
        topic: &str,
        collides: bool,
    ) -> Option<TopicDecision> {
        let book = self.about(topic)?;
        let mut topics = book.topics();
        let found = topics.unlisted(topic, collides, book.now());
        Some(self.found(kafka, topic, (TopicFault::Unlisted, found), topics))
    }

    fn found(
        &self,
        kafka: &KafkaSpec,
        topic: &str,
        (fault, (decision, news)): (TopicFault, (TopicDecision, bool)),
        topics: MutexGuard<'_, MissingTopics>,
    ) -> TopicDecision {
        let named = topics.len() <= NAMED_MAX;
        drop(topics);
        if let Some(book) = self.0.as_ref().filter(|_| news) {
            book.tell(topic, fault, &decision, named);
        }
        match decision {
            TopicDecision::Create(rule) => {
                self.create(kafka, topic, rule);
                TopicDecision::Wait
            }
            decision => decision,
        }
    }

    pub(super) fn denied(&self, topic: &str) {
        let Some(book) = self.about(topic) else { return };
        let mut topics = book.topics();
        let (decision, news) = topics.absent(topic, TopicFault::Denied, book.now());
        let named = topics.len() <= NAMED_MAX;
        drop(topics);
        book.any_denied.store(true, Ordering::Relaxed);
        if news {
            book.tell(topic, TopicFault::Denied, &decision, named);
        }
    }

    /// No policy applies to topics that the relay itself writes to.
    pub(super) fn is_exempt(&self, topic: &str) -> bool {
        self.0.as_ref().is_some_and(|book| book.exempt.iter().any(|exempt| exempt == topic))
    }

    pub(super) fn seen(&self, topic: &str) {
        let Some(book) = self.about(topic) else { return };
        let was_away = book.topics().seen(topic, book.now());
        tell_back(topic, was_away);
    }

    /// The topic's records may be in flight: the session must restart.
    pub(super) fn gone(&self, topic: &str) {
        let Some(book) = self.about(topic).filter(|book| !book.topics().has(topic)) else { return };
        *book.gone.lock().unwrap_or_else(PoisonError::into_inner) = Some(topic.to_owned());
        book.any_gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_gone(&self) -> Option<String> {
        let book = self.0.as_ref().filter(|book| book.any_gone.load(Ordering::Relaxed))?;
        book.any_gone.store(false, Ordering::Relaxed);
        book.gone.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A compacted topic requires keys.
    pub(super) fn note_compacted(&self, topic: &str) {
        let Some(book) = &self.0 else { return };
        let mut compacted = book.compacted.lock().unwrap_or_else(PoisonError::into_inner);
        if compacted.len() < COMPACTED_MAX {
            compacted.insert(topic.to_owned());
        }
    }

    pub(super) fn stored_without_key(&self, topic: &str) {
        let Some(book) = &self.0 else { return };
        let mut compacted = book.compacted.lock().unwrap_or_else(PoisonError::into_inner);
        if !compacted.is_empty() {
            compacted.remove(topic);
        }
    }

    pub(super) fn demands_keys(&self, topic: &str) -> bool {
        self.0.as_ref().is_some_and(|book| {
            book.compacted.lock().unwrap_or_else(PoisonError::into_inner).contains(topic)
        })
    }

    pub(super) fn stored(&self, topic: &str) {
        let Some(book) = self.0.as_ref().filter(|book| book.any_denied.load(Ordering::Relaxed))
        else {
            return;
        };
        let mut topics = book.topics();
        if !topics.has(topic) {
            return;
        }
        let was_away = topics.present(topic, book.now());
        let any = topics.count(TopicFault::Denied) > 0;
        book.any_denied.store(any, Ordering::Relaxed);
        drop(topics);
        tell_back(topic, was_away);
    }

    pub fn waits(&self) -> bool {
        let waits = |book: &Arc<Book>| matches!(book.policy.then, MissingTopic::Wait(_));
        self.0.as_ref().is_none_or(waits)
    }

    pub(super) fn let_in(&self) {
        if let Some(book) = &self.0 {
            book.let_in.store(true, Ordering::Relaxed);
        }
    }

    pub fn was_let_in(&self) -> bool {
        self.0.as_ref().is_some_and(|book| book.let_in.load(Ordering::Relaxed))
    }

    pub(super) fn brokers_create(&self, create: Option<bool>) {
        if let Some(book) = &self.0 {
            book.topics().brokers_create(create);
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        let all = self.0.as_ref().map(|book| book.topics().list(usize::MAX));
        all.into_iter().flatten().map(|absent| absent.topic).collect()
    }

    pub fn is_first_remark(&self, what: &str) -> bool {
        self.0.as_ref().is_none_or(|book| {
            let mut told = book.remarks.lock().unwrap_or_else(PoisonError::into_inner);
            told.insert(what.to_owned())
        })
    }

    pub fn unavailable(&self) -> Unavailable {
        let Some(book) = &self.0 else { return Unavailable::default() };
        let (topics, now) = (book.topics(), book.now());
        if topics.is_empty() {
            return Unavailable::default();
        }
        let since = |absent: AbsentTopic| UnavailableTopic {
            age: now.saturating_sub(absent.since),
            help: to_mend(absent.fault, &absent.topic),
            absent,
        };
        Unavailable {
            topics: topics.list(NAMED_MAX).into_iter().map(since).collect(),
            missing: topics.count(TopicFault::Missing) + topics.count(TopicFault::Unlisted),
            forbidden: topics.count(TopicFault::Forbidden) + topics.count(TopicFault::Denied),
        }
    }

    fn about(&self, topic: &str) -> Option<&Arc<Book>> {
        self.0.as_ref().filter(|_| !self.is_exempt(topic))
    }

    fn create(&self, kafka: &KafkaSpec, topic: &str, rule: CreateRule) {
        let (book, kafka, topic) = (self.clone(), kafka.clone(), topic.to_owned());
        let name = topic.clone();
        let failed = self.clone();
        let thread = std::thread::Builder::new().name("postrider-create".to_owned());
        let span = tracing::Span::current();
        let spawned = thread.spawn(move || {
            let _of_stream = span.entered();
            match create_one(&kafka, &topic, &rule) {
                Ok(()) => tracing::info!(topic, "created the topic, as route.missing_topic asks"),
                Err(error) => book.not_created(&topic, &error.to_string()),
            }
        });
        if let Err(error) = spawned {
            failed.not_created(&name, &error.to_string());
        }
    }

    fn not_created(&self, topic: &str, reason: &str) {
        let Some(book) = &self.0 else { return };
        let mut topics = book.topics();
        topics.not_created(topic, reason, book.now());
        let named = topics.len() <= NAMED_MAX;
        drop(topics);
        if named {
            let help = to_create(topic);
            tracing::warn!(topic, reason, help, "the topic could not be created");
        } else {
            tracing::debug!(topic, reason, "the topic could not be created");
        }
    }
}

impl Book {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn topics(&self) -> MutexGuard<'_, MissingTopics> {
        // The data is consistent between any two calls.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, topic: &str, fault: TopicFault, decision: &TopicDecision, named: bool) {
        if !named {
            tracing::debug!(topic, fault = fault.as_str(), "a topic is missing or forbidden");
            return;
        }
        let then = match self.policy.then {
            MissingTopic::Wait(_) => "its rows wait, and all rows after them",
            MissingTopic::Create | MissingTopic::Reject(_) => {
                "its rows become dead letters until it exists"
            }
        };
        let what = match fault {
            TopicFault::Missing => "does not exist",
            TopicFault::Unlisted => "is not in the brokers' list of topics",
            TopicFault::Forbidden | TopicFault::Denied => "is forbidden to us",
        };
        let help = to_mend(fault, topic);
        let reason = match decision {
            TopicDecision::Reject(rejection) => Some(rejection.reason.as_str()),
            _ => None,
        };
        tracing::warn!(help, reason, "topic `{topic}` {what}; {then}");
    }
}

fn tell_back(topic: &str, was_away: Option<Duration>) {
    if let Some(away) = was_away {
        let away_ms = u64::try_from(away.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(topic, away_ms, "the topic can be used");
    }
}

fn to_mend(fault: TopicFault, topic: &str) -> String {
    match fault {
        TopicFault::Missing => to_create(topic),
        TopicFault::Unlisted => {
            format!("{}; if it is there, {}", to_create(topic), to_allow(topic))
        }
        TopicFault::Forbidden | TopicFault::Denied => to_allow(topic),
    }
}

pub(super) fn to_create(topic: &str) -> String {
    let how = if topic.starts_with(PROGRESS_PREFIX) {
        "--partitions 1 --config cleanup.policy=compact"
    } else {
        "--partitions 3"
    };
    format!(
        "create it: `postrider setup --topics={topic}`; or: kafka-topics.sh --bootstrap-server BROKER --create \
         --topic '{topic}' {how}"
    )
}

pub(super) fn to_allow(topic: &str) -> String {
    format!(
        "allow it: kafka-acls.sh --bootstrap-server BROKER --add --allow-principal User:NAME \
         --producer --topic '{topic}'"
    )
}
