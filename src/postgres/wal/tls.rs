//! TLS with rustls, configured by libpq's settings.
//!
//! Output: a rustls client configuration and the server name to check, for the replication
//! connection and SQL sessions. Invariant: a private key that others may read is refused.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::verifier::{CertificateCheck, LibpqVerifier};
use crate::libpq::{
    Endpoint, HostAddress, RootCertificate, SslMode, SslNegotiation, TlsSettings, TlsVersion,
};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFilesError {
    #[error(
        "sslmode demands that the server's certificate is checked, and no root certificate is given"
    )]
    NoRoot,
    #[error("cannot use {what} {}: {reason}", .path.display())]
    Unusable { what: &'static str, path: PathBuf, reason: String },
    #[error("private key file {} may be read by others (mode {mode:04o})", .path.display())]
    KeyExposed {
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    #[error("no trusted certificates of the system can be loaded: {0}")]
    NoSystemRoots(String),
    /// Certificate, key or versions do not match.
    #[error("the TLS settings do not fit together: {0}")]
    Mismatch(String),
}

impl TlsFilesError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoRoot => Some(
                "set sslrootcert to the authority's PEM file, or sslrootcert=system for a \
                 publicly trusted server"
                    .to_owned(),
            ),
            Self::KeyExposed { path, .. } => Some(format!("chmod 0600 {}", path.display())),
            Self::NoSystemRoots(_) => Some("install the ca-certificates package".to_owned()),
            Self::Unusable { what, .. } => Some(format!(
                "set {what} to a PEM file that exists and that the relay's user may read"
            )),
            Self::Mismatch(_) => Some(
                "check that sslcert and sslkey belong together, and the protocol versions"
                    .to_owned(),
            ),
        }
    }
}

pub(crate) fn client_config(tls: &TlsSettings) -> Result<ClientConfig, TlsFilesError> {
    let mismatch = |error: rustls::Error| TlsFilesError::Mismatch(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: Vec<_> = [
        (TlsVersion::Tls12, &rustls::version::TLS12),
        (TlsVersion::Tls13, &rustls::version::TLS13),
    ]
    .into_iter()
    .filter(|(version, _)| {
        (*version == TlsVersion::Tls13 || tls.version_min == TlsVersion::Tls12)
            && (*version == TlsVersion::Tls12 || tls.version_max == TlsVersion::Tls13)
    })
    .map(|(_, version)| version)
    .collect();
    let check = match (tls.mode, &tls.root) {
        (SslMode::VerifyCa | SslMode::VerifyFull, RootCertificate::None) => {
            return Err(TlsFilesError::NoRoot);
        }
        (SslMode::VerifyFull, _) => CertificateCheck::AuthorityAndName,
        (SslMode::VerifyCa, _) | (SslMode::Require, RootCertificate::File(_)) => {
            CertificateCheck::Authority
        }
        _ => CertificateCheck::Nothing,
    };
    let roots = if check == CertificateCheck::Nothing { Vec::new() } else { roots(&tls.root)? };
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let verifier = LibpqVerifier::new(check, store, roots, &provider)
        .map_err(|error| TlsFilesError::Mismatch(error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = Arc::new(verifier);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(mismatch)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let chain = certificates("sslcert", &client.certificate)?;
            builder.with_client_auth_cert(chain, private_key(&client.key)?).map_err(mismatch)?
        }
    };
    config.enable_sni = tls.sni;
    if tls.negotiation == SslNegotiation::Direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(config)
}

/// The name to check and to announce. A name that no certificate can have is replaced, and can
/// never be verified.
pub(crate) fn server_name(endpoint: &Endpoint) -> ServerName<'static> {
    let host = match &endpoint.address {
        HostAddress::Tcp { host, .. } => host.clone(),
        HostAddress::Unix(_) => String::new(),
    };
    ServerName::try_from(host).unwrap_or_else(|_| {
        let nobody = std::net::Ipv6Addr::UNSPECIFIED;
        ServerName::IpAddress(std::net::IpAddr::V6(nobody).into())
    })
}

fn roots(root: &RootCertificate) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    match root {
        RootCertificate::None => Ok(Vec::new()),
        RootCertificate::File(path) => certificates("sslrootcert", path),
        RootCertificate::System => {
            let loaded = rustls_native_certs::load_native_certs();
            if loaded.certs.is_empty() {
                let reason = loaded.errors.first().map(ToString::to_string);
                return Err(TlsFilesError::NoSystemRoots(reason.unwrap_or_default()));
            }
            Ok(loaded.certs)
        }
    }
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let unusable = |reason: String| TlsFilesError::Unusable { what, path: path.to_owned(), reason };
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(|error| unusable(error.to_string()))?;
    if found.is_empty() {
        return Err(unusable("it holds no certificate".to_owned()));
    }
    Ok(found)
}

/// Reads the key under libpq's condition: no other user may read it, except that root's key may be
/// readable for its group.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsFilesError> {
    let unusable =
        |reason: String| TlsFilesError::Unusable { what: "sslkey", path: path.to_owned(), reason };
    let metadata = std::fs::metadata(path).map_err(|error| unusable(error.to_string()))?;
    let mode = metadata.permissions().mode() & 0o7777;
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if mode & forbidden != 0 {
        return Err(TlsFilesError::KeyExposed { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libpq::ConnectInfo;

    fn settings(text: &str) -> TlsSettings {
        ConnectInfo::resolve(&format!("user=u host=h {text}"), &|_| None).unwrap().0.tls
    }

    #[test]
    fn verification_needs_somebody_to_trust() {
        let error = client_config(&settings("sslmode=verify-full")).unwrap_err();
        assert_eq!(error, TlsFilesError::NoRoot);
        client_config(&settings("sslmode=require")).unwrap();
        let tls = settings("ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2");
        assert!(matches!(client_config(&tls), Err(TlsFilesError::Mismatch(_))));
    }

    #[test]
    fn an_exposed_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let issued = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
        let (cert, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
        std::fs::write(&cert, issued.cert.pem()).unwrap();
        std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
        let text = format!("sslcert={} sslkey={}", cert.display(), key.display());
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = client_config(&settings(&text)).unwrap_err();
        assert!(error.hint().unwrap().starts_with("chmod 0600"), "{error}");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        client_config(&settings(&text)).unwrap();
        let text = format!("sslmode=verify-ca sslrootcert={}", key.display());
        let error = client_config(&settings(&text)).unwrap_err();
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
}
