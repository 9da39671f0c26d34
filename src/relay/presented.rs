//! Reads the certificates that a server presents, its own certificate first.
//!
//! Invariant: the handshake always ends at the certificate, so that no secrets or rows are sent.
//! Each step has a time limit.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

const LIMIT: Duration = Duration::from_secs(2);
/// SSLRequest of Postgres: its length, and a number that is not a protocol version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    AtOnce,
    /// Names Postgres's protocol (ALPN) too.
    AtOnceForPostgres,
    /// After an SSLRequest to Postgres.
    AfterRequest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host name or IP address for the handshake.
    pub host: String,
    /// Replaces the lookup of the host name.
    pub ip: Option<IpAddr>,
    pub port: u16,
}

pub(super) fn presented(
    address: &Address,
    begins: Begins,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut stream = connect(address).map_err(|error| error.to_string())?;
    if begins == Begins::AfterRequest {
        let mut answer = [0];
        stream
            .write_all(&SSL_REQUEST)
            .and_then(|()| stream.read_exact(&mut answer))
            .map_err(|error| error.to_string())?;
        if answer != *b"S" {
            return Err("the server offers no TLS".to_owned());
        }
    }
    let provider = Arc::new(ring::default_provider());
    let witness =
        Arc::new(Witness { provider: Arc::clone(&provider), chain: Mutex::new(Vec::new()) });
    let verifier: Arc<dyn ServerCertVerifier> = Arc::clone(&witness) as _;
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    if begins == Begins::AtOnceForPostgres {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    let name = ServerName::try_from(address.host.clone());
    let name = name.unwrap_or(ServerName::IpAddress(IpAddr::from([0, 0, 0, 0]).into()));
    let mut connection =
        ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    let mut broken = "the server presents no certificate".to_owned();
    while connection.is_handshaking() {
        if let Err(error) = connection.complete_io(&mut stream) {
            broken = error.to_string();
            break;
        }
    }
    let chain = std::mem::take(&mut *witness.chain.lock().unwrap_or_else(PoisonError::into_inner));
    if chain.is_empty() { Err(broken) } else { Ok(chain) }
}

fn connect(address: &Address) -> std::io::Result<TcpStream> {
    let Address { host, ip, port } = address;
    let addresses = match ip {
        Some(ip) => vec![SocketAddr::new(*ip, *port)],
        None => (host.as_str(), *port).to_socket_addrs()?.collect(),
    };
    let mut last = std::io::Error::other("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Rejects every certificate, and stores the chain.
#[derive(Debug)]
struct Witness {
    provider: Arc<CryptoProvider>,
    chain: Mutex<Vec<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let all = std::iter::once(end_entity).chain(intermediates);
        let chain = all.map(|one| one.clone().into_owned()).collect();
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = chain;
        Err(Error::General("the certificate was all that was asked for".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("nobody is trusted here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("nobody is trusted here".to_owned()))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
