//! The address of Redis: one server, the master that Sentinels name, or a Redis Cluster. Invariant:
//! no error repeats the URL, which may contain passwords. After a failover, a new connection goes
//! to the new master.

use std::time::Duration;

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
use redis::ConnectionInfo;
#[cfg(feature = "redis-cluster")]
use redis::cluster::ClusterClient;
use redis::io::tcp::TcpSettings;
#[cfg(feature = "redis-sentinel")]
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo as _, RedisError, RedisResult,
};

use super::connection::Connection;

/// Includes name resolution, TCP, TLS and authentication.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The kernel's default is about 15 minutes.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(3);
/// Retries for a redirection and for an unreachable node. The caller's time limit ends before more
/// could help.
#[cfg(feature = "redis-cluster")]
const CLUSTER_RETRIES: u32 = 2;

#[derive(Clone)]
pub(crate) enum Server {
    One(Client),
    #[cfg(feature = "redis-cluster")]
    Cluster(Box<ClusterClient>),
    #[cfg(feature = "redis-sentinel")]
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        master: String,
        settings: SentinelNodeConnectionInfo,
    },
}

impl Server {
    pub(crate) fn parse(url: &str) -> RedisResult<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        match scheme.split_once('+') {
            Some((scheme @ ("redis" | "rediss"), "cluster")) => Self::cluster(scheme, rest),
            Some((scheme @ ("redis" | "rediss"), "sentinel")) => Self::sentinel(scheme, rest),
            _ => Ok(Self::One(Client::open(url.into_connection_info()?.set_tcp_settings(tcp()))?)),
        }
    }

    #[cfg(feature = "redis-cluster")]
    fn cluster(scheme: &str, rest: &str) -> RedisResult<Self> {
        let url = MultiHostUrl::parse(rest);
        if !url.query.is_empty() {
            return Err(invalid("a cluster's URL has no parameters"));
        }
        let nodes = url.hosts(scheme, url.login, url.path)?;
        let builder = ClusterClient::builder(nodes)
            .tcp_settings(tcp())
            .retries(CLUSTER_RETRIES)
            .connection_timeout(CONNECT_TIMEOUT)
            // The caller limits the time of the whole call.
            .overall_response_timeout(None);
        Ok(Self::Cluster(Box::new(builder.build()?)))
    }

    #[cfg(not(feature = "redis-cluster"))]
    fn cluster(_: &str, _: &str) -> RedisResult<Self> {
        Err(invalid("built without the feature `redis-cluster`"))
    }

    #[cfg(feature = "redis-sentinel")]
    fn sentinel(scheme: &str, rest: &str) -> RedisResult<Self> {
        let url = MultiHostUrl::parse(rest);
        let (master, database) = url.path.split_once('/').unwrap_or((url.path, ""));
        if master.is_empty() {
            return Err(invalid("the name of the master is missing"));
        }
        let login = match url.query.split_once('=') {
            Some(("sentinel_login", login)) => format!("{login}@"),
            None if url.query.is_empty() => String::new(),
            _ => return Err(invalid("the only parameter is sentinel_login")),
        };
        let sentinels = url.hosts(scheme, &login, "")?;
        let master_info = connection_info(scheme, url.login, "named-by-sentinel", database)?;
        let mut settings = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(master_info.redis_settings().clone())
            .set_tcp_settings(tcp());
        if scheme == "rediss" {
            settings = settings.set_tls_mode(redis::TlsMode::Secure);
        }
        Ok(Self::Sentinel { sentinels, master: master.to_owned(), settings })
    }

    #[cfg(not(feature = "redis-sentinel"))]
    fn sentinel(_: &str, _: &str) -> RedisResult<Self> {
        Err(invalid("built without the feature `redis-sentinel`"))
    }

    /// Has no time limit for the whole operation. Must be called inside a tokio runtime.
    pub(crate) async fn connect(&self) -> RedisResult<Connection> {
        match self {
            Self::One(client) => one(client).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(client) => Ok(Connection::Cluster(client.get_async_connection().await?)),
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel { sentinels, master, settings } => {
                let mut client = SentinelClient::build(
                    sentinels.clone(),
                    master.clone(),
                    Some(settings.clone()),
                    SentinelServerType::Master,
                )?;
                one(&client.async_get_client().await?).await
            }
        }
    }
}

async fn one(client: &Client) -> RedisResult<Connection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None);
    Ok(Connection::One(client.get_multiplexed_async_connection_with_config(&config).await?))
}

fn tcp() -> TcpSettings {
    // Without nodelay, a small request waits until the previous one is acknowledged.
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(TCP_USER_TIMEOUT);
    tcp
}

fn invalid(why: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, why).into()
}

/// Parts of `[login@]host[,host..][/path][?query]`. The URL is percent-encoded, so no part contains
/// a separator.
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
struct MultiHostUrl<'a> {
    /// With its `@`, or empty.
    login: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
impl<'a> MultiHostUrl<'a> {
    fn parse(rest: &'a str) -> Self {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        Self { login, hosts, path, query }
    }

    fn hosts(&self, scheme: &str, login: &str, path: &str) -> RedisResult<Vec<ConnectionInfo>> {
        self.hosts.split(',').map(|host| connection_info(scheme, login, host, path)).collect()
    }
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
fn connection_info(
    scheme: &str,
    login: &str,
    host: &str,
    path: &str,
) -> RedisResult<ConnectionInfo> {
    let info = format!("{scheme}://{login}{host}/{path}").into_connection_info()?;
    Ok(info.set_tcp_settings(tcp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        let error = Server::parse(url).err().unwrap();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
        text
    }

    #[test]
    fn an_invalid_url_is_refused_without_being_repeated() {
        for url in [
            "",
            "host:6379",
            "redis://:s3cret@host:port/",
            "redis+cluster://:s3cret@",
            "redis+cluster://:s3cret@one:1,two:port",
            "redis+cluster://:s3cret@one:1,,two:2",
            "redis+cluster://one:1?protocol=s3cret",
            "redis+sentinel://:s3cret@one:1",
            "redis+sentinel://:s3cret@one:1/",
            "redis+sentinel://:s3cret@one:port/master",
            "redis+sentinel://:s3cret@one:1/master/database",
            "redis+sentinel://one:1/master?password=s3cret",
            "redis+else://:s3cret@one:1",
        ] {
            refused(url);
        }
    }

    #[cfg(not(feature = "redis-cluster"))]
    #[test]
    fn a_cluster_without_its_feature_is_refused() {
        assert!(refused("redis+cluster://one:1").contains("redis-cluster"));
    }

    #[cfg(not(feature = "redis-sentinel"))]
    #[test]
    fn a_sentinel_without_its_feature_is_refused() {
        assert!(refused("redis+sentinel://one:1/master").contains("redis-sentinel"));
    }

    #[cfg(feature = "redis-cluster")]
    #[test]
    fn a_clusters_nodes_share_the_login() {
        for url in [
            "redis+cluster://one:1",
            "redis+cluster://user:s3c%40ret@one:1,two:2,[::1]:3/",
            "redis+cluster://:s3cret@one,two/0",
        ] {
            assert!(matches!(Server::parse(url), Ok(Server::Cluster(_))), "{url}");
        }
    }

    #[cfg(feature = "redis-sentinel")]
    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let url = "redis+sentinel://user:s3c%40ret@one:1,two:2/main/3?sentinel_login=:0th%3Aer";
        let Ok(Server::Sentinel { sentinels, master, .. }) = Server::parse(url) else { panic!() };
        assert_eq!(master, "main");
        let seen: Vec<_> = sentinels
            .iter()
            .map(|info| (info.addr().to_string(), info.redis_settings().password()))
            .collect();
        let password = Some("0th:er");
        assert_eq!(seen, [("one:1".to_owned(), password), ("two:2".to_owned(), password)]);
    }
}
