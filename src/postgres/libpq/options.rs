//! Types for the values of libpq's connection parameters.
//!
//! The macro `words!` defines an enum with its accepted keywords, which error messages list. The
//! meanings are libpq's.

use std::path::PathBuf;
use std::time::Duration;

pub(super) trait Words: Copy + 'static {
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
    /// `sslmode`.
    pub SslMode,
    Disable = "disable";
    /// `allow` is treated alike.
    Prefer = "prefer" | "allow";
    /// The certificate is checked only if a root certificate is configured.
    Require = "require";
    /// The certificate must descend from a trusted root.
    VerifyCa = "verify-ca";
    /// `verify-ca`, with a certificate for the host's name.
    VerifyFull = "verify-full";
}

words! {
    /// `channel_binding`: binding of SCRAM to TLS.
    pub ChannelBinding,
    Disable = "disable";
    Prefer = "prefer";
    Require = "require";
}

words! {
    /// `target_session_attrs`.
    pub TargetSessionAttrs,
    Any = "any";
    ReadWrite = "read-write";
    ReadOnly = "read-only";
    Primary = "primary";
    Standby = "standby";
    /// A standby if there is one, otherwise any server.
    PreferStandby = "prefer-standby";
}

words! {
    /// `load_balance_hosts`.
    pub LoadBalanceHosts,
    Disable = "disable";
    /// Shuffled at every attempt.
    Random = "random";
}

words! {
    /// `sslnegotiation`.
    pub SslNegotiation,
    /// Works with every version.
    Postgres = "postgres";
    /// TLS from the first byte; PostgreSQL 17 and later.
    Direct = "direct";
}

words! {
    /// `sslcertmode`.
    pub(super) SslCertMode,
    /// Ignores even the default file.
    Disable = "disable";
    /// Sends a certificate if the server requests it.
    Allow = "allow";
    /// Treated as `allow`, because TLS 1.3 does not reveal the server's request.
    Require = "require";
}

words! {
    /// Versions before 1.2 are not supported.
    pub TlsVersion,
    /// Older minimum versions map to this one.
    Tls12 = "TLSv1.2" | "TLSv1.1" | "TLSv1";
    Tls13 = "TLSv1.3";
}

/// `sslrootcert`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCertificate {
    None,
    File(PathBuf),
    /// `sslrootcert=system`.
    System,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM file with the chain.
    pub certificate: PathBuf,
    /// PEM file, unencrypted.
    pub key: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    pub mode: SslMode,
    pub negotiation: SslNegotiation,
    pub root: RootCertificate,
    pub client: Option<ClientCertificate>,
    /// Sends the host's name in clear text (`sslsni`).
    pub sni: bool,
    pub version_min: TlsVersion,
    pub version_max: TlsVersion,
}

/// Zero or `None` keeps the system's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalives {
    pub enabled: bool,
    pub idle: Option<Duration>,
    pub interval: Option<Duration>,
    /// Lost probes until the connection counts as dead.
    pub count: Option<u32>,
    /// Limit for unacknowledged data.
    pub user_timeout: Option<Duration>,
}
