//! Caches in Redis which messages are processed, so that most repeats need no transaction.
//! Invariant: only committed messages are cached, with their offset, and a hit counts only below
//! the database's offset. A hit is therefore true even after a restore. A failing cache costs only
//! time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisResult;
use uuid::Uuid;

use super::counters::{ConsumerCounters, add};
use super::membership::Membership;
use super::{CacheSpec, InboxError, Message};
use crate::redis_client::{Connection, Server};

/// An outage costs one timeout per second.
const BYPASS_TIME: Duration = Duration::from_secs(1);

pub(super) struct DoneCache {
    server: Server,
    spec: CacheSpec,
    prefix: String,
    connection: Option<Connection>,
    bypassed_until: Option<Instant>,
    counters: Arc<ConsumerCounters>,
}

impl DoneCache {
    pub(super) fn new(
        spec: &CacheSpec,
        consumer: &str,
        counters: Arc<ConsumerCounters>,
    ) -> Result<Self, InboxError> {
        Ok(Self {
            server: Server::parse(&spec.url).map_err(|_| InboxError::CacheUrl)?,
            spec: spec.clone(),
            // The hash tag puts a consumer's keys on one cluster node, so a batch is one command.
            prefix: format!("postrider:done:{{{consumer}}}:"),
            connection: None,
            bypassed_until: None,
            counters,
        })
    }

    pub(super) async fn find(
        &mut self,
        messages: &[&Message],
        membership: &Membership,
    ) -> HashSet<Uuid> {
        let mut question = redis::cmd("MGET");
        for message in messages {
            question.arg(self.key(message));
        }
        let answer = async |mut connection: Connection| {
            question.query_async::<Vec<Option<Vec<u8>>>>(&mut connection).await
        };
        let Some(answers) = self.exchange(messages, answer).await else { return HashSet::new() };
        let is_known = |(message, answer): &(&&Message, Option<Vec<u8>>)| {
            let partition = (message.record.topic.clone(), message.record.partition);
            let offset = answer.as_deref().and_then(offset_of);
            offset.is_some_and(|offset| Some(offset) < membership.stored(&partition))
        };
        let known = messages.iter().zip(answers).filter(is_known);
        let ids: Vec<Uuid> = known.map(|(message, _)| message.id).collect();
        add(&self.counters.cache_hits, ids.len());
        add(&self.counters.cache_misses, messages.len() - ids.len());
        ids.into_iter().collect()
    }

    pub(super) async fn keep(&mut self, messages: &[&Message]) {
        let mut pipe = redis::pipe();
        for message in messages {
            let offset = message.record.offset;
            pipe.set_ex(self.key(message), offset, self.spec.ttl.as_secs()).ignore();
        }
        let answer =
            async |mut connection: Connection| pipe.query_async::<()>(&mut connection).await;
        // A lost entry only causes a miss.
        let _: Option<()> = self.exchange(messages, answer).await;
    }

    /// Offsets compare only within a partition, so the key contains the partition.
    fn key(&self, message: &Message) -> String {
        let record = &message.record;
        format!("{}{}:{}:{}", self.prefix, record.topic, record.partition, message.id)
    }

    /// `None` while the cache is unavailable.
    async fn exchange<T>(
        &mut self,
        messages: &[&Message],
        ask: impl AsyncFnOnce(Connection) -> RedisResult<T>,
    ) -> Option<T> {
        let is_bypassed = self.bypassed_until.is_some_and(|until| Instant::now() < until);
        if is_bypassed || messages.is_empty() {
            return None;
        }
        let limit = self.spec.timeout;
        let known = self.connection.take();
        let both = async {
            let connection = match known {
                Some(connection) => connection,
                None => self.server.connect().await?,
            };
            let answer = ask(connection.clone()).await?;
            RedisResult::Ok((connection, answer))
        };
        if let Ok(Ok((connection, answer))) = tokio::time::timeout(limit, both).await {
            if self.bypassed_until.take().is_some() {
                tracing::info!("the cache of processed messages is available again");
            }
            self.connection = Some(connection);
            return Some(answer);
        }
        add(&self.counters.cache_failures, 1);
        if self.bypassed_until.is_none() {
            tracing::warn!("the cache of processed messages is unavailable; using the database");
        }
        self.bypassed_until = Some(Instant::now() + BYPASS_TIME);
        None
    }
}

/// Entries of an earlier version have no offset and count as misses.
fn offset_of(value: &[u8]) -> Option<i64> {
    str::from_utf8(value).ok()?.parse().ok()
}
