//! Searches for credentials in the order of AWS's own tools: variables, a web identity, the
//! profile's files, the container, the instance.

use std::collections::BTreeMap;
use std::fmt;

use postrider_secrets::Password;

use super::AwsCredentials;
use super::{metadata, profile, web_identity};
use crate::CredentialsError;

/// Variables that AWS's tools read, from the start of the process.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AwsEnvironment(BTreeMap<String, String>);

impl fmt::Debug for AwsEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AwsEnvironment").field(&self.0.keys()).finish()
    }
}

impl AwsEnvironment {
    /// Keeps `AWS_*` and `HOME` of these variables, and drops all others.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_read = |name: &str| name.starts_with("AWS_") || name == "HOME";
        Self(variables.into_iter().filter(|(name, _)| is_read(name)).collect())
    }

    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::of(std::env::vars_os().filter_map(text))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Blocks while a provider is asked.
    pub fn credentials(&self) -> Result<AwsCredentials, CredentialsError> {
        if let Some(found) = self.of_variables()? {
            return Ok(found);
        }
        if let Some(found) = web_identity::of_variables(self)? {
            return Ok(found);
        }
        if let Some(found) = profile::credentials(self)? {
            return Ok(found);
        }
        if let Some(found) = metadata::of_container(self)? {
            return Ok(found);
        }
        metadata::of_instance(self)
    }

    fn of_variables(&self) -> Result<Option<AwsCredentials>, CredentialsError> {
        let (key, secret) = (self.get("AWS_ACCESS_KEY_ID"), self.get("AWS_SECRET_ACCESS_KEY"));
        match (key, secret) {
            (Some(key), Some(secret)) => Ok(Some(AwsCredentials {
                access_key_id: key.to_owned(),
                secret_access_key: Password::new(secret),
                session_token: self.get("AWS_SESSION_TOKEN").map(Password::new),
                expires_ms: None,
            })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            (None, Some(_)) => Err(half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
        }
    }
}

fn half(there: &str, missing: &str) -> CredentialsError {
    CredentialsError::NoAwsCredentials(format!("{there} is set and {missing} is not"))
}

/// Region from `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile, or a host's name on AWS.
pub fn region(environment: &AwsEnvironment, host: &str) -> Option<String> {
    let of_variable =
        environment.get("AWS_REGION").or_else(|| environment.get("AWS_DEFAULT_REGION"));
    of_variable
        .map(str::to_owned)
        .or_else(|| of_host(host))
        .or_else(|| profile::region(environment))
}

/// Parses `b-1.name.abc.c2.kafka.eu-west-1.amazonaws.com` and `db.abc.eu-west-1.rds.amazonaws.com`.
fn of_host(host: &str) -> Option<String> {
    let host = host.split(':').next()?.trim_end_matches(".cn").strip_suffix(".amazonaws.com")?;
    let parts: Vec<&str> = host.split('.').collect();
    match parts.as_slice() {
        [.., "kafka" | "kafka-serverless", region] | [.., region, "rds"] => {
            Some((*region).to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_on_aws_names_its_region() {
        for (host, region) in [
            ("b-1.demo.x1y2.c2.kafka.eu-west-1.amazonaws.com:9098", Some("eu-west-1")),
            ("boot-abc.c1.kafka-serverless.us-east-1.amazonaws.com", Some("us-east-1")),
            ("shop.c9akciq32.eu-central-1.rds.amazonaws.com", Some("eu-central-1")),
            ("shop.c9akciq32.cn-north-1.rds.amazonaws.com.cn", Some("cn-north-1")),
            ("db.example.com", None),
        ] {
            assert_eq!(of_host(host).as_deref(), region, "{host}");
        }
    }

    #[test]
    fn half_of_a_key_is_told() {
        let environment = AwsEnvironment::of([("AWS_ACCESS_KEY_ID".into(), "AKIA".into())]);
        let error = environment.credentials().unwrap_err().to_string();
        assert!(error.contains("AWS_SECRET_ACCESS_KEY is not"), "{error}");
    }
}
