//! Types for the values of libpq's connection parameters (`sslmode`, `channel_binding`, TLS, keepalives, ...).
//!
//! The macro `words!` defines an enum with its accepted keywords, so that an error message can list them;
//! `resolve` parses. Output: enums and structs for the connection code. Meanings are libpq's; differences are
//! documented at the variant.

use std::path::PathBuf;
use std::time::Duration;

/// An enumeration read from a word of libpq.
pub(super) trait Words: Copy + 'static {
    /// The words as an error names them.
    const EXPECTED: &'static str;
    /// Each word and what it stands for.
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
    /// How much the connection is protected, and against whom (`sslmode`).
    pub SslMode,
    /// Never encrypted.
    Disable = "disable";
    /// Encrypted when the server can, unprotected otherwise; `allow` is treated the same.
    Prefer = "prefer" | "allow";
    /// Encrypted; the server's certificate is checked only when a root certificate is configured.
    Require = "require";
    /// Encrypted, and the certificate must descend from a trusted root.
    VerifyCa = "verify-ca";
    /// Like `verify-ca`, and the certificate must be issued for the host's name.
    VerifyFull = "verify-full";
}

words! {
    /// Whether SCRAM binds itself to the TLS channel (`channel_binding`).
    pub ChannelBinding,
    /// Never.
    Disable = "disable";
    /// When both sides can.
    Prefer = "prefer";
    /// Always; a server that cannot is refused.
    Require = "require";
}

words! {
    /// Which servers of the list are acceptable (`target_session_attrs`).
    pub TargetSessionAttrs,
    /// Any.
    Any = "any";
    /// Not read-only.
    ReadWrite = "read-write";
    /// Read-only.
    ReadOnly = "read-only";
    /// Not in recovery.
    Primary = "primary";
    /// In recovery.
    Standby = "standby";
    /// In recovery if there is such a server, any otherwise.
    PreferStandby = "prefer-standby";
}

words! {
    /// In which order the hosts are tried (`load_balance_hosts`).
    pub LoadBalanceHosts,
    /// As written.
    Disable = "disable";
    /// Shuffled at every attempt.
    Random = "random";
}

words! {
    /// How TLS begins (`sslnegotiation`).
    pub SslNegotiation,
    /// The server is asked first, as every version understands.
    Postgres = "postgres";
    /// TLS from the first byte; PostgreSQL 17 and later.
    Direct = "direct";
}

words! {
    /// Whether a client certificate is sent (`sslcertmode`).
    pub(super) SslCertMode,
    /// Never, even if the default file exists.
    Disable = "disable";
    /// If the server asks and a certificate is there.
    Allow = "allow";
    /// The server must ask; treated as `allow`, since TLS 1.3 does not tell.
    Require = "require";
}

words! {
    /// A TLS protocol version; older ones than 1.2 are never spoken.
    pub TlsVersion,
    /// TLS 1.2 (as a minimum, the older versions mean this too).
    Tls12 = "TLSv1.2" | "TLSv1.1" | "TLSv1";
    /// TLS 1.3.
    Tls13 = "TLSv1.3";
}

/// Who is trusted to vouch for the server (`sslrootcert`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCertificate {
    /// Nobody: the file was not named and the default one does not exist.
    None,
    /// The certificates of a PEM file.
    File(PathBuf),
    /// The operating system's trusted roots (`sslrootcert=system`).
    System,
}

/// The certificate we present, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM file of the certificate and its chain.
    pub certificate: PathBuf,
    /// PEM file of the unencrypted private key.
    pub key: PathBuf,
}

/// Everything about TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// How much protection.
    pub mode: SslMode,
    /// How it begins.
    pub negotiation: SslNegotiation,
    /// Whom we trust.
    pub root: RootCertificate,
    /// Who we are.
    pub client: Option<ClientCertificate>,
    /// Whether the host's name is sent in clear (`sslsni`).
    pub sni: bool,
    /// Oldest version we speak.
    pub version_min: TlsVersion,
    /// Newest version we speak.
    pub version_max: TlsVersion,
}

/// TCP keepalive probing; a zero or missing number leaves the system's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalives {
    /// Whether the system probes an idle connection at all.
    pub enabled: bool,
    /// Silence before the first probe.
    pub idle: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
    /// Lost probes before the connection counts as dead.
    pub count: Option<u32>,
    /// How long sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
}
