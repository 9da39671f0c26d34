//! HTTP requests to issuers of credentials.
//!
//! Invariant: one request takes at most ten seconds, and its answer has at most 64 KiB. Redirects
//! are not followed, because they could send a secret elsewhere. Errors contain no part of the body
//! except its error code.

use std::sync::Arc;
use std::time::Duration;

use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::{Agent, RequestBuilder};

use crate::CredentialsError;

const LIMIT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

pub(crate) struct Client {
    agent: Agent,
    whom: String,
}

pub(crate) type Header<'a> = (&'a str, &'a str);

impl Client {
    /// `whom`: for errors. `authorities`: PEM file that replaces the system's.
    pub(crate) fn new(
        whom: &str,
        authorities: Option<&std::path::Path>,
    ) -> Result<Self, CredentialsError> {
        Self::within(whom, authorities, LIMIT)
    }

    /// Client for services that answer at once or not at all.
    pub(crate) fn within(
        whom: &str,
        authorities: Option<&std::path::Path>,
        limit: Duration,
    ) -> Result<Self, CredentialsError> {
        let roots = match authorities {
            None => system_authorities(),
            Some(path) => authorities_of(path)
                .map_err(|reason| CredentialsError::Unanswered { whom: whom.to_owned(), reason })?,
        };
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(roots)
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(limit))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy from the environment would see tokens over plain http.
            .proxy(None)
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self { agent: agent.into(), whom: whom.to_owned() })
    }

    pub(crate) fn get(
        &self,
        url: &str,
        headers: &[Header<'_>],
    ) -> Result<String, CredentialsError> {
        self.body(with_headers(self.agent.get(url), headers).call())
    }

    pub(crate) fn put(
        &self,
        url: &str,
        headers: &[Header<'_>],
    ) -> Result<String, CredentialsError> {
        self.body(with_headers(self.agent.put(url), headers).send_empty())
    }

    pub(crate) fn post(
        &self,
        url: &str,
        headers: &[Header<'_>],
        form: &[(&str, &str)],
    ) -> Result<String, CredentialsError> {
        let request = with_headers(self.agent.post(url), headers);
        self.body(request.send_form(form.iter().copied()))
    }

    fn body(
        &self,
        answer: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<String, CredentialsError> {
        let unanswered = |error: &ureq::Error| CredentialsError::Unanswered {
            whom: self.whom.clone(),
            reason: error.to_string(),
        };
        let mut answer = answer.map_err(|error| unanswered(&error))?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        if status.is_success() {
            return body.map_err(|error| unanswered(&error));
        }
        let code = body.ok().as_deref().and_then(error_code);
        let reason = match code {
            Some(code) => format!("HTTP status {}, {code}", status.as_u16()),
            None => format!("HTTP status {}", status.as_u16()),
        };
        // An overloaded or failing server has not refused the request.
        Err(if status.is_server_error() || status.as_u16() == 429 {
            CredentialsError::Unanswered { whom: self.whom.clone(), reason }
        } else {
            CredentialsError::Refused { whom: self.whom.clone(), reason }
        })
    }
}

fn with_headers<Body>(
    request: RequestBuilder<Body>,
    headers: &[Header<'_>],
) -> RequestBuilder<Body> {
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

/// OAuth (RFC 6749, section 5.2) or AWS: a single word that may be shown.
fn error_code(body: &str) -> Option<String> {
    let json = serde_json::from_str::<serde_json::Value>(body).ok();
    let of_json = json.as_ref().and_then(|body| {
        [body.get("error"), body.get("Code")]
            .into_iter()
            .flatten()
            .find_map(serde_json::Value::as_str)
    });
    let code = of_json.or_else(|| element(body, "Code"))?;
    let is_word = code.len() <= 64
        && code.chars().all(|char| char.is_ascii_alphanumeric() || "_-.".contains(char));
    is_word.then(|| code.to_owned())
}

/// XML without attributes.
pub(crate) fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

fn system_authorities() -> RootCerts {
    // A connection that needs an unreadable certificate reports an unknown authority.
    let found = rustls_native_certs::load_native_certs().certs;
    RootCerts::from(
        found.iter().map(|der| Certificate::from_der(der).to_owned()).collect::<Vec<_>>(),
    )
}

fn authorities_of(path: &std::path::Path) -> Result<RootCerts, String> {
    let shown = path.display();
    let pem = std::fs::read(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| format!("{shown} is no PEM: {error}"))?
        {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(format!("{shown} has no certificate"));
    }
    Ok(RootCerts::from(found))
}
