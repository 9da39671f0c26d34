//! Converts connection settings to tokio-postgres's, for other SQL sessions.
//!
//! Invariant: certificates are checked like on the relay's own connections; a setting that
//! tokio-postgres cannot express is refused. With `sslmode=prefer` a failed TLS handshake is not
//! repeated without TLS.

use tokio_postgres::config::{self, LoadBalanceHosts as TokioLoadBalanceHosts};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect::{connect, login_config};
use super::error::ControlError;
use crate::libpq::ConnectInfo;
use crate::libpq::{
    Endpoint, HostAddress, LoadBalanceHosts, RootCertificate, SslMode, TargetSessionAttrs,
    TlsSettings,
};
use crate::wal::{TlsFilesError, dial, tls};

#[derive(Clone)]
pub struct SqlAddress {
    pub config: config::Config,
    /// TLS connector for all servers except unix sockets.
    pub tls: MakeRustlsConnect,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// Setting that only a single session can have.
    #[error("connection parameter `{parameter}` is not supported here: {reason}")]
    Unsupported { parameter: &'static str, reason: &'static str },
}

/// A refused login that a retry would not fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct LoginRefused {
    what: String,
    pub hint: Option<String>,
    pub exit_code: u8,
}

impl AddressError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Tls(error) => error.hint(),
            Self::Unsupported { .. } => None,
        }
    }
}

impl LoginRefused {
    /// `None` also if the server is unreachable, starting, or of another type.
    pub async fn ask(info: &ConnectInfo) -> Option<Self> {
        let error = connect(info).await.err().filter(|error| !error.class().is_transient())?;
        let what = match &error {
            ControlError::Connection { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        Some(Self { what, hint: error.hint(), exit_code: error.class().exit_code() })
    }
}

impl SqlAddress {
    /// Reads certificates without connecting.
    pub fn of(info: &ConnectInfo) -> Result<Self, AddressError> {
        let uses_tls = info.endpoints.iter().any(|endpoint| dial::uses_tls(info, endpoint));
        if uses_tls && !info.endpoints.iter().all(|endpoint| dial::uses_tls(info, endpoint)) {
            // tokio-postgres requests encryption on each socket.
            let reason = "unix sockets are not encrypted; name them alone, or set sslmode=disable";
            return Err(AddressError::Unsupported { parameter: "sslmode", reason });
        }
        let tls = MakeRustlsConnect::new(if uses_tls {
            tls::client_config(&info.tls)?
        } else {
            // TLS is not used, so its files are not read.
            tls::client_config(&TlsSettings {
                mode: SslMode::Disable,
                root: RootCertificate::None,
                client: None,
                ..info.tls.clone()
            })?
        });
        let mut config = login_config(info, one_login(&info.endpoints)?, uses_tls);
        servers(&mut config, &info.endpoints)?;
        if !info.require_auth.is_any() {
            let reason = "these sessions do not see how the server authenticates them; leave it out \
                          (and PGREQUIREAUTH), or use channel_binding=require";
            return Err(AddressError::Unsupported { parameter: "require_auth", reason });
        }
        config.target_session_attrs(session_attrs(info.target_session_attrs)?);
        if info.load_balance_hosts == LoadBalanceHosts::Random {
            config.load_balance_hosts(TokioLoadBalanceHosts::Random);
        }
        if let Some(limit) = info.connect_timeout {
            config.connect_timeout(limit);
        }
        let keep = info.keepalives;
        config.keepalives(keep.enabled);
        keep.idle.map(|idle| config.keepalives_idle(idle));
        keep.interval.map(|interval| config.keepalives_interval(interval));
        keep.count.map(|count| config.keepalives_retries(count));
        keep.user_timeout.map(|limit| config.tcp_user_timeout(limit));
        Ok(Self { config, tls })
    }
}

/// The first server, if all have one password.
fn one_login(endpoints: &[Endpoint]) -> Result<&Endpoint, AddressError> {
    const NONE: AddressError =
        AddressError::Unsupported { parameter: "host", reason: "there is none" };
    let first = endpoints.first().ok_or(NONE)?;
    if endpoints.iter().any(|endpoint| endpoint.password != first.password) {
        let reason = "the password file has different ones for the hosts; give one for all";
        return Err(AddressError::Unsupported { parameter: "password", reason });
    }
    Ok(first)
}

fn servers(config: &mut config::Config, endpoints: &[Endpoint]) -> Result<(), AddressError> {
    let mut with_ip = 0;
    for endpoint in endpoints {
        config.port(endpoint.port);
        match &endpoint.address {
            HostAddress::Unix(directory) => config.host_path(directory),
            HostAddress::Tcp { host, ip } => {
                if let Some(ip) = ip {
                    with_ip += 1;
                    config.hostaddr(*ip);
                }
                config.host(host)
            }
        };
    }
    if with_ip == 0 || with_ip == endpoints.len() {
        return Ok(());
    }
    let reason = "give it for all hosts or for none";
    Err(AddressError::Unsupported { parameter: "hostaddr", reason })
}

fn session_attrs(wanted: TargetSessionAttrs) -> Result<config::TargetSessionAttrs, AddressError> {
    use TargetSessionAttrs as Wanted;
    match wanted {
        Wanted::Any => Ok(config::TargetSessionAttrs::Any),
        Wanted::ReadWrite | Wanted::Primary => Ok(config::TargetSessionAttrs::ReadWrite),
        Wanted::ReadOnly | Wanted::Standby | Wanted::PreferStandby => {
            let reason = "these sessions write; leave it out, or use read-write";
            Err(AddressError::Unsupported { parameter: "target_session_attrs", reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_postgres::config::{Host, SslMode as TokioSslMode};

    use super::*;

    fn address(text: &str) -> Result<SqlAddress, AddressError> {
        let (info, _) = ConnectInfo::resolve(&format!("user=u {text}"), &|_| None).unwrap();
        SqlAddress::of(&info)
    }

    #[test]
    fn everything_of_a_connection_is_passed_on() {
        let SqlAddress { config, .. } = address(
            "host=a,b hostaddr=10.0.0.1,10.0.0.2 port=1,2 dbname=d password=p sslmode=require \
             connect_timeout=3 tcp_user_timeout=4000 keepalives_idle=5 keepalives_interval=6 \
             keepalives_count=7 options=-cwork_mem=1MB application_name=app \
             target_session_attrs=primary load_balance_hosts=random",
        )
        .unwrap();
        let host = |name: &str| Host::Tcp(name.to_owned());
        assert_eq!(config.get_hosts(), [host("a"), host("b")]);
        assert_eq!(config.get_hostaddrs().len(), 2);
        assert_eq!(config.get_ports(), [1, 2]);
        assert_eq!((config.get_user(), config.get_dbname()), (Some("u"), Some("d")));
        assert_eq!(config.get_password(), Some(b"p".as_slice()));
        assert_eq!(config.get_ssl_mode(), TokioSslMode::Require);
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(4)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(5));
        assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(6)));
        assert_eq!(config.get_keepalives_retries(), Some(7));
        assert_eq!(config.get_options(), Some("-cwork_mem=1MB"));
        assert_eq!(config.get_application_name(), Some("app"));
        let wanted = config::TargetSessionAttrs::ReadWrite;
        assert_eq!(config.get_target_session_attrs(), wanted);
        assert_eq!(config.get_load_balance_hosts(), TokioLoadBalanceHosts::Random);
    }

    #[test]
    fn what_cannot_be_passed_on_is_refused() {
        for (text, parameter) in [
            ("host=a,b hostaddr=10.0.0.1,", "hostaddr"),
            ("host=a target_session_attrs=standby", "target_session_attrs"),
            ("host=/tmp,db sslmode=require", "sslmode"),
            ("host=a require_auth=scram-sha-256", "require_auth"),
        ] {
            let refused = address(text).err();
            assert!(
                matches!(refused, Some(AddressError::Unsupported { parameter: p, .. }) if p == parameter),
                "{text}: {refused:?}"
            );
        }
        let refused = address("host=a sslmode=verify-full").err();
        assert_eq!(refused, Some(AddressError::Tls(TlsFilesError::NoRoot)));
    }

    #[test]
    fn a_unix_socket_needs_no_tls_and_no_certificates() {
        let SqlAddress { config, .. } =
            address("host=/tmp sslmode=verify-full sslrootcert=/nowhere").unwrap();
        assert_eq!(config.get_ssl_mode(), TokioSslMode::Disable);
    }
}
