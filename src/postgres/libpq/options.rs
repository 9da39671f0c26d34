//! Types for the values of libpq's connection parameters.
//!
//! The macro `words!` defines an enum with its accepted keywords, which error messages list. The
//! meanings are libpq's; a variant documents its differences.

use std::path::PathBuf;
use std::time::Duration;

pub(super) trait Words: Copy + 'static {
    /// Keywords for errors.
    const EXPECTED: &'static str;
    const WORDS: &'static [(&'static str, Self)];
}

macro_rules! words {
    ($(#[$about:meta])* $vis:vis $name:ident, $($(#[$doc:meta])* $variant:ident = $($word:literal)|+;)*) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$doc])* $variant,)* }

        impl Words for $name {
            const EXPECTED: &'static str =
                concat!("one of", $($(" ", $word),+),*);
            const WORDS: &'static [(&'static str, Self)] = &[$($(($word, Self::$variant)),+),*];
        }
    };
}

words! {
    /// Protection of the connection (`sslmode`).
    pub SslMode,
    Disable = "disable";
    /// Encrypted if the server supports it; `allow` is treated alike.
    Prefer = "prefer" | "allow";
    /// Encrypted; the certificate is checked only if a root certificate is configured.
    Require = "require";
    /// The certificate must descend from a trusted root.
    VerifyCa = "verify-ca";
    /// `verify-ca`, with a certificate for the host's name.
    VerifyFull = "verify-full";
}

words! {
    /// Binding of SCRAM to the TLS channel (`channel_binding`).
    pub ChannelBinding,
    Disable = "disable";
    /// If both sides support it.
    Prefer = "prefer";
    /// Always; other servers are refused.
    Require = "require";
}

words! {
    /// Acceptable servers (`target_session_attrs`).
    pub TargetSessionAttrs,
    Any = "any";
    ReadWrite = "read-write";
    ReadOnly = "read-only";
    Primary = "primary";
    Standby = "standby";
    /// In recovery if there is such a server, otherwise any.
    PreferStandby = "prefer-standby";
}

words! {
    /// Order of connection attempts (`load_balance_hosts`).
    pub LoadBalanceHosts,
    Disable = "disable";
    /// Shuffled at every attempt.
    Random = "random";
}

words! {
    /// Start of TLS (`sslnegotiation`).
    pub SslNegotiation,
    /// Ask the server first; works with every version.
    Postgres = "postgres";
    /// TLS from the first byte; PostgreSQL 17 and later.
    Direct = "direct";
}

words! {
    /// Use of a client certificate (`sslcertmode`).
    pub(super) SslCertMode,
    /// Never, even if the default file exists.
    Disable = "disable";
    /// If the server requests it and a certificate exists.
    Allow = "allow";
    /// The server must request it; treated as `allow`, because TLS 1.3 does not reveal the request.
    Require = "require";
}

words! {
    /// A TLS protocol version; versions before 1.2 are not supported.
    pub TlsVersion,
    /// Older minimum versions map to this one.
    Tls12 = "TLSv1.2" | "TLSv1.1" | "TLSv1";
    Tls13 = "TLSv1.3";
}

/// Trust anchor for the server's certificate (`sslrootcert`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCertificate {
    /// None: no file was named, and the default file does not exist.
    None,
    /// PEM file.
    File(PathBuf),
    /// The operating system's trusted roots (`sslrootcert=system`).
    System,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM file of the certificate and its chain.
    pub certificate: PathBuf,
    /// PEM file of the unencrypted private key.
    pub key: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    pub mode: SslMode,
    pub negotiation: SslNegotiation,
    pub root: RootCertificate,
    pub client: Option<ClientCertificate>,
    /// True if the host's name is sent in clear text (`sslsni`).
    pub sni: bool,
    pub version_min: TlsVersion,
    pub version_max: TlsVersion,
}

/// TCP keepalive; zero or `None` keeps the system's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalives {
    pub enabled: bool,
    /// Silence before the first probe.
    pub idle: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
    /// Lost probes before the connection counts as dead.
    pub count: Option<u32>,
    /// Time for which sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
}
