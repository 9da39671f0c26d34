//! Credentials from the environment of the process: an ECS task or EKS pod, or an EC2 instance.
//!
//! Sources: "Container credential provider" in the AWS SDKs reference; "Use IMDSv2" in the EC2 user
//! guide.

use std::time::Duration;

use postrider_secrets::{Password, read_secret};
use serde_json::Value;

use super::web_identity::unix_ms;
use super::{AwsCredentials, AwsEnvironment};
use crate::CredentialsError;
use crate::http::Client;

/// A metadata service is on this machine, or does not exist.
const LIMIT: Duration = Duration::from_secs(2);
const CONTAINERS: &str = "http://169.254.170.2";
const INSTANCE: &str = "http://169.254.169.254";

/// Reads `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or `.._FULL_URI`.
pub(super) fn of_container(
    environment: &AwsEnvironment,
) -> Result<Option<AwsCredentials>, CredentialsError> {
    let relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let full = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    let url = match (relative, full) {
        (Some(path), _) => format!("{CONTAINERS}{path}"),
        (None, Some(url)) => url.to_owned(),
        (None, None) => return Ok(None),
    };
    let whom = format!("the container's credentials provider {url}");
    let token = match environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(path) => Some(read_secret(path.as_ref())?),
        None => environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(str::to_owned),
    };
    let headers: Vec<_> = token.iter().map(|token| ("Authorization", token.as_str())).collect();
    let answer = Client::within(&whom, None, LIMIT)?.get(&url, &headers)?;
    of_json(&whom, &answer, "Token").map(Some)
}

/// Version 2 of the metadata service's protocol.
pub(super) fn of_instance(
    environment: &AwsEnvironment,
) -> Result<AwsCredentials, CredentialsError> {
    let is_off = environment.get("AWS_EC2_METADATA_DISABLED") == Some("true");
    if is_off {
        let reason = "no variable or file has any, and AWS_EC2_METADATA_DISABLED is true";
        return Err(CredentialsError::NoAwsCredentials(reason.to_owned()));
    }
    let endpoint = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or(INSTANCE);
    let base = endpoint.trim_end_matches('/');
    let whom = format!("the instance metadata service {base}");
    let client = Client::within(&whom, None, LIMIT)?;
    let none = |error: CredentialsError| match error {
        CredentialsError::Unanswered { reason, .. } => CredentialsError::NoAwsCredentials(format!(
            "no variable, file or container has any, and {whom} does not answer: {reason}"
        )),
        other => other,
    };
    let lifetime = [("X-aws-ec2-metadata-token-ttl-seconds", "300")];
    let token = client.put(&format!("{base}/latest/api/token"), &lifetime).map_err(none)?;
    let headers = [("X-aws-ec2-metadata-token", token.trim())];
    let roles = format!("{base}/latest/meta-data/iam/security-credentials/");
    let role = client.get(&roles, &headers)?;
    let Some(role) = role.lines().next().filter(|role| !role.is_empty()) else {
        let reason = "the instance has no role";
        return Err(CredentialsError::NoAwsCredentials(reason.to_owned()));
    };
    of_json(&whom, &client.get(&format!("{roles}{role}"), &headers)?, "Token")
}

/// Credentials in the JSON of metadata services and of a `credential_process`.
pub(super) fn of_json(
    whom: &str,
    answer: &str,
    token_name: &str,
) -> Result<AwsCredentials, CredentialsError> {
    let unusable = |reason: String| CredentialsError::Unusable { whom: whom.to_owned(), reason };
    let answer: Value =
        serde_json::from_str(answer).map_err(|_| unusable("it is no JSON".to_owned()))?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let needed = |name: &str| text(name).ok_or_else(|| unusable(format!("it has no {name}")));
    Ok(AwsCredentials {
        access_key_id: needed("AccessKeyId")?.to_owned(),
        secret_access_key: Password::new(needed("SecretAccessKey")?),
        session_token: text(token_name).map(Password::new),
        expires_ms: text("Expiration").and_then(unix_ms),
    })
}
