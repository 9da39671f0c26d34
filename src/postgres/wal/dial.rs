//! Connects to the first of several servers that accepts, with TLS if configured.
//!
//! Invariant: an error that another server would repeat (password, permission) ends the search, as
//! in libpq; only with `sslmode=prefer` is a failed TLS attempt repeated without TLS. SQL sessions
//! share these rules.

use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::ClientConfig;

use super::error::WalError;
use super::message_channel::remaining;
use super::tls;
use super::transport::{Socket, Transport, Wire};
use crate::libpq::ConnectInfo;
use crate::libpq::{Endpoint, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

pub(super) fn first_acceptable<C>(
    info: &ConnectInfo,
    mut accept: impl FnMut(Wire, &Endpoint, Option<Instant>) -> Result<C, WalError>,
) -> Result<C, WalError> {
    let needs_tls = info.endpoints.iter().any(|endpoint| uses_tls(info, endpoint));
    let config = if needs_tls { Some(Arc::new(tls::client_config(&info.tls)?)) } else { None };
    let mut failures = Vec::new();
    for endpoint in order(info) {
        let config = config.as_ref().filter(|_| uses_tls(info, endpoint));
        let mut attempt = |config: Option<&Arc<ClientConfig>>| {
            let deadline = info.connect_timeout.and_then(|limit| Instant::now().checked_add(limit));
            let wire = pipe(info, endpoint, config, deadline);
            let accepted = wire.and_then(|wire| accept(wire, endpoint, deadline));
            accepted.map_err(|error| error.at_login(endpoint))
        };
        let result = match attempt(config) {
            Err(error) if config.is_some() && may_retry_without_tls(info, &error) => attempt(None),
            result => result,
        };
        match result {
            Ok(accepted) => return Ok(accepted),
            Err(error) if error.class().is_transient() => failures.push(error),
            Err(error) => return Err(error),
        }
    }
    Err(combined(failures))
}

pub(crate) fn order(info: &ConnectInfo) -> Vec<&Endpoint> {
    let mut order: Vec<_> = info.endpoints.iter().collect();
    if info.load_balance_hosts == LoadBalanceHosts::Random {
        let seed = RandomState::new();
        order.sort_by_cached_key(|endpoint| seed.hash_one(endpoint.to_string()));
    }
    order
}

/// Unix sockets never use TLS, as in libpq.
pub(crate) fn uses_tls(info: &ConnectInfo, endpoint: &Endpoint) -> bool {
    info.tls.mode != SslMode::Disable && endpoint.socket_path().is_none()
}

/// The handshake failed, or pg_hba.conf has no line for encrypted connections.
pub(crate) fn may_retry_without_tls(info: &ConnectInfo, error: &WalError) -> bool {
    let failed = match error {
        WalError::TlsHandshake { .. } => true,
        WalError::Server(server) => server.code == "28000",
        _ => false,
    };
    failed && info.tls.mode == SslMode::Prefer
}

pub(crate) fn combined(failures: Vec<WalError>) -> WalError {
    let all_unreachable: Option<Vec<_>> = failures
        .iter()
        .map(|failure| match failure {
            WalError::Unreachable { endpoint, reason } => Some(format!("{endpoint} ({reason})")),
            _ => None,
        })
        .collect();
    match (failures.len(), all_unreachable) {
        (2.., Some(all)) => WalError::Unreachable {
            endpoint: "any of its addresses".to_owned(),
            reason: all.join(", "),
        },
        // A server's answer is more informative than silence.
        _ => failures
            .into_iter()
            .max_by_key(|failure| !matches!(failure, WalError::Unreachable { .. }))
            .unwrap_or(WalError::Closed),
    }
}

pub(crate) struct SessionCheck {
    /// A row with one text.
    pub(crate) sql: &'static str,
    pub(crate) expected: &'static str,
    pub(crate) name: &'static str,
}

pub(crate) fn session_check(wanted: TargetSessionAttrs) -> Option<SessionCheck> {
    const READ_ONLY: &str = "SELECT current_setting('transaction_read_only')";
    const RECOVERY: &str = "SELECT pg_catalog.pg_is_in_recovery()::text";
    let (sql, expected, name) = match wanted {
        TargetSessionAttrs::Any | TargetSessionAttrs::PreferStandby => return None,
        TargetSessionAttrs::ReadWrite => (READ_ONLY, "off", "read-write"),
        TargetSessionAttrs::ReadOnly => (READ_ONLY, "on", "read-only"),
        TargetSessionAttrs::Primary => (RECOVERY, "false", "primary"),
        TargetSessionAttrs::Standby => (RECOVERY, "true", "standby"),
    };
    Some(SessionCheck { sql, expected, name })
}

fn pipe(
    info: &ConnectInfo,
    endpoint: &Endpoint,
    config: Option<&Arc<ClientConfig>>,
    deadline: Option<Instant>,
) -> Result<Wire, WalError> {
    let io = |error: std::io::Error| WalError::Io(error.to_string());
    let socket = Socket::connect(endpoint, info.keepalives, info.connect_timeout)?;
    socket.set_nonblocking().map_err(io)?;
    let Some(config) = config else { return Ok(Wire::plain(socket)) };
    let mut wire = Wire::plain(socket);
    if info.tls.negotiation == SslNegotiation::Postgres && !offers_tls(&mut wire, deadline)? {
        return match info.tls.mode {
            SslMode::Disable | SslMode::Prefer => Ok(wire),
            _ => Err(WalError::TlsNotOffered { endpoint: endpoint.to_string() }),
        };
    }
    wire.start_tls(Arc::clone(config), endpoint, deadline)
}

/// Reads exactly one byte: anything an attacker adds in clear text becomes part of the handshake
/// and breaks it (CVE-2021-23222).
fn offers_tls(wire: &mut Wire, deadline: Option<Instant>) -> Result<bool, WalError> {
    const DOING: &str = "asking for TLS";
    let io = |error: std::io::Error| WalError::Io(error.to_string());
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    let mut rest = request.as_ref();
    while !rest.is_empty() {
        match Transport::write(wire, rest) {
            Ok(sent) => rest = rest.split_at(sent).1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wire.wait(true, remaining(deadline, DOING)?).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        }
    }
    let mut answer = [0];
    loop {
        match Transport::read(wire, &mut answer) {
            Ok(0) => return Err(WalError::Closed),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wire.wait(false, remaining(deadline, DOING)?).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        }
    }
    match answer {
        [b'S'] => Ok(true),
        [b'N'] => Ok(false),
        _ => Err(WalError::Protocol("an answer to the TLS request that is neither yes nor no")),
    }
}
