//! Connection settings for Postgres, resolved like libpq.
//!
//! Invariant: of connection string, service file, `PG*` variables and default, the first that names
//! a parameter wins; no password is ever printed.

mod dsn;
mod error;
mod files;
#[macro_use]
mod options;
mod auth;
mod origin;
mod parameters;
mod resolve;
mod secret;
mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use auth::{AuthMethod, RequireAuth};
pub use error::{ConnectInfoError, ConnectInfoWarning};
pub use options::{
    ChannelBinding, ClientCertificate, Keepalives, LoadBalanceHosts, RootCertificate, SslMode,
    SslNegotiation, TargetSessionAttrs, TlsSettings, TlsVersion,
};
pub use origin::ParameterOrigin;
pub use secret::PasswordIssuer;

pub use postrider_secrets::{Password, PasswordCommand, SecretError, read_secret};

/// [`ConnectInfo::renewed`] looks up secrets that can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectInfo {
    /// Servers in the order of attempts; never empty.
    pub endpoints: Vec<Endpoint>,
    pub load_balance_hosts: LoadBalanceHosts,
    pub user: String,
    pub database: String,
    /// Unix sockets are never encrypted.
    pub tls: TlsSettings,
    pub channel_binding: ChannelBinding,
    pub require_auth: RequireAuth,
    /// Limit per endpoint for connecting and logging in.
    pub connect_timeout: Option<Duration>,
    pub application_name: String,
    /// Options of the server process (`-c name=value ..`).
    pub options: String,
    pub target_session_attrs: TargetSessionAttrs,
    pub keepalives: Keepalives,
    secrets: secret::SecretSource,
    origins: BTreeMap<&'static str, ParameterOrigin>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub address: HostAddress,
    /// TCP port, or the number in a unix socket's name.
    pub port: u16,
    pub password: Option<Password>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAddress {
    /// Directory of the socket `.s.PGSQL.<port>`.
    Unix(PathBuf),
    /// The name serves only for certificate checks if `ip` is set.
    Tcp {
        /// `host`, or the text of `hostaddr` if only that is given.
        host: String,
        /// `hostaddr`.
        ip: Option<IpAddr>,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            HostAddress::Unix(directory) => write!(f, "{}", self.socket_of(directory).display()),
            HostAddress::Tcp { host, .. } if host.contains(':') => {
                write!(f, "[{host}]:{}", self.port)
            }
            HostAddress::Tcp { host, .. } => write!(f, "{host}:{}", self.port),
        }
    }
}

impl Endpoint {
    pub fn socket_path(&self) -> Option<PathBuf> {
        match &self.address {
            HostAddress::Unix(directory) => Some(self.socket_of(directory)),
            HostAddress::Tcp { .. } => None,
        }
    }

    fn socket_of(&self, directory: &std::path::Path) -> PathBuf {
        directory.join(format!(".s.PGSQL.{}", self.port))
    }
}

impl ConnectInfo {
    /// Parses a URL, pairs, or an empty text. Warnings concern ignored files.
    pub fn resolve(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Self, Vec<ConnectInfoWarning>), ConnectInfoError> {
        resolve::resolve(text, env)
    }
}
