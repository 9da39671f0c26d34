//! A profile of `~/.aws/credentials` and `~/.aws/config`: keys, a role with a web identity, or a
//! process that prints credentials.
//!
//! Source: "Shared config and credentials files" in the AWS SDKs reference. SSO logins and
//! `source_profile` are reported as unsupported.

use std::collections::BTreeMap;
use std::path::PathBuf;

use postrider_secrets::{Password, PasswordCommand};

use super::metadata::of_json;
use super::web_identity::assume;
use super::{AwsCredentials, AwsEnvironment};
use crate::CredentialsError;

type Section = BTreeMap<String, String>;

pub(super) fn credentials(
    environment: &AwsEnvironment,
) -> Result<Option<AwsCredentials>, CredentialsError> {
    let settings = section(environment);
    let setting = |name: &str| settings.get(name).map(String::as_str).filter(|it| !it.is_empty());
    if let (Some(role), Some(file)) = (setting("role_arn"), setting("web_identity_token_file")) {
        let session = setting("role_session_name").unwrap_or("postrider");
        return assume(environment, file.as_ref(), role, session).map(Some);
    }
    if let (Some(key), Some(secret)) =
        (setting("aws_access_key_id"), setting("aws_secret_access_key"))
    {
        return Ok(Some(AwsCredentials {
            access_key_id: key.to_owned(),
            secret_access_key: Password::new(secret),
            session_token: setting("aws_session_token").map(Password::new),
            expires_ms: None,
        }));
    }
    if let Some(command) = setting("credential_process") {
        return of_process(command).map(Some);
    }
    let unsupported =
        ["source_profile", "credential_source", "sso_session", "sso_start_url", "login_session"];
    if let Some(name) = unsupported.into_iter().find(|name| setting(name).is_some()) {
        return Err(CredentialsError::NoAwsCredentials(format!(
            "the profile {} logs in by {name}, which is not supported; set credential_process = \"aws configure \
             export-credentials --profile {0} --format process\" in a profile of its own",
            name_of(environment)
        )));
    }
    if environment.get("AWS_PROFILE").is_some() {
        let name = name_of(environment);
        let reason = format!("the profile {name} of AWS_PROFILE has none, or is in no file");
        return Err(CredentialsError::NoAwsCredentials(reason));
    }
    Ok(None)
}

pub(super) fn region(environment: &AwsEnvironment) -> Option<String> {
    section(environment).get("region").cloned()
}

fn of_process(command: &str) -> Result<AwsCredentials, CredentialsError> {
    let words = ["sh", "-c", command].map(str::to_owned).to_vec();
    let Some(command) = PasswordCommand::new(words) else { unreachable!("it has a program") };
    let printed = command.run()?;
    of_json("credential_process", printed.reveal(), "SessionToken")
}

fn name_of(environment: &AwsEnvironment) -> &str {
    environment.get("AWS_PROFILE").unwrap_or("default")
}

/// The credentials file takes precedence.
fn section(environment: &AwsEnvironment) -> Section {
    let name = name_of(environment);
    let heading = if name == "default" { "default".to_owned() } else { format!("profile {name}") };
    let mut settings = read(&file(environment, "AWS_CONFIG_FILE", "config"), &heading);
    settings.extend(read(&file(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), name));
    settings
}

fn file(environment: &AwsEnvironment, variable: &str, name: &str) -> PathBuf {
    match environment.get(variable) {
        Some(path) => path.into(),
        None => PathBuf::from(environment.get("HOME").unwrap_or("/")).join(".aws").join(name),
    }
}

/// A file that cannot be read has no settings, as with AWS's own tools.
fn read(path: &std::path::Path, heading: &str) -> Section {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut settings = Section::new();
    let mut is_wanted = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_wanted = name.split_whitespace().eq(heading.split_whitespace());
        } else if let (true, Some((name, value))) = (is_wanted, line.split_once('=')) {
            settings.insert(name.trim().to_owned(), value.trim().to_owned());
        }
    }
    settings
}
