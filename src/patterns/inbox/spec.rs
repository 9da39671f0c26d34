//! Settings of a consumer and its Redis cache, with validation. Invariant: `Debug` shows no
//! password.

use std::time::Duration;

use super::{Backoff, InboxError, MessageFormat, SequenceSpec};
use crate::dead_letter::topic_of;

const OWN_SETTINGS: [&str; 7] = [
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "isolation.level",
    "auto.offset.reset",
    "partition.assignment.strategy",
    "enable.partition.eof",
];

/// A topic name has at most 249 characters, and the dead-letter suffix needs the rest.
const NAME_CHARS_MAX: usize = 200;

/// Settings of an idempotent consumer. [`new`](Self::new) sets the usual values.
#[derive(Clone)]
#[non_exhaustive]
pub struct ConsumerSpec {
    /// Permanent name, 1 to 200 characters: the Kafka group, the owner of the markers, and the
    /// prefix of the dead-letter topic `<name>.dead-letters`.
    pub name: String,
    /// Topics to read, without the consumer's own dead-letter topic.
    pub topics: Vec<String>,
    /// Format of the records in these topics.
    pub format: MessageFormat,
    /// librdkafka's settings, with at least `bootstrap.servers`. Settings that the guarantee
    /// depends on are refused.
    pub kafka: Vec<(String, String)>,
    /// Database of markers and effects.
    pub database: tokio_postgres::Config,
    /// Maximum number of messages per transaction, 1 to 10,000.
    pub batch_max: usize,
    /// Maximum number of attempts before a message becomes a dead letter. Attempts do not count in
    /// a batch, or if the database is unavailable or a row is locked.
    pub attempts_max: u32,
    /// Minimum time of retries if a missing dependency may come later: a foreign key row (23503), a
    /// saga, or the subject of an application's error. Errors in the data use up their attempts at
    /// once.
    pub give_up_after: Duration,
    /// Maximum wait for a lock, a cancelled statement or
    /// [`Failure::Unavailable`](super::Failure::Unavailable) before a message becomes a dead letter
    /// (`waited_too_long`). `None` sets no limit. Time counts only while other messages succeed.
    pub contention_max: Option<Duration>,
    /// Time between attempts. A message also waits for as long as its last attempt took, at most a
    /// minute.
    pub backoff: Backoff,
    /// Maximum time for a statement to wait for a lock, at least a millisecond. The transaction is
    /// then retried, a batch one by one.
    pub lock_timeout: Duration,
    /// Maximum idle time of a transaction, at least a millisecond. A frozen consumer, or an effect
    /// that never returns, thus does not hold markers for ever.
    pub idle_in_transaction_max: Duration,
    /// Cache of processed messages in front of the markers.
    pub cache: Option<CacheSpec>,
    /// Enforces the order of the numbers of each aggregate. `None` means the order of the
    /// partition.
    pub sequence: Option<SequenceSpec>,
}

/// Settings of the Redis cache of processed messages.
#[derive(Clone)]
#[non_exhaustive]
pub struct CacheSpec {
    /// `redis://host:port`, or another form that the guard accepts.
    pub url: String,
    /// Time for which a message is cached, at least a second.
    pub ttl: Duration,
    /// Maximum time for Redis to answer, at least a millisecond.
    pub timeout: Duration,
}

/// Omits the database and the values of Kafka's settings, because both may contain passwords.
impl std::fmt::Debug for ConsumerSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kafka: Vec<&str> = self.kafka.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ConsumerSpec")
            .field("name", &self.name)
            .field("topics", &self.topics)
            .field("format", &self.format)
            .field("kafka", &kafka)
            .field("batch_max", &self.batch_max)
            .field("attempts_max", &self.attempts_max)
            .field("give_up_after", &self.give_up_after)
            .field("contention_max", &self.contention_max)
            .field("backoff", &self.backoff)
            .field("lock_timeout", &self.lock_timeout)
            .field("idle_in_transaction_max", &self.idle_in_transaction_max)
            .field("cache", &self.cache)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CacheSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url: _, ttl, timeout } = self;
        let mut out = f.debug_struct("CacheSpec");
        out.field("ttl", ttl).field("timeout", timeout).finish_non_exhaustive()
    }
}

impl CacheSpec {
    /// Caches for an hour, with a timeout of 100 ms.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ttl: Duration::from_hours(1), timeout: Duration::from_millis(100) }
    }
}

impl ConsumerSpec {
    /// Creates the settings with batches of 200, 5 attempts, 2 s for locks, 30 s of idleness, 5
    /// minutes for dependencies, 15 minutes of contention, and no cache.
    pub fn new(
        name: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
        bootstrap: &str,
        database: tokio_postgres::Config,
    ) -> Self {
        Self {
            name: name.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            format: MessageFormat::new(),
            kafka: vec![("bootstrap.servers".to_owned(), bootstrap.to_owned())],
            database,
            batch_max: 200,
            attempts_max: 5,
            give_up_after: Duration::from_mins(5),
            contention_max: Some(Duration::from_mins(15)),
            backoff: Backoff::default(),
            lock_timeout: Duration::from_secs(2),
            idle_in_transaction_max: Duration::from_secs(30),
            cache: None,
            sequence: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), InboxError> {
        let legal = |char: char| char.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&char);
        let moment = Duration::from_millis(1);
        let (cache, sequence) = (self.cache.as_ref(), self.sequence);
        let checks = [
            (
                self.name.is_empty()
                    || self.name.len() > NAME_CHARS_MAX
                    || !self.name.chars().all(legal),
                "the name must be 1 to 200 letters, digits, dots, dashes and underscores",
            ),
            (self.topics.is_empty(), "there must be at least one topic"),
            (
                self.topics.contains(&topic_of(&self.name)),
                "a consumer cannot read its own dead letters: each would be another one",
            ),
            (!(1..=10_000).contains(&self.batch_max), "a batch has 1 to 10,000 messages"),
            (self.attempts_max == 0, "there must be at least one attempt"),
            (
                self.lock_timeout < moment || self.idle_in_transaction_max < moment,
                "a time limit in the database is at least a millisecond",
            ),
            (
                cache.is_some_and(|cache| cache.ttl.as_secs() == 0 || cache.timeout < moment),
                "the cache's ttl must be at least a second, its timeout at least a millisecond",
            ),
            (
                sequence.is_some_and(|it| {
                    it.gap_wait < moment || !(1..=100_000).contains(&it.buffer_max)
                }),
                "a gap is waited for at least a millisecond, by 1 to 100,000 messages",
            ),
        ];
        if let Some((_, why)) = checks.iter().find(|(broken, _)| *broken) {
            return Err(InboxError::Spec(why));
        }
        let own = self.kafka.iter().find(|(name, _)| OWN_SETTINGS.contains(&name.as_str()));
        own.map_or(Ok(()), |(name, _)| Err(InboxError::OwnSetting(name.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ConsumerSpec {
        ConsumerSpec::new("payments", ["orders"], "localhost:9092", tokio_postgres::Config::new())
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused() {
        assert!(good().check().is_ok());
        let cache = |ttl_s, timeout_ms| {
            let mut spec = CacheSpec::new("redis://localhost");
            spec.ttl = Duration::from_secs(ttl_s);
            spec.timeout = Duration::from_millis(timeout_ms);
            Some(spec)
        };
        let sequence = |gap_wait_ms, buffer_max| {
            let gap_wait = Duration::from_millis(gap_wait_ms);
            Some(SequenceSpec { gap_wait, buffer_max, ..SequenceSpec::default() })
        };
        for bad in [
            ConsumerSpec { name: String::new(), ..good() },
            ConsumerSpec { name: "a/b".into(), ..good() },
            ConsumerSpec { name: "a".repeat(201), ..good() },
            ConsumerSpec { topics: Vec::new(), ..good() },
            ConsumerSpec {
                topics: vec!["orders".into(), "payments.dead-letters".into()],
                ..good()
            },
            ConsumerSpec { batch_max: 0, ..good() },
            ConsumerSpec { batch_max: 10_001, ..good() },
            ConsumerSpec { attempts_max: 0, ..good() },
            ConsumerSpec { lock_timeout: Duration::ZERO, ..good() },
            ConsumerSpec { idle_in_transaction_max: Duration::from_micros(10), ..good() },
            ConsumerSpec { cache: cache(0, 1), ..good() },
            ConsumerSpec { cache: cache(1, 0), ..good() },
            ConsumerSpec { sequence: sequence(0, 1), ..good() },
            ConsumerSpec { sequence: sequence(1, 0), ..good() },
        ] {
            assert!(matches!(bad.check(), Err(InboxError::Spec(_))), "{bad:?}");
        }
    }

    #[test]
    fn settings_that_the_guarantee_rests_on_are_refused_by_name() {
        for name in OWN_SETTINGS {
            let mut spec = good();
            spec.kafka.push((name.to_owned(), "x".to_owned()));
            assert!(matches!(spec.check(), Err(InboxError::OwnSetting(own)) if own == name));
        }
    }

    #[test]
    fn no_password_is_shown() {
        let mut spec = good();
        spec.kafka.push(("sasl.password".to_owned(), "hunter2".to_owned()));
        spec.database.password("hunter2").application_name("hunter2");
        spec.cache = Some(CacheSpec::new("redis://:hunter2@localhost"));
        let text = format!("{spec:?}");
        assert!(text.contains("sasl.password") && !text.contains("hunter2"), "{text}");
    }
}
