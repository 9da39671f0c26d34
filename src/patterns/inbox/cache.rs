//! Caches ids of processed messages in Redis, so that most repeats need no transaction in Postgres.
//!
//! Input: ids, before the transaction and after its commit. Output: those of them that are certainly
//! processed. Invariant: only what was committed is ever cached, so a hit is true; a miss says nothing, so
//! a cache that is flushed, fails or is unavailable costs time and no more.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use uuid::Uuid;

use super::counters::{ConsumerCounters, add};
use super::{CacheSpec, InboxError};

/// How long the cache is bypassed after a failure: an outage then costs one timeout per second.
const BYPASS_TIME: Duration = Duration::from_secs(1);

/// The processed messages of one consumer.
pub(super) struct DoneCache {
    client: Client,
    spec: CacheSpec,
    /// Of all keys.
    prefix: String,
    connection: Option<MultiplexedConnection>,
    bypassed_until: Option<Instant>,
    counters: Arc<ConsumerCounters>,
}

impl DoneCache {
    /// Connects when it is first asked.
    pub(super) fn new(
        spec: &CacheSpec,
        consumer: &str,
        counters: Arc<ConsumerCounters>,
    ) -> Result<Self, InboxError> {
        Ok(Self {
            client: Client::open(spec.url.as_str()).map_err(|_| InboxError::CacheUrl)?,
            spec: spec.clone(),
            prefix: format!("postrider:done:{consumer}:"),
            connection: None,
            bypassed_until: None,
            counters,
        })
    }

    /// Those of the ids that are certainly processed.
    pub(super) async fn find(&mut self, ids: &[Uuid]) -> HashSet<Uuid> {
        let mut question = redis::cmd("MGET");
        for id in ids {
            question.arg(self.key(*id));
        }
        let answer = async |mut connection: MultiplexedConnection| {
            question.query_async::<Vec<Option<Vec<u8>>>>(&mut connection).await
        };
        let Some(answers) = self.exchange(ids, answer).await else { return HashSet::new() };
        let known = ids.iter().zip(answers).filter(|(_, answer)| answer.is_some());
        let known: HashSet<Uuid> = known.map(|(&id, _)| id).collect();
        add(&self.counters.cache_hits, known.len());
        add(&self.counters.cache_misses, ids.len() - known.len());
        known
    }

    /// Stores what the database has committed.
    pub(super) async fn keep(&mut self, ids: &[Uuid]) {
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.set_ex(self.key(*id), "", self.spec.ttl.as_secs()).ignore();
        }
        let answer = async |mut connection: MultiplexedConnection| {
            pipe.query_async::<()>(&mut connection).await
        };
        // A lost entry is only a miss.
        let _: Option<()> = self.exchange(ids, answer).await;
    }

    fn key(&self, id: Uuid) -> String {
        format!("{}{id}", self.prefix)
    }

    /// One request within the time limit; `None` while the cache is unavailable.
    async fn exchange<T>(
        &mut self,
        ids: &[Uuid],
        ask: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
    ) -> Option<T> {
        let is_bypassed = self.bypassed_until.is_some_and(|until| Instant::now() < until);
        if is_bypassed || ids.is_empty() {
            return None;
        }
        let limit = self.spec.timeout;
        let known = self.connection.take();
        let both = async {
            let connection = match known {
                Some(connection) => connection,
                None => connect(&self.client, limit).await?,
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

async fn connect(client: &Client, limit: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(Some(limit));
    client.get_multiplexed_async_connection_with_config(&config).await
}
