//! Why there is no token or password now.

use postrider_secrets::SecretError;

/// Why there is no token or password now. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Nobody answered in time, or not with HTTP.
    #[error("{whom} does not answer: {reason}")]
    Unanswered {
        /// Who was asked.
        whom: String,
        /// The client's words.
        reason: String,
    },
    /// It answered, and refused.
    #[error("{whom} refused: {reason}")]
    Refused {
        /// Who was asked.
        whom: String,
        /// The status, and the error code of the answer.
        reason: String,
    },
    /// It answered with something that cannot be used.
    #[error("the answer of {whom} cannot be used: {reason}")]
    Unusable {
        /// Who was asked.
        whom: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There are no credentials of AWS to sign with.
    #[error("no AWS credentials were found: {0}")]
    NoAwsCredentials(String),
    /// A file or a command has nothing.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl CredentialsError {
    /// What to do about it.
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
