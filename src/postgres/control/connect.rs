//! Opens SQL sessions beside the replication stream.
//!
//! Invariant: a [`Client`] has the servers, TLS rules and password of the replication connection. A
//! statement fails after [`STATEMENT_LIMIT`]; the end of an idle session is noticed, which reveals
//! a shutdown of the server.

use std::error::Error as _;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::config::{self, SslMode as TokioSslMode};
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::authentication::{AuthCheckedStream, AuthCheckedTls, unwanted};
use super::error::ControlError;
use crate::libpq::ConnectInfo;
use crate::libpq::{
    ChannelBinding, Endpoint, HostAddress, SslMode, SslNegotiation, TargetSessionAttrs,
};
use crate::wal::dial::{self, SessionCheck};
use crate::wal::{ServerMessage, Socket, WalError, tls};

/// Statements here read catalogs or create one object. A server that takes longer is in trouble.
pub const STATEMENT_LIMIT: Duration = Duration::from_secs(15);

/// Settings that override connection string, role and database, because the relay sets its own
/// limits, and a waiting session must not count as idle. Older servers lack some of them.
const OWN_SETTINGS: &str = "\
    SELECT pg_catalog.set_config(own.name, own.value, false) \
    FROM (VALUES ('client_min_messages', 'notice'), ('statement_timeout', '0'), \
        ('lock_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), \
        ('idle_session_timeout', '0'), ('transaction_timeout', '0')) AS own (name, value) \
    WHERE pg_catalog.current_setting(own.name, true) IS NOT NULL";

#[derive(Debug)]
pub struct Client {
    sql: tokio_postgres::Client,
    end: watch::Receiver<()>,
    server: ConnectInfo,
}

impl Client {
    pub fn sql(&self) -> &tokio_postgres::Client {
        &self.sql
    }

    /// The server that this session reached, with its address.
    pub fn server(&self) -> &ConnectInfo {
        &self.server
    }

    /// Refuses a pooler that gives this session's server process to another session: settings and
    /// locks would be lost. Poolers reuse the last used process first, so one check suffices.
    pub async fn keeps_its_process(&self) -> Result<(), ControlError> {
        let other = connect(&self.server).await?;
        let process = other.process().await?;
        if self.process().await? != process {
            return Ok(());
        }
        let found = format!("two sessions have server process {}", process.0);
        let source = WalError::of_shared_process(found);
        Err(ControlError::Connection { doing: "connecting", source })
    }

    /// Process id and server start: servers behind one address may have equal process ids.
    async fn process(&self) -> Result<(String, String), ControlError> {
        const SQL: &str = "SELECT pg_catalog.pg_backend_pid(), \
                           extract(epoch FROM pg_catalog.pg_postmaster_start_time())";
        let rows = self.run("asking for the server process", self.sql.simple_query(SQL)).await?;
        let process = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((row.get(0)?.to_owned(), row.get(1)?.to_owned())),
            _ => None,
        });
        Ok(process.unwrap_or_default())
    }

    /// A `fast` stop of the server ends this session at once, but waits for the stream's reader,
    /// which must then disconnect. An operator may also have ended only this session; the next
    /// connection shows which it was.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut end = self.end.clone();
        async move { while end.changed().await.is_ok() {} }
    }

    pub fn is_closed(&self) -> bool {
        self.sql.is_closed()
    }

    /// `doing` is for the error.
    pub(super) async fn run<T>(
        &self,
        doing: &'static str,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, ControlError> {
        let result = tokio::time::timeout(STATEMENT_LIMIT, statement).await;
        let source = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => sql_error(&error),
            Err(_) => WalError::TimedOut { doing: "running a statement" },
        };
        Err(ControlError::Connection { doing, source })
    }
}

/// Requires a tokio runtime, which serves the session.
pub async fn connect(info: &ConnectInfo) -> Result<Client, ControlError> {
    let failed = |source| ControlError::Connection { doing: "connecting", source };
    let info = &renewed(info).await.map_err(failed)?;
    let result = if info.target_session_attrs == TargetSessionAttrs::PreferStandby {
        match connect_wanted(info, TargetSessionAttrs::Standby).await {
            Err(error) if error.class().is_transient() => {
                connect_wanted(info, TargetSessionAttrs::Any).await
            }
            result => result,
        }
    } else {
        connect_wanted(info, info.target_session_attrs).await
    };
    result.map_err(failed)
}

async fn renewed(info: &ConnectInfo) -> Result<ConnectInfo, WalError> {
    if !info.secret_can_change() {
        return Ok(info.clone());
    }
    let info = info.clone();
    let renewed = tokio::task::spawn_blocking(move || info.renewed()).await;
    Ok(renewed.map_err(|error| WalError::Io(error.to_string()))??)
}

async fn connect_wanted(
    info: &ConnectInfo,
    wanted: TargetSessionAttrs,
) -> Result<Client, WalError> {
    let needs_tls = info.endpoints.iter().any(|endpoint| dial::uses_tls(info, endpoint));
    let config = if needs_tls { Some(tls::client_config(&info.tls)?) } else { None };
    let tls = config.map(MakeRustlsConnect::new);
    let mut failures = Vec::new();
    for endpoint in dial::order(info) {
        let tls = tls.as_ref().filter(|_| dial::uses_tls(info, endpoint));
        let mut result = attempt(info, endpoint, tls, wanted).await;
        if let Err(error) = &result
            && tls.is_some()
            && dial::may_retry_without_tls(info, error)
        {
            result = attempt(info, endpoint, None, wanted).await;
        }
        match result {
            Ok(client) => return Ok(client),
            Err(error) if error.class().is_transient() => failures.push(error),
            Err(error) => return Err(error),
        }
    }
    Err(dial::combined(failures))
}

async fn attempt(
    info: &ConnectInfo,
    endpoint: &Endpoint,
    tls: Option<&MakeRustlsConnect>,
    wanted: TargetSessionAttrs,
) -> Result<Client, WalError> {
    let limit = info.connect_timeout.unwrap_or(Duration::MAX);
    let opened = tokio::time::timeout(limit, async {
        let socket = dial_in_background(info, endpoint).await?;
        let client = log_in(info, endpoint, socket, tls).await?;
        let settings = client.sql.batch_execute(OWN_SETTINGS).await;
        settings.map_err(|error| sql_error(&error))?;
        if let Some(check) = dial::session_check(wanted) {
            expect(&client, endpoint, &check).await?;
        }
        Ok(client)
    });
    opened.await.unwrap_or_else(|_| {
        let endpoint = endpoint.to_string();
        Err(WalError::LoginTimedOut { endpoint, doing: "logging in" })
    })
}

/// Name resolution and connecting block.
async fn dial_in_background(info: &ConnectInfo, endpoint: &Endpoint) -> Result<Socket, WalError> {
    let (endpoint, keepalives, limit) = (endpoint.clone(), info.keepalives, info.connect_timeout);
    let socket = tokio::task::spawn_blocking(move || Socket::connect(&endpoint, keepalives, limit));
    let socket = socket.await.map_err(|error| WalError::Io(error.to_string()))??;
    socket.set_nonblocking().map_err(|error| WalError::Io(error.to_string()))?;
    Ok(socket)
}

async fn log_in(
    info: &ConnectInfo,
    endpoint: &Endpoint,
    socket: Socket,
    tls: Option<&MakeRustlsConnect>,
) -> Result<Client, WalError> {
    let io = |error: io::Error| WalError::Io(error.to_string());
    let config = login_config(info, endpoint, tls.is_some());
    let require = &info.require_auth;
    let mut server = info.clone();
    server.endpoints = vec![endpoint.clone()];
    let opened = match socket {
        Socket::Unix(socket) => {
            let socket = UnixStream::from_std(socket).map_err(io)?;
            serve(&config, AuthCheckedStream::plain(socket, require), NoTls).await
        }
        Socket::Tcp(socket) => {
            let peer = socket.peer_addr().map_err(io)?.ip();
            for Endpoint { address, .. } in &mut server.endpoints {
                if let HostAddress::Tcp { ip, .. } = address {
                    *ip = Some(peer);
                }
            }
            let socket = TcpStream::from_std(socket).map_err(io)?;
            match tls {
                None => serve(&config, AuthCheckedStream::plain(socket, require), NoTls).await,
                Some(maker) => {
                    let socket = match info.tls.negotiation {
                        SslNegotiation::Postgres => {
                            AuthCheckedStream::asking_for_tls(socket, require)
                        }
                        SslNegotiation::Direct => AuthCheckedStream::opaque(socket, require),
                    };
                    let name = tls::server_name(endpoint).to_str().into_owned();
                    let made: Result<_, _> =
                        MakeTlsConnect::<AuthCheckedStream<TcpStream>>::make_tls_connect(
                            &mut maker.clone(),
                            &name,
                        );
                    let Ok(connector) = made;
                    let tls = AuthCheckedTls { connector, require: require.clone() };
                    serve(&config, socket, tls).await
                }
            }
        }
    };
    let (sql, end) = opened.map_err(|error| login_error(&error, info, endpoint))?;
    Ok(Client { sql, end, server })
}

pub(super) fn login_config(info: &ConnectInfo, endpoint: &Endpoint, tls: bool) -> config::Config {
    let mut config = config::Config::new();
    config
        .user(&info.user)
        .dbname(&info.database)
        .application_name(&info.application_name)
        .ssl_mode(match info.tls.mode {
            _ if !tls => TokioSslMode::Disable,
            SslMode::Disable => TokioSslMode::Disable,
            SslMode::Prefer => TokioSslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => TokioSslMode::Require,
        })
        .ssl_negotiation(match info.tls.negotiation {
            SslNegotiation::Postgres => config::SslNegotiation::Postgres,
            SslNegotiation::Direct => config::SslNegotiation::Direct,
        })
        .channel_binding(match info.channel_binding {
            ChannelBinding::Disable => config::ChannelBinding::Disable,
            ChannelBinding::Prefer => config::ChannelBinding::Prefer,
            ChannelBinding::Require => config::ChannelBinding::Require,
        });
    if !info.options.is_empty() {
        config.options(&info.options);
    }
    if let Some(password) = &endpoint.password {
        config.password(password.reveal());
    }
    config
}

async fn serve<S, T>(
    config: &config::Config,
    socket: S,
    tls: T,
) -> Result<(tokio_postgres::Client, watch::Receiver<()>), tokio_postgres::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsConnect<S>,
    T::Stream: Send + 'static,
{
    let (sql, connection) = config.connect_raw(socket, tls).await?;
    let (open, end) = watch::channel(());
    tokio::spawn(async move {
        // Statements report the session's error.
        let _ = connection.await;
        drop(open);
    });
    Ok((sql, end))
}

async fn expect(
    client: &Client,
    endpoint: &Endpoint,
    check: &SessionCheck,
) -> Result<(), WalError> {
    let row = client.sql.query_one(check.sql, &[]).await.map_err(|error| sql_error(&error))?;
    let value: String = row.try_get(0).map_err(|error| sql_error(&error))?;
    if value == check.expected {
        return Ok(());
    }
    Err(WalError::WrongSession { endpoint: endpoint.to_string(), wanted: check.name })
}

fn login_error(error: &tokio_postgres::Error, info: &ConnectInfo, endpoint: &Endpoint) -> WalError {
    if error.as_db_error().is_some() {
        return match sql_error(error) {
            WalError::Server(message) => WalError::Server(Box::new(message.of_login(info))),
            other => other,
        };
    }
    if let Some(asked) = unwanted(error) {
        return WalError::unwanted(endpoint, asked, &info.require_auth);
    }
    // The library distinguishes its errors only by text.
    let text = error.to_string();
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    if text.starts_with("authentication error") && !source.contains("password missing") {
        return WalError::authentication(endpoint, source);
    }
    let endpoint = endpoint.to_string();
    if text.contains("password missing") || source.contains("password missing") {
        let (user, hint) = (info.user.clone(), info.missing_password_hint());
        return WalError::PasswordMissing { endpoint, user, hint };
    }
    if source.contains("server does not support TLS") {
        return WalError::TlsNotOffered { endpoint };
    }
    if text.starts_with("error performing TLS handshake") {
        if is_broken_off(error) {
            return WalError::Io(format!("TLS handshake with {endpoint}: {source}"));
        }
        return WalError::of_handshake(&endpoint, error, source);
    }
    sql_error(error)
}

/// A restart, or a proxy without a server.
fn is_broken_off(error: &(dyn std::error::Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let gone = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    kind.is_some_and(|kind| gone.contains(&kind)) || error.source().is_some_and(is_broken_off)
}

pub(super) fn sql_error(error: &tokio_postgres::Error) -> WalError {
    if let Some(server) = error.as_db_error() {
        return WalError::of_server(ServerMessage {
            severity: server
                .parsed_severity()
                .map_or_else(|| server.severity().to_owned(), |severity| severity.to_string()),
            code: server.code().code().to_owned(),
            message: server.message().to_owned(),
            hint: server.hint().unwrap_or_default().to_owned(),
            routine: server.routine().unwrap_or_default().to_owned(),
        });
    }
    if error.is_closed() {
        return WalError::Closed;
    }
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    WalError::Io(format!("{error}{source}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::wal::Class;

    /// Offers TLS, then answers with `words`.
    async fn refused_with(words: &'static [u8]) -> ControlError {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut heard = [0; 4096];
            client.read_exact(&mut heard[..8]).unwrap();
            client.write_all(b"S").unwrap();
            assert!(client.read(&mut heard).unwrap() > 0);
            client.write_all(words).unwrap();
        });
        let text = format!("user=u host=127.0.0.1 port={port} sslmode=require");
        connect(&ConnectInfo::resolve(&text, &|_| None).unwrap().0).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_handshake_that_the_peer_breaks_off_is_tried_again() {
        let error = refused_with(b"").await;
        assert_eq!(error.class(), Class::Transient, "{error}");
        assert!(error.to_string().contains("TLS handshake"), "{error}");
    }

    #[tokio::test]
    async fn a_handshake_that_is_refused_is_a_matter_of_configuration() {
        // Alert, TLS 1.2, two bytes: fatal, handshake_failure (RFC 8446, section 6).
        let error = refused_with(&[21, 3, 3, 0, 2, 2, 40]).await;
        assert_eq!(error.class(), Class::Configuration, "{error}");
    }
}
