//! What every service is told, and what it makes of it.
//!
//! Enters: flags and environment. Leaves: a pool of database sessions, and the specification of a
//! consumer. What always holds: no database and no broker is connected here. Called by the services.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::connect::address;
use super::error::ShopError;
use super::face::Count;
use super::kafka::Kafka;
use crate::control::SqlAddress;
use crate::inbox::{ConsumerSpec, RememberedSpec, Snapshot};

/// Sessions with the database at most. Each is a process there.
pub(super) const SESSIONS: usize = 16;
/// How long a request waits for a session, or for the database to take a connection.
const SESSION_LIMIT: Duration = Duration::from_secs(5);
/// A server that does not answer for so long is given up, with the session.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// A request that waits longer for another with the same key is told to come again; a process that is
/// frozen must not hold its locks for ever.
const LIMITS: &str = "-c lock_timeout=1s -c statement_timeout=30s \
                      -c idle_in_transaction_session_timeout=10s";

/// How long a service may be silent in its Kafka group before others take over what it reads, in ms. A
/// killed one's partitions stand still for that long, and an order takes several steps.
const SILENCE_MS_MAX: &str = "10000";

/// Where a service finds what it needs.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// The database: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// Kafka
    #[command(flatten)]
    pub kafka: Kafka,
    /// Redis, which saves the database from repeats; without it everything works, from Postgres alone
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,
    /// Where health, metrics and, for orders, the API are served
    #[arg(long, env = "SHOP_BIND", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub bind: SocketAddr,
}

/// Where a service listens, and until when.
pub struct Place<S> {
    pub(super) listener: TcpListener,
    pub(super) stop: S,
}

impl<S: Future<Output = ()>> Place<S> {
    /// Listens at `bind`; the service ends when `stop` does.
    pub async fn take(bind: SocketAddr, stop: S) -> Result<Self, ShopError> {
        let taken = |source| ShopError::Bind(bind, source);
        let listener = TcpListener::bind(bind).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        info!(%address, "serving");
        Ok(Self { listener, stop })
    }

    /// Where it listens; of use where `bind` left the port open.
    pub fn address(&self) -> Result<SocketAddr, ShopError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        self.listener.local_addr().map_err(|source| ShopError::Bind(unknown, source))
    }
}

/// Ends with SIGINT or SIGTERM.
pub(super) async fn interrupted() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => std::future::pending().await,
    }
}

impl Settings {
    /// Where the database is.
    pub(super) fn database(&self) -> Result<SqlAddress, ShopError> {
        database(&self.database_url)
    }

    /// A consumer that reads `topics` in the name of a service.
    pub(super) fn consumer(
        &self,
        name: &str,
        topics: &[&str],
        database: &SqlAddress,
    ) -> Result<ConsumerSpec, ShopError> {
        let topics = topics.iter().copied();
        let mut spec = ConsumerSpec::new(name, topics, "", database.config.clone());
        spec.kafka = vec![("session.timeout.ms".to_owned(), SILENCE_MS_MAX.to_owned())];
        spec.kafka.extend(self.kafka.settings()?);
        spec.remembered = self.redis_url.as_deref().map(RememberedSpec::new);
        Ok(spec)
    }
}

/// Sessions with the database, made as they are needed.
pub(super) fn pool(database: &SqlAddress) -> Result<Pool, ShopError> {
    let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let SqlAddress { config, tls } = database.clone();
    let manager = Manager::from_config(config, tls, recycle);
    let limit = Some(SESSION_LIMIT);
    Pool::builder(manager)
        .max_size(SESSIONS)
        .timeouts(Timeouts { wait: limit, create: limit, recycle: limit })
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(ShopError::Pool)
}

/// Where `url` leads, with this room's limits.
pub(super) fn database(url: &str) -> Result<SqlAddress, ShopError> {
    let mut address = address(url)?;
    let config = &mut address.config;
    if config.get_options().is_none() {
        config.options(LIMITS);
    }
    config.connect_timeout(SESSION_LIMIT).tcp_user_timeout(SILENCE_LIMIT);
    config.keepalives_idle(SILENCE_LIMIT);
    Ok(address)
}

/// A consumer's numbers, for the face.
pub(super) fn counts(consumer: &Snapshot) -> Vec<Count> {
    vec![
        ("shop_messages_processed_total", "messages that had their effect", consumer.processed),
        ("shop_messages_repeated_total", "messages that had had it", consumer.duplicates),
        ("shop_dead_letters_total", "messages set aside", consumer.dead_letters),
        ("shop_retries_total", "attempts after a failure", consumer.retries),
        ("shop_cache_hits_total", "repeats that Redis knew", consumer.cache_hits),
        ("shop_cache_misses_total", "questions to the database", consumer.cache_misses),
        ("shop_cache_failures_total", "questions Redis did not answer", consumer.cache_failures),
    ]
}
