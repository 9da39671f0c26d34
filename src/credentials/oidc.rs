//! OAuth 2.0's grant `client_credentials`, as OIDC providers offer it.
//!
//! Source: RFC 6749, sections 2.3.1 and 4.4.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postrider_secrets::{Password, read_secret};

use crate::CredentialsError;
use crate::http::Client;
use crate::sigv4::percent_encoded;

/// Request to a token endpoint.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientCredentials {
    /// `https://..`; `http://` only for this machine.
    pub endpoint: String,
    pub client_id: String,
    /// Client secret, if it is not in a file.
    pub client_secret: Option<Password>,
    /// File with the client secret, read for each token.
    pub client_secret_file: Option<PathBuf>,
    /// Scope names separated by spaces; an empty text leaves the scope to the endpoint.
    pub scope: String,
    /// Additional form parameters, such as `audience`.
    pub parameters: Vec<(String, String)>,
    /// File with authorities that replace the system's.
    pub ca_file: Option<PathBuf>,
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCredentials")
            .field("endpoint", &postrider_secrets::mask_text(&self.endpoint))
            .field("client_id", &self.client_id)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl ClientCredentials {
    pub(crate) fn describe(&self) -> String {
        format!("the token endpoint {}", postrider_secrets::mask_text(&self.endpoint))
    }

    pub(crate) fn ask(&self) -> Result<String, CredentialsError> {
        let client = Client::new(&self.describe(), self.ca_file.as_deref())?;
        let secret = match (&self.client_secret_file, &self.client_secret) {
            (Some(path), _) => read_secret(path)?,
            (None, Some(secret)) => secret.reveal().to_owned(),
            (None, None) => String::new(),
        };
        // Section 2.3.1 requires form encoding first, so that a colon in either part is
        // unambiguous.
        let user = format!("{}:{}", percent_encoded(&self.client_id), percent_encoded(&secret));
        let authorization = format!("Basic {}", STANDARD.encode(user));
        let headers = [("Authorization", authorization.as_str()), ("Accept", "application/json")];
        let mut form = vec![("grant_type", "client_credentials")];
        if !self.scope.is_empty() {
            form.push(("scope", &self.scope));
        }
        form.extend(self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        client.post(&self.endpoint, &headers, &form)
    }
}
