//! Logins with AWS IAM: finds credentials like AWS's own tools, and signs tokens and passwords.
//!
//! This code has never run against AWS. Tests compare the signatures with botocore's, and run the
//! providers against servers that answer as the documentation says.

mod chain;
mod metadata;
mod profile;
#[cfg(test)]
mod tests;
mod web_identity;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postrider_secrets::Password;

use crate::sigv4::{EXPIRES_S, SignedQuery, percent_encoded};
use crate::time::now_ms;
use crate::{CredentialsError, Token};

pub use chain::{AwsEnvironment, region};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsCredentials {
    /// Public id of the key.
    pub access_key_id: String,
    pub secret_access_key: Password,
    /// Token of temporary credentials.
    pub session_token: Option<Password>,
    /// Expiry of temporary credentials in Unix time.
    pub expires_ms: Option<u64>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct MskIam {
    pub region: String,
    pub environment: AwsEnvironment,
}

impl fmt::Debug for MskIam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MskIam").field("region", &self.region).finish_non_exhaustive()
    }
}

impl MskIam {
    /// Valid for fifteen minutes, or until the credentials expire.
    pub(crate) fn token(&self, now_ms: u64) -> Result<Token, CredentialsError> {
        let credentials = self.environment.credentials()?;
        let lives_until_ms = now_ms + EXPIRES_S * 1_000;
        if credentials.expires_ms.is_some_and(|at| at <= now_ms) {
            let whom = "the provider of AWS credentials".to_owned();
            let reason = "the credentials have expired already".to_owned();
            return Err(CredentialsError::Unusable { whom, reason });
        }
        let expires_ms = credentials.expires_ms.map_or(lives_until_ms, |at| at.min(lives_until_ms));
        Ok(Token {
            text: msk_token(&credentials, &self.region, now_ms / 1_000),
            expires_ms,
            fetched_ms: now_ms,
            principal: credentials.access_key_id,
        })
    }
}

/// Valid for 15 minutes from `now_s` (Unix time).
pub fn msk_token(credentials: &AwsCredentials, region: &str, now_s: u64) -> String {
    let host = format!("kafka.{region}.amazonaws.com");
    let parameters = [("Action", "kafka-cluster:Connect")];
    let query =
        SignedQuery { service: "kafka-cluster", region, host: &host, parameters: &parameters };
    let agent = percent_encoded(concat!("postrider/", env!("CARGO_PKG_VERSION")));
    let url = format!("https://{}&User-Agent={agent}", query.sign(credentials, now_s));
    URL_SAFE_NO_PAD.encode(url)
}

/// Valid for 15 minutes from `now_s` (Unix time).
pub fn rds_password(
    credentials: &AwsCredentials,
    region: &str,
    endpoint: (&str, u16),
    user: &str,
    now_s: u64,
) -> Password {
    let host = format!("{}:{}", endpoint.0, endpoint.1);
    let parameters = [("Action", "connect"), ("DBUser", user)];
    let query = SignedQuery { service: "rds-db", region, host: &host, parameters: &parameters };
    Password::new(query.sign(credentials, now_s))
}

/// Calls [`rds_password`] with current credentials and time. Blocks.
pub fn rds_password_now(
    environment: &AwsEnvironment,
    region: &str,
    endpoint: (&str, u16),
    user: &str,
) -> Result<Password, CredentialsError> {
    let credentials = environment.credentials()?;
    Ok(rds_password(&credentials, region, endpoint, user, now_ms() / 1_000))
}
