//! Sends one request to the collector. Errors never contain the value of a header.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{HeaderMap, Request, Uri, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("it does not answer within {} s", .0.as_secs_f32())]
    Late(Duration),
    #[error("cannot connect to it: {0}")]
    Connect(std::io::Error),
    #[error("the name `{0}` cannot be in a certificate")]
    Name(String),
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("it answered {0}")]
    Status(u16),
}

pub(super) async fn post(
    (endpoint, headers): (&Uri, &HeaderMap),
    body: Vec<u8>,
    limit: Duration,
) -> Result<(), PostError> {
    let posted = tokio::time::timeout(limit, exchange(endpoint, headers, body)).await;
    posted.map_err(|_| PostError::Late(limit))?
}

async fn exchange(endpoint: &Uri, headers: &HeaderMap, body: Vec<u8>) -> Result<(), PostError> {
    let is_secure = endpoint.scheme_str() == Some("https");
    let port = endpoint.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, port)).await.map_err(PostError::Connect)?;
    let request = request(endpoint, headers, body);
    if !is_secure {
        return send(TokioIo::new(stream), request).await;
    }
    let name =
        ServerName::try_from(host.to_owned()).map_err(|_| PostError::Name(host.to_owned()))?;
    let connected = TlsConnector::from(tls()).connect(name, stream).await;
    send(TokioIo::new(connected.map_err(PostError::Connect)?), request).await
}

fn request(endpoint: &Uri, headers: &HeaderMap, body: Vec<u8>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = axum::http::Method::POST;
    let path = endpoint.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().unwrap_or_default();
    *request.headers_mut() = headers.clone();
    let authority = endpoint.authority().map(axum::http::uri::Authority::as_str);
    if let Some(Ok(host)) = authority.map(axum::http::HeaderValue::from_str) {
        request.headers_mut().insert(header::HOST, host);
    }
    let kind = axum::http::HeaderValue::from_static("application/x-protobuf");
    request.headers_mut().insert(header::CONTENT_TYPE, kind);
    request
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(), PostError>
where
    S: Read + Write + Unpin,
{
    let (mut sender, connection) = http1::handshake(stream).await?;
    let answer = sender.send_request(request);
    tokio::pin!(connection, answer);
    let answer = tokio::select! {
        answer = &mut answer => answer?,
        // A peer that closes TLS without a notice may have answered before.
        ended = &mut connection => match (answer.await, ended) {
            (Ok(answer), _) => answer,
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error.into()),
        }
    };
    let status = answer.status();
    if status.is_success() { Ok(()) } else { Err(PostError::Status(status.as_u16())) }
}

/// The system's certificate authorities are read once.
fn tls() -> Arc<ClientConfig> {
    static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let made = TLS.get_or_init(|| {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let Ok(builder) =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
        else {
            unreachable!("ring has what the default versions of TLS need")
        };
        Arc::new(builder.with_root_certificates(store).with_no_client_auth())
    });
    Arc::clone(made)
}
