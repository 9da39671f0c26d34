//! Reads a certificate's subject and validity. Invariant: a certificate that cannot be parsed has
//! no validity; dates are in UTC.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use postrider_core::route::rfc3339;
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, OtherError};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    /// Distinguished name.
    pub subject: String,
    /// First valid second since the Unix epoch.
    pub from_s: i64,
    /// Last valid second since the Unix epoch.
    pub until_s: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Expired { until_s: i64 },
    NotYetValid { from_s: i64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { until_s } => write!(f, "expired on {} (UTC)", day(*until_s)),
            Self::NotYetValid { from_s } => {
                write!(f, "is not valid before {} (UTC)", day(*from_s))
            }
        }
    }
}

impl Validity {
    /// Validity of the chain's certificate that expires first. Roots do not count, because the
    /// client trusts its own copies.
    pub fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        Self::each(chain).min_by_key(|validity| validity.until_s)
    }

    fn each(chain: &[CertificateDer<'_>]) -> impl Iterator<Item = Self> {
        chain.iter().enumerate().filter_map(|(place, certificate)| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            let is_root = place > 0 && parsed.issuer() == parsed.subject();
            (!is_root).then(|| Self {
                subject: parsed.subject().to_string(),
                from_s: parsed.validity().not_before.timestamp(),
                until_s: parsed.validity().not_after.timestamp(),
            })
        })
    }

    pub const fn fault(&self, now_s: i64) -> Option<Fault> {
        if now_s > self.until_s {
            Some(Fault::Expired { until_s: self.until_s })
        } else if now_s < self.from_s {
            Some(Fault::NotYetValid { from_s: self.from_s })
        } else {
            None
        }
    }
}

/// The day in UTC, for example `2026-11-27`.
pub fn day(unix_s: i64) -> String {
    let text = rfc3339(unix_s.saturating_mul(1_000));
    text.split_once('T').map_or(text.clone(), |(day, _)| day.to_owned())
}

pub fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// A server certificate that is not valid now, as the verifier reports it through rustls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateRefusal {
    pub(crate) subject: String,
    pub(crate) fault: Fault,
}

impl fmt::Display for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate `{}` {}", self.subject, self.fault)
    }
}

impl Error for CertificateRefusal {}

impl CertificateRefusal {
    /// Names the certificate that rustls found outside its validity; other errors stay unchanged.
    pub(crate) fn name(
        error: rustls::Error,
        chain: &[CertificateDer<'_>],
        now_s: i64,
    ) -> rustls::Error {
        let is_of_time = matches!(
            error,
            rustls::Error::InvalidCertificate(
                CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
            )
        );
        let mut faults = Validity::each(chain).filter_map(|validity| {
            let fault = validity.fault(now_s)?;
            Some(Self { subject: validity.subject, fault })
        });
        match faults.next().filter(|_| is_of_time) {
            Some(refusal) => CertificateError::Other(OtherError(Arc::new(refusal))).into(),
            None => error,
        }
    }

    pub(crate) fn in_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        if let Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) =
            error.downcast_ref()
        {
            let other: &'a (dyn Error + 'static) = other.as_ref();
            return other.downcast_ref();
        }
        // An I/O error hides its inner error from `source`.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = wrapped.map(|inner| -> &'a (dyn Error + 'static) { inner });
        inner.or_else(|| error.source()).and_then(Self::in_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: i64 = 86_400;

    #[test]
    fn a_fault_names_the_day_in_utc() {
        let validity =
            Validity { subject: "CN=db".to_owned(), from_s: 10 * DAY_S, until_s: 100 * DAY_S };
        assert_eq!(validity.fault(50 * DAY_S), None);
        let said = |now_s| validity.fault(now_s).unwrap().to_string();
        assert_eq!(said(101 * DAY_S), "expired on 1970-04-11 (UTC)");
        assert_eq!(said(0), "is not valid before 1970-01-11 (UTC)");
    }

    #[test]
    fn a_refusal_is_found_behind_an_error_of_the_connection() {
        let refusal = CertificateRefusal {
            subject: "CN=db".to_owned(),
            fault: Fault::Expired { until_s: DAY_S },
        };
        let other = OtherError(Arc::new(refusal.clone()));
        let error = rustls::Error::from(CertificateError::Other(other));
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
        assert_eq!(CertificateRefusal::in_error(&wrapped), Some(&refusal));
        assert_eq!(CertificateRefusal::in_error(&io::Error::other("no")), None);
    }
}
