//! Servers, requests and responses that the tests share.

use std::time::Duration;

use postrider::idempotency::{
    BeginOutcome, Fingerprint, Guard, GuardSettings, Key, Lease, Request, StoredResponse,
};
use postrider::sandbox::redis::Redis;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use support::task::wait_for;
use tokio_postgres::Client;

use crate::database::{Stage, count};

/// For what must happen, some time.
const LIMIT: Duration = Duration::from_mins(1);

/// Patient with Redis, so that a busy machine is not taken for a dead server; quick to ask it again.
pub(crate) fn settings() -> GuardSettings {
    let patient = GuardSettings::default().response_timeout(Duration::from_secs(20));
    patient.bypass(Duration::from_millis(50))
}

/// A guard before a Redis of its own.
pub(crate) fn guarded(settings: &GuardSettings) -> (Redis, Guard) {
    let redis = Redis::start().unwrap();
    let guard = Guard::connect(&redis.url(), settings).unwrap();
    (redis, guard)
}

/// A session beside the guard's.
pub(crate) async fn session(redis: &Redis) -> MultiplexedConnection {
    let client = redis::Client::open(redis.url()).unwrap();
    // Patient, as its default of half a second is not.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT));
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// Runs one command, its words separated by spaces.
pub(crate) async fn command(redis: &Redis, command: &str) -> redis::Value {
    let mut words = command.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query_async(&mut session(redis).await).await.unwrap()
}

/// The only key in Redis.
pub(crate) async fn only_key(redis: &Redis) -> Vec<u8> {
    let keys: Vec<Vec<u8>> =
        redis::cmd("KEYS").arg("*").query_async(&mut session(redis).await).await.unwrap();
    let [key] = keys.as_slice() else { panic!("{} keys", keys.len()) };
    key.clone()
}

/// How often a command was run, by clients and scripts, since the server's start.
pub(crate) async fn calls(redis: &Redis, command: &str) -> u64 {
    let mut session = session(redis).await;
    let text: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut session).await.unwrap();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

pub(crate) fn request(key: &str) -> Request {
    request_with_body(key, "{\"item\":1}")
}

/// The same key with a body of its own.
pub(crate) fn request_with_body(key: &str, body: &str) -> Request {
    let fingerprint = Fingerprint::of("POST", "/orders", body.as_bytes());
    Request::new("tenant-7", Key::parse(key).unwrap(), fingerprint).unwrap()
}

pub(crate) fn response(body: &str) -> StoredResponse {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    StoredResponse::new(201, headers, body.to_owned()).unwrap()
}

pub(crate) fn lease(begin: BeginOutcome) -> Lease {
    match begin {
        BeginOutcome::New(lease) => lease,
        other => panic!("not new: {other:?}"),
    }
}

pub(crate) fn replayed(begin: BeginOutcome) -> StoredResponse {
    match begin {
        BeginOutcome::Replay(response) => response,
        other => panic!("not replayed: {other:?}"),
    }
}

/// Begins again and again until Redis decides.
pub(crate) async fn begin_when_redis_is_back(guard: &Guard, request: &Request) -> BeginOutcome {
    let decided =
        async || Some(guard.begin(request).await).filter(|it| !matches!(it, BeginOutcome::Unsure));
    wait_for("Redis to decide", decided).await
}

/// A database of the application, with a table that records every effect.
pub(crate) struct Database(Stage);

impl Database {
    pub(crate) async fn migrated() -> Self {
        let (stage, client) = Stage::set().await;
        // Nothing here is unique but the key of the guard.
        client.batch_execute("CREATE TABLE effects (key text NOT NULL)").await.unwrap();
        Self(stage)
    }

    pub(crate) async fn empty() -> Self {
        Self(Stage::empty().await.0)
    }

    pub(crate) async fn client(&self) -> Client {
        self.0.connect().await
    }

    pub(crate) async fn effects(&self) -> i64 {
        count(&self.client().await, "SELECT count(*) FROM effects").await
    }

    pub(crate) async fn keys_with_effects(&self) -> i64 {
        count(&self.client().await, "SELECT count(DISTINCT key) FROM effects").await
    }

    /// Waits until this many sessions wait for a lock.
    pub(crate) async fn await_blocked(&self, sessions: i64) {
        let client = self.client().await;
        let blocked = "SELECT count(*) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_for("sessions that wait for a lock", async || {
            (count(&client, blocked).await >= sessions).then_some(())
        })
        .await;
    }
}
