//! A role for a token of the platform (EKS service accounts), exchanged at AWS STS.
//!
//! Source: `AssumeRoleWithWebIdentity` in the STS API reference.

use std::path::Path;

use postrider_core::route::parse_time;
use postrider_secrets::{Password, read_secret};

use super::{AwsCredentials, AwsEnvironment};
use crate::CredentialsError;
use crate::http::{Client, element};

/// Reads `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`.
pub(super) fn of_variables(
    environment: &AwsEnvironment,
) -> Result<Option<AwsCredentials>, CredentialsError> {
    let file = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE");
    let (Some(file), Some(role)) = (file, environment.get("AWS_ROLE_ARN")) else {
        return Ok(None);
    };
    let session = environment.get("AWS_ROLE_SESSION_NAME").unwrap_or("postrider");
    assume(environment, Path::new(file), role, session).map(Some)
}

pub(super) fn assume(
    environment: &AwsEnvironment,
    file: &Path,
    role: &str,
    session: &str,
) -> Result<AwsCredentials, CredentialsError> {
    let token = read_secret(file)?;
    let endpoint = match (environment.get("AWS_ENDPOINT_URL_STS"), super::region(environment, "")) {
        (Some(url), _) => url.to_owned(),
        (None, Some(region)) => format!("https://sts.{region}.amazonaws.com/"),
        (None, None) => "https://sts.amazonaws.com/".to_owned(),
    };
    let whom = format!("AWS STS at {}", postrider_secrets::mask_text(&endpoint));
    let form = [
        ("Action", "AssumeRoleWithWebIdentity"),
        ("Version", "2011-06-15"),
        ("RoleArn", role),
        ("RoleSessionName", session),
        ("WebIdentityToken", &token),
    ];
    let answer = Client::new(&whom, None)?.post(&endpoint, &[], &form)?;
    let part = |name: &str| {
        element(&answer, name).map(str::to_owned).ok_or_else(|| CredentialsError::Unusable {
            whom: whom.clone(),
            reason: format!("it has no {name}"),
        })
    };
    Ok(AwsCredentials {
        access_key_id: part("AccessKeyId")?,
        secret_access_key: Password::new(part("SecretAccessKey")?),
        session_token: Some(Password::new(part("SessionToken")?)),
        expires_ms: unix_ms(&part("Expiration")?),
    })
}

pub(super) fn unix_ms(text: &str) -> Option<u64> {
    parse_time(text.as_bytes()).and_then(|us| u64::try_from(us / 1_000).ok())
}
