//! Builds a [`ConnectInfo`] from connection string, environment, service file and password file.
//!
//! Precedence and defaults are libpq's, except that `connect_timeout` defaults to 10 s and
//! `tcp_user_timeout` to 30 s.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{ConnectInfoError, ConnectInfoWarning};
use super::files::{self, PasswordFile};
use super::options::{SslCertMode, Words};
use super::parameters::{Settings, check_shown, resembling};
use super::secret::{ConnectionText, NamedBy, SecretSource};
use super::{
    ChannelBinding, ClientCertificate, ConnectInfo, Endpoint, HostAddress, Keepalives,
    LoadBalanceHosts, ParameterOrigin, Password, RequireAuth, RootCertificate, SslMode,
    SslNegotiation, TargetSessionAttrs, TlsSettings, TlsVersion, dsn, url,
};

/// A dead address must not delay the other hosts; 10 s exceeds even slow handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit for unacknowledged data. Linux's default is about 15 minutes.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Debian's and Red Hat's, then PostgreSQL's.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Debian's directory; other systems set PGSYSCONFDIR.
const SYSTEM_CONFIGURATION: &str = "/etc/postgresql-common";

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) fn resolve(
    text: &str,
    env: Env<'_>,
) -> Result<(ConnectInfo, Vec<ConnectInfoWarning>), ConnectInfoError> {
    let asked = RefCell::new(BTreeMap::new());
    let env = &|name: &str| {
        let value = env(name)?;
        asked.borrow_mut().insert(name.to_owned(), value.clone());
        Some(value)
    };
    let (settings, named_by) = gather(text.trim(), env)?;
    let home = home(env);
    let user = settings
        .get("user")
        .map(str::to_owned)
        .or_else(system_user)
        .or_else(|| env("USER"))
        .ok_or(ConnectInfoError::NoUser)?;
    let database = settings.get("dbname").unwrap_or(&user).to_owned();
    let mut endpoints = endpoints(&settings)?;
    let warnings = passwords(&mut endpoints, &settings, home.as_deref(), (&database, &user));
    if word::<GssEncMode>(&settings, "gssencmode", GssEncMode::Off)? == GssEncMode::Require {
        return Err(ConnectInfoError::Unsupported {
            parameter: "gssencmode",
            reason: "connections are encrypted by TLS only",
        });
    }
    let is_filed = settings.get("passfile").is_some()
        || endpoints.iter().any(|endpoint| endpoint.password.is_some());
    let info = ConnectInfo {
        endpoints,
        load_balance_hosts: word(&settings, "load_balance_hosts", LoadBalanceHosts::Disable)?,
        user,
        database,
        tls: tls(&settings, home.as_deref())?,
        channel_binding: word(&settings, "channel_binding", ChannelBinding::Prefer)?,
        require_auth: require_auth(&settings)?,
        connect_timeout: connect_timeout(&settings)?,
        application_name: settings
            .get("application_name")
            .or_else(|| settings.get("fallback_application_name"))
            .unwrap_or("postrider")
            .to_owned(),
        options: settings.get("options").unwrap_or_default().to_owned(),
        target_session_attrs: word(&settings, "target_session_attrs", TargetSessionAttrs::Any)?,
        keepalives: keepalives(&settings)?,
        secrets: SecretSource {
            text: ConnectionText::Typed(text.to_owned()),
            environment: asked.take(),
            asked: None,
            can_change: named_by == Some(NamedBy::Service) || named_by.is_none() && is_filed,
            named_by: named_by.unwrap_or_else(|| {
                NamedBy::PasswordFile(password_file(&settings, home.as_deref()))
            }),
        },
        origins: settings.origins(),
    };
    Ok((info, warnings))
}

/// Merges all sources; also returns the source of the password.
fn gather(text: &str, env: Env<'_>) -> Result<(Settings, Option<NamedBy>), ConnectInfoError> {
    url::check_scheme(text)?;
    let mut settings = match url::strip_scheme(text) {
        Some(rest) => url::parse(rest, text.len() - rest.len())?,
        None => dsn::parse(text)?,
    };
    let environment = Settings::of_environment(env)?;
    let mut named_by = settings.get("password").is_some().then_some(NamedBy::Text);
    if let Some(service) = settings.get("service").or_else(|| environment.get("service")) {
        let named = settings.get("servicefile").or_else(|| environment.get("servicefile"));
        check_shown("service", service)?;
        let candidates = if let Some(path) = named {
            check_shown("servicefile", path)?;
            vec![PathBuf::from(path)]
        } else {
            let system = env("PGSYSCONFDIR").unwrap_or_else(|| SYSTEM_CONFIGURATION.to_owned());
            let own = home(env).map(|home| home.join(".pg_service.conf"));
            own.into_iter().chain([Path::new(&system).join("pg_service.conf")]).collect()
        };
        let service = files::service(service, &candidates)?;
        if named_by.is_none() && service.get("password").is_some() {
            named_by = Some(NamedBy::Service);
        }
        settings.fill(service, |_| ParameterOrigin::Service);
    }
    if named_by.is_none() && environment.get("password").is_some() {
        named_by = Some(NamedBy::Environment);
    }
    settings.fill(environment, ParameterOrigin::Environment);
    settings.check_shown()?;
    Ok((settings, named_by))
}

fn endpoints(settings: &Settings) -> Result<Vec<Endpoint>, ConnectInfoError> {
    let split = |name| -> Vec<&str> {
        settings.get(name).map(|list| list.split(',').map(str::trim).collect()).unwrap_or_default()
    };
    let (hosts, addresses, ports) = (split("host"), split("hostaddr"), split("port"));
    let count = hosts.len().max(addresses.len()).max(1);
    for (parameter, given) in [("hostaddr", addresses.len()), ("port", ports.len())] {
        let hosts_known = if hosts.is_empty() { addresses.len().max(1) } else { hosts.len() };
        if given > 1 && given != hosts_known || parameter == "hostaddr" && given > hosts_known {
            return Err(ConnectInfoError::ListLength { parameter, given, hosts: hosts_known });
        }
    }
    let mut endpoints = Vec::new();
    for index in 0..count {
        let host = hosts.get(index).copied().unwrap_or_default();
        let port = if ports.len() > 1 { ports.get(index) } else { ports.first() };
        let port = match port.copied().unwrap_or_default() {
            "" => 5432,
            text => number(text, "port", "a number from 1 to 65535", 1..=65535)?,
        };
        let ip = match addresses.get(index).copied().unwrap_or_default() {
            "" => None,
            text => Some(text.parse::<IpAddr>().map_err(|_| ConnectInfoError::InvalidValue {
                parameter: "hostaddr",
                expected: "a numeric IPv4 or IPv6 address",
                suggestion: None,
            })?),
        };
        let Ok(port) = u16::try_from(port) else { unreachable!("port {port} was let through") };
        endpoints.extend(addresses_of(host, ip)?.into_iter().map(|address| Endpoint {
            address,
            port,
            password: None,
        }));
    }
    Ok(endpoints)
}

fn addresses_of(host: &str, ip: Option<IpAddr>) -> Result<Vec<HostAddress>, ConnectInfoError> {
    let invalid =
        |expected| ConnectInfoError::InvalidValue { parameter: "host", expected, suggestion: None };
    match (host, ip) {
        ("", None) => {
            Ok(SOCKET_DIRECTORIES.iter().map(|dir| HostAddress::Unix(PathBuf::from(dir))).collect())
        }
        ("", Some(ip)) => Ok(vec![HostAddress::Tcp { host: ip.to_string(), ip: Some(ip) }]),
        (host, _) if host.starts_with('@') => {
            Err(invalid("a name, an address or a directory; abstract sockets are not supported"))
        }
        (host, None) if host.starts_with('/') => Ok(vec![HostAddress::Unix(PathBuf::from(host))]),
        (host, _) if host.contains(['@', '/', '?', '#']) || host.contains(char::is_whitespace) => {
            Err(invalid("a name, an address or a directory"))
        }
        (host, ip) => Ok(vec![HostAddress::Tcp { host: host.to_owned(), ip }]),
    }
}

fn passwords(
    endpoints: &mut [Endpoint],
    settings: &Settings,
    home: Option<&Path>,
    (database, user): (&str, &str),
) -> Vec<ConnectInfoWarning> {
    if let Some(typed) = settings.get("password") {
        for endpoint in endpoints {
            endpoint.password = Some(Password::new(typed));
        }
        return Vec::new();
    }
    let Some(path) = password_file(settings, home) else { return Vec::new() };
    let (file, warning) = PasswordFile::read(&path);
    for endpoint in endpoints {
        let host = match &endpoint.address {
            HostAddress::Unix(directory) => {
                let default = SOCKET_DIRECTORIES.iter().any(|known| Path::new(known) == directory);
                if default { "localhost".to_owned() } else { directory.display().to_string() }
            }
            HostAddress::Tcp { host, .. } => host.clone(),
        };
        endpoint.password = file.password(&host, endpoint.port, database, user);
    }
    warning.into_iter().collect()
}

fn password_file(settings: &Settings, home: Option<&Path>) -> Option<PathBuf> {
    let named = settings.get("passfile").map(PathBuf::from);
    named.or_else(|| home.map(|home| home.join(".pgpass")))
}

fn tls(settings: &Settings, home: Option<&Path>) -> Result<TlsSettings, ConnectInfoError> {
    let personal = |file: &str| {
        home.map(|home| home.join(".postgresql").join(file)).filter(|path| path.exists())
    };
    let root = match settings.get("sslrootcert") {
        Some("system") => RootCertificate::System,
        Some(path) => RootCertificate::File(PathBuf::from(path)),
        None => personal("root.crt").map_or(RootCertificate::None, RootCertificate::File),
    };
    let default = match root {
        RootCertificate::System => SslMode::VerifyFull,
        _ => SslMode::Prefer,
    };
    let mode = word(settings, "sslmode", default)?;
    if root == RootCertificate::System && mode != SslMode::VerifyFull {
        return Err(ConnectInfoError::Unsupported {
            parameter: "sslmode",
            reason: "with sslrootcert=system anybody can obtain a trusted certificate, so only \
                     verify-full protects",
        });
    }
    let negotiation = word(settings, "sslnegotiation", SslNegotiation::Postgres)?;
    if negotiation == SslNegotiation::Direct && matches!(mode, SslMode::Disable | SslMode::Prefer) {
        return Err(ConnectInfoError::Unsupported {
            parameter: "sslnegotiation",
            reason: "direct needs sslmode=require or stronger",
        });
    }
    let certificate =
        settings.get("sslcert").map(PathBuf::from).or_else(|| personal("postgresql.crt"));
    let key = settings.get("sslkey").map(PathBuf::from).or_else(|| personal("postgresql.key"));
    let client = match word(settings, "sslcertmode", SslCertMode::Allow)? {
        SslCertMode::Disable => None,
        SslCertMode::Allow | SslCertMode::Require => match (certificate, key) {
            (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
            (Some(_), None) => {
                return Err(ConnectInfoError::InvalidValue {
                    parameter: "sslkey",
                    expected: "given together with `sslcert`",
                    suggestion: None,
                });
            }
            (None, _) => None,
        },
    };
    Ok(TlsSettings {
        mode,
        negotiation,
        root,
        client,
        sni: flag(settings, "sslsni")?,
        version_min: word(settings, "ssl_min_protocol_version", TlsVersion::Tls12)?,
        version_max: word(settings, "ssl_max_protocol_version", TlsVersion::Tls13)?,
    })
}

fn require_auth(settings: &Settings) -> Result<RequireAuth, ConnectInfoError> {
    settings.get("require_auth").map_or_else(|| Ok(RequireAuth::default()), RequireAuth::parse)
}

fn connect_timeout(settings: &Settings) -> Result<Option<Duration>, ConnectInfoError> {
    let Some(text) = settings.get("connect_timeout") else { return Ok(Some(CONNECT_TIMEOUT)) };
    let expected = "a number of seconds (0: wait for ever)";
    let seconds = number(text, "connect_timeout", expected, i32::MIN.into()..=i32::MAX.into())?;
    Ok(u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs))
}

fn keepalives(settings: &Settings) -> Result<Keepalives, ConnectInfoError> {
    let positive = |name: &'static str| -> Result<Option<u32>, ConnectInfoError> {
        let Some(text) = settings.get(name) else { return Ok(None) };
        let value = number(text, name, "a number (0: the system's default)", 0..=i32::MAX.into())?;
        Ok(u32::try_from(value).ok().filter(|value| *value > 0))
    };
    let seconds = |value: Option<u32>| value.map(|value| Duration::from_secs(value.into()));
    let user_timeout = match settings.get("tcp_user_timeout") {
        Some(_) => positive("tcp_user_timeout")?.map(|ms| Duration::from_millis(ms.into())),
        None => Some(TCP_USER_TIMEOUT),
    };
    Ok(Keepalives {
        enabled: flag(settings, "keepalives")?,
        idle: seconds(positive("keepalives_idle")?),
        interval: seconds(positive("keepalives_interval")?),
        count: positive("keepalives_count")?,
        user_timeout,
    })
}

/// A switch that is on unless it is 0.
fn flag(settings: &Settings, name: &'static str) -> Result<bool, ConnectInfoError> {
    let Some(text) = settings.get(name) else { return Ok(true) };
    Ok(number(text, name, "0 or 1", i32::MIN.into()..=i32::MAX.into())? != 0)
}

fn number(
    text: &str,
    parameter: &'static str,
    expected: &'static str,
    range: std::ops::RangeInclusive<i64>,
) -> Result<i64, ConnectInfoError> {
    text.trim()
        .parse()
        .ok()
        .filter(|value| range.contains(value))
        .ok_or(ConnectInfoError::InvalidValue { parameter, expected, suggestion: None })
}

fn word<T: Words>(
    settings: &Settings,
    parameter: &'static str,
    default: T,
) -> Result<T, ConnectInfoError> {
    let Some(text) = settings.get(parameter) else { return Ok(default) };
    T::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        ConnectInfoError::InvalidValue {
            parameter,
            expected: T::EXPECTED,
            suggestion: resembling(text, T::WORDS.iter().map(|(word, _)| *word)),
        }
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GssEncMode {
    Off,
    Require,
}

impl Words for GssEncMode {
    const EXPECTED: &'static str = "one of disable prefer require";
    const WORDS: &'static [(&'static str, Self)] =
        &[("disable", Self::Off), ("prefer", Self::Off), ("require", Self::Require)];
}

fn home(env: Env<'_>) -> Option<PathBuf> {
    env("HOME").filter(|home| !home.is_empty()).map(PathBuf::from).or_else(|| {
        let line = passwd_line()?;
        line.split(':').nth(5).map(PathBuf::from)
    })
}

fn system_user() -> Option<String> {
    passwd_line()?.split(':').next().map(str::to_owned)
}

/// Found like getpwuid(3) on a plain system.
fn passwd_line() -> Option<String> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let database = std::fs::read_to_string("/etc/passwd").ok()?;
    database.lines().find(|line| line.split(':').nth(2) == Some(&uid)).map(str::to_owned)
}

#[cfg(test)]
mod tests;
