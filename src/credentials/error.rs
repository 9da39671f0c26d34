//! Errors of fetching tokens and passwords.

use postrider_secrets::SecretError;

/// Reason why there is no token or password now. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The party did not answer in time, or not with HTTP.
    #[error("{whom} does not answer: {reason}")]
    Unanswered { whom: String, reason: String },
    #[error("{whom} refused: {reason}")]
    Refused {
        whom: String,
        /// Status and error code of the answer.
        reason: String,
    },
    #[error("the answer of {whom} cannot be used: {reason}")]
    Unusable { whom: String, reason: String },
    /// No AWS credentials exist for signing.
    #[error("no AWS credentials were found: {0}")]
    NoAwsCredentials(String),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl CredentialsError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unanswered { .. } => Some(
                "check the address, the network path and, for https, that its authority is trusted \
                 (kafka.oauth.ca_file or SSL_CERT_FILE)"
                    .to_owned(),
            ),
            Self::Refused { .. } => {
                Some("check the client id, the client secret, the scope and the role".to_owned())
            }
            Self::Unusable { .. } => Some(
                "a token needs an expiry: a JWT with `exp`, or an answer with `expires_in`; check the clocks \
                 of both machines"
                    .to_owned(),
            ),
            Self::NoAwsCredentials(_) => Some(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or run with a role of the \
                 task, the pod or the instance"
                    .to_owned(),
            ),
            Self::Secret(error) => error.hint(),
        }
    }
}
