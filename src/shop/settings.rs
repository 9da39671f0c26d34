//! Settings that all services share, and the objects built from them.
//!
//! Invariant: every session has lock, statement and idle-in-transaction timeouts, unless its
//! `options` set others.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::connect::resolve;
use super::error::ShopError;
use super::kafka::KafkaArgs;
use postrider_patterns::inbox::{CacheSpec, ConsumerSpec};
use postrider_postgres::control::{LoginRefused, SqlAddress};

/// Each session is a backend process of the server.
pub(super) const SESSIONS: usize = 16;
const SESSION_LIMIT: Duration = Duration::from_secs(5);
/// Defaults of libpq's variables: `SESSION_LIMIT` in seconds, and only servers that accept writes.
const DEFAULTS: [(&str, &str); 2] =
    [("PGCONNECT_TIMEOUT", "5"), ("PGTARGETSESSIONATTRS", "read-write")];
/// A server that does not acknowledge data is given up after the relay's `tcp_user_timeout`.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// A request that waits longer for another one with its key gets 409. A frozen process must not
/// hold locks for ever.
const TIMEOUT_OPTIONS: &str = "-c lock_timeout=1s -c statement_timeout=30s \
                      -c idle_in_transaction_session_timeout=10s";

/// `session.timeout.ms`: a killed member's partitions are not read for that long, and an order
/// takes several steps.
const SESSION_TIMEOUT_MS: &str = "10000";

/// Connections of a service.
#[derive(Clone, Args)]
pub struct ServiceSettings {
    /// The database: a URL or key=value pairs
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// Kafka
    #[command(flatten)]
    pub kafka: KafkaArgs,
    /// Redis, a cache in front of the database; everything works without it
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,
    /// Where health, metrics and, for orders, the API are served
    #[arg(long, env = "SHOP_BIND", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub bind: SocketAddr,
}

impl fmt::Debug for ServiceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs may contain passwords.
        f.debug_struct("ServiceSettings")
            .field("kafka", &self.kafka)
            .field("bind", &self.bind)
            .finish_non_exhaustive()
    }
}

pub struct ServiceListener<S> {
    pub(super) listener: TcpListener,
    pub(super) stop: S,
}

impl<S: Future<Output = ()>> ServiceListener<S> {
    pub async fn listen(bind: SocketAddr, stop: S) -> Result<Self, ShopError> {
        let failed = |source| ShopError::Bind(bind, source);
        let listener = TcpListener::bind(bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        info!(%address, "serving");
        Ok(Self { listener, stop })
    }

    /// Returns the real port if `bind` had port 0.
    pub fn address(&self) -> Result<SocketAddr, ShopError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        self.listener.local_addr().map_err(|source| ShopError::Bind(unknown, source))
    }
}

/// SIGHUP comes from a closed terminal.
pub async fn stop_signal() {
    match (signal(SignalKind::terminate()), signal(SignalKind::hangup())) {
        (Ok(mut terminate), Ok(mut hangup)) => tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        _ => std::future::pending().await,
    }
}

impl ServiceSettings {
    pub(super) fn database(&self) -> Result<SqlAddress, ShopError> {
        database(&self.database_url)
    }

    /// Completes only if the database refuses the login now, because retries do not help then.
    pub(super) async fn login_refused(&self) -> ShopError {
        match resolve(&self.database_url, &DEFAULTS) {
            Err(error) => return error,
            Ok(info) => {
                if let Some(refusal) = LoginRefused::ask(&info).await {
                    return ShopError::Refused(refusal);
                }
            }
        }
        std::future::pending().await
    }

    pub(super) fn consumer(
        &self,
        name: &str,
        topics: &[&str],
        database: &SqlAddress,
    ) -> Result<ConsumerSpec, ShopError> {
        let topics = topics.iter().copied();
        let mut spec = ConsumerSpec::new(name, topics, "", database.config.clone());
        spec.kafka = vec![("session.timeout.ms".to_owned(), SESSION_TIMEOUT_MS.to_owned())];
        spec.kafka.extend(self.kafka.settings()?);
        spec.cache = self.redis_url.as_deref().map(CacheSpec::new);
        Ok(spec)
    }
}

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

pub(super) fn database(url: &str) -> Result<SqlAddress, ShopError> {
    let mut info = resolve(url, &DEFAULTS)?;
    // The later of two options with one name applies.
    info.options = format!("{TIMEOUT_OPTIONS} {}", info.options);
    info.keepalives.idle.get_or_insert(KEEPALIVE_IDLE);
    SqlAddress::of(&info).map_err(ShopError::Address)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio_postgres::Config;
    use tokio_postgres::config::TargetSessionAttrs;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        settings: ServiceSettings,
    }

    fn config(url: &str) -> Config {
        database(&format!("user=u host=db sslmode=disable {url}")).unwrap().config
    }

    #[test]
    fn options_of_the_url_come_after_the_limits_and_take_none_away() {
        let options = config("options=-csearch_path=shop").get_options().unwrap().to_owned();
        assert_eq!(options, format!("{TIMEOUT_OPTIONS} -csearch_path=shop"));
    }

    #[test]
    fn what_the_url_says_of_time_and_servers_holds_and_the_rest_is_ours() {
        let ours = config("");
        assert_eq!(ours.get_connect_timeout(), Some(&SESSION_LIMIT));
        assert_eq!(ours.get_keepalives_idle(), KEEPALIVE_IDLE);
        assert_eq!(ours.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        let theirs = config(
            "connect_timeout=2 tcp_user_timeout=3000 keepalives_idle=4 target_session_attrs=any",
        );
        assert_eq!(theirs.get_connect_timeout(), Some(&Duration::from_secs(2)));
        assert_eq!(theirs.get_tcp_user_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(theirs.get_keepalives_idle(), Duration::from_secs(4));
        assert_eq!(theirs.get_target_session_attrs(), TargetSessionAttrs::Any);
    }

    #[test]
    fn settings_that_are_printed_tell_no_password() {
        let flags = Flags::parse_from([
            "x",
            "--database-url=postgres://u:hush@db/d",
            "--redis-url=redis://:hush@cache",
            "--brokers=kafka:9092",
        ]);
        let describe_failure = format!("{flags:?}");
        assert!(
            describe_failure.contains("kafka:9092") && !describe_failure.contains("hush"),
            "{describe_failure}"
        );
    }
}
