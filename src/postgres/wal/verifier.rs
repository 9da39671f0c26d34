//! Verifies the server's certificate by libpq's rules, and computes SCRAM channel binding data.
//!
//! libpq's rules are wider than the web's: a certificate that is itself configured as root is
//! trusted, even if it is marked as an authority. One without alternative names is matched by its
//! common name. Signatures of the handshake are always verified.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::signature_algorithm::SignatureAlgorithm;

use crate::certificate::CertificateRefusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateCheck {
    /// No checks: protection only against eavesdroppers.
    Nothing,
    Authority,
    AuthorityAndName,
}

#[derive(Debug)]
pub(super) struct LibpqVerifier {
    check: CertificateCheck,
    web: Option<Arc<WebPkiServerVerifier>>,
    roots: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl LibpqVerifier {
    pub(super) fn new(
        check: CertificateCheck,
        store: RootCertStore,
        roots: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let web = match check {
            CertificateCheck::Nothing => None,
            _ if store.is_empty() => None,
            _ => Some(
                WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider))
                    .build()?,
            ),
        };
        let algorithms = provider.signature_verification_algorithms;
        Ok(Self { check, web, roots, algorithms })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        (server_name, ocsp_response): (&ServerName<'_>, &[u8]),
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.roots.iter().any(|root| root.as_ref() == end_entity.as_ref()) {
            check_validity(end_entity, now)?;
            return self.check_name(end_entity, server_name);
        }
        let Some(web) = &self.web else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        match web.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, so the chain is valid.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => self.check_name(end_entity, server_name),
            other => other,
        }
    }

    fn check_name(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
    ) -> Result<ServerCertVerified, Error> {
        if self.check != CertificateCheck::AuthorityAndName {
            return Ok(ServerCertVerified::assertion());
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        match verify_server_name(&parsed, name) {
            Err(refused) if !common_name_matches(certificate, name) => Err(refused),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }
}

impl ServerCertVerifier for LibpqVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.check == CertificateCheck::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        let verified = self.verify(end_entity, intermediates, (server_name, ocsp_response), now);
        verified.map_err(|error| {
            let chain = std::iter::once(end_entity).chain(intermediates).cloned();
            let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            CertificateRefusal::name(error, &chain.collect::<Vec<_>>(), now_s)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Matches only without alternative names; the first label may be `*`.
fn common_name_matches(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let ServerName::DnsName(host) = name else { return false };
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    if !matches!(parsed.subject_alternative_name(), Ok(None)) {
        return false;
    }
    let host = host.as_ref().to_ascii_lowercase();
    parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok()).any(|pattern| {
        let pattern = pattern.to_ascii_lowercase();
        match pattern.strip_prefix("*.") {
            Some(domain) => {
                domain.contains('.') && host.split_once('.').is_some_and(|(_, rest)| rest == domain)
            }
            None => pattern == host,
        }
    })
}

/// RFC 5929 section 4.1: the certificate's hash under its signature's hash algorithm, SHA-256
/// instead of MD5 or SHA-1. `None` if the signature has no separate hash (Ed25519).
pub(super) fn end_point_binding(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let algorithm = &parsed.signature_algorithm;
    let hash = match SignatureAlgorithm::try_from(algorithm) {
        Ok(SignatureAlgorithm::RSASSA_PSS(params)) => params.hash_algorithm_oid().to_id_string(),
        _ => algorithm.algorithm.to_id_string(),
    };
    let bytes = certificate.as_ref();
    match hash.as_str() {
        // md5, sha1, sha256 WithRSAEncryption; ecdsa-with-SHA1, -SHA256; id-sha1, id-sha256.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2"
        | "1.3.14.3.2.26"
        | "2.16.840.1.101.3.4.2.1" => Some(Sha256::digest(bytes).to_vec()),
        // SHA-384, then SHA-512.
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" | "2.16.840.1.101.3.4.2.2" => {
            Some(Sha384::digest(bytes).to_vec())
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" | "2.16.840.1.101.3.4.2.3" => {
            Some(Sha512::digest(bytes).to_vec())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    fn issued(common_name: &str, names: &[&str], authority: bool) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if authority {
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn verdict(
        check: CertificateCheck,
        root: &CertificateDer<'static>,
        host: &'static str,
    ) -> bool {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates([root.clone()]);
        let verifier = LibpqVerifier::new(check, store, vec![root.clone()], &provider).unwrap();
        let name = ServerName::try_from(host).unwrap();
        verifier.verify_server_cert(root, &[], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn a_self_signed_certificate_given_as_root_is_trusted_for_its_name_only() {
        let root = issued("ignored.example", &["db.example"], true);
        assert!(verdict(CertificateCheck::Authority, &root, "other.example"));
        assert!(verdict(CertificateCheck::AuthorityAndName, &root, "db.example"));
        assert!(!verdict(CertificateCheck::AuthorityAndName, &root, "other.example"));
        assert!(!verdict(CertificateCheck::AuthorityAndName, &root, "ignored.example"));
    }

    #[test]
    fn without_alternative_names_the_common_name_counts() {
        assert!(verdict(
            CertificateCheck::AuthorityAndName,
            &issued("DB.example", &[], false),
            "db.example"
        ));
        let wild = issued("*.db.example", &[], false);
        assert!(verdict(CertificateCheck::AuthorityAndName, &wild, "one.db.example"));
        assert!(!verdict(CertificateCheck::AuthorityAndName, &wild, "a.one.db.example"));
        assert!(!verdict(
            CertificateCheck::AuthorityAndName,
            &issued("*.example", &[], false),
            "db.example"
        ));
    }

    #[test]
    fn a_stranger_is_refused() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (root, stranger) = (issued("a", &["db"], true), issued("b", &["db"], false));
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates([root.clone()]);
        let verifier =
            LibpqVerifier::new(CertificateCheck::Authority, store, vec![root], &provider).unwrap();
        let name = ServerName::try_from("db").unwrap();
        assert!(verifier.verify_server_cert(&stranger, &[], &name, &[], UnixTime::now()).is_err());
    }

    #[test]
    fn the_binding_uses_the_signatures_hash() {
        let by = |algorithm| {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let params = CertificateParams::new(vec!["db".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            end_point_binding(certificate.der()).map(|hash| hash.len())
        };
        assert_eq!(by(&rcgen::PKCS_ECDSA_P256_SHA256), Some(32));
        assert_eq!(by(&PKCS_ECDSA_P384_SHA384), Some(48));
        assert_eq!(by(&PKCS_ED25519), None);
        assert_eq!(end_point_binding(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
