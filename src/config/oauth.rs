//! `[kafka.oauth]`: login to brokers with tokens (SASL/OAUTHBEARER). With another method than `off`
//! no other option chooses a SASL mechanism. The client secret is sent by https, or to this
//! machine.

use std::fmt;
use std::path::PathBuf;

use super::model::Config;
use super::options::{OptionSpec, choice, list, text};
use super::reader::SettingsReader;
use super::values::OAuthMethod;
use postrider_postgres::libpq::PasswordCommand;
use postrider_service::units::InvalidValue;

pub(super) const METHOD: OptionSpec = choice(
    "kafka.oauth.method",
    OAuthMethod::WORDS,
    "\"off\"",
    "Login by SASL/OAUTHBEARER. `oidc`: token of an OIDC endpoint (client credentials). \
     `command`: token that a command prints. `aws_msk_iam`: token signed by AWS credentials, \
     for MSK. `off`: see `kafka.properties`. The relay renews tokens before they expire. \
     `security.protocol` is SASL_SSL unless `kafka.properties` sets it.",
);
pub(super) const ENDPOINT: OptionSpec = text(
    "kafka.oauth.endpoint",
    "\"\"",
    "For `oidc`: URL of the token endpoint. https, or http to this machine.",
);
pub(super) const CLIENT_ID: OptionSpec =
    text("kafka.oauth.client_id", "\"\"", "For `oidc`: client id.");
pub(super) const CLIENT_SECRET: OptionSpec = text(
    "kafka.oauth.client_secret",
    "\"\"",
    "For `oidc`: client secret. `client_secret_file` or \
     POSTRIDER_KAFKA__OAUTH__CLIENT_SECRET_FILE names a file, which is read again for each \
     token.",
);
pub(super) const SCOPE: OptionSpec =
    text("kafka.oauth.scope", "\"\"", "For `oidc`: scopes, separated by spaces.");
pub(super) const PARAMETERS: OptionSpec = list(
    "kafka.oauth.parameters",
    "[]",
    "For `oidc`: more parameters of the request, each `name=value`, for example \
     `audience=kafka`.",
);
pub(super) const CA_FILE: OptionSpec = text(
    "kafka.oauth.ca_file",
    "\"\"",
    "For `oidc`: PEM file with the certificate authorities of the token endpoint. If empty: \
     the system's authorities.",
);
pub(super) const COMMAND: OptionSpec = list(
    "kafka.oauth.command",
    "[]",
    "For `command`: program and arguments, run without a shell for each token. The program \
     prints a JWT, or JSON with `access_token` and `expires_in`, within 15 s.",
);
pub(super) const AWS_REGION: OptionSpec = text(
    "kafka.oauth.aws_region",
    "\"\"",
    "For `aws_msk_iam`: region of the cluster. If empty: AWS_REGION, AWS_DEFAULT_REGION, the \
     region in the broker names, or the region of the AWS profile. Credentials come from \
     variables, web identity, profile, container or instance, in this order.",
);

#[derive(Clone, PartialEq, Eq)]
pub struct OAuthSection {
    pub method: OAuthMethod,
    /// URL for `oidc`.
    pub endpoint: String,
    pub client_id: String,
    /// Secret for `oidc`. Must not be logged.
    pub client_secret: String,
    /// File that the secret was read from.
    pub client_secret_file: Option<PathBuf>,
    pub scope: String,
    /// Names and values for `oidc`.
    pub parameters: Vec<(String, String)>,
    pub ca_file: Option<PathBuf>,
    pub command: Option<PasswordCommand>,
    /// Region for `aws_msk_iam`; `None` if it must be detected.
    pub aws_region: Option<String>,
}

impl fmt::Debug for OAuthSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthSection")
            .field("method", &self.method)
            .field("client_id", &self.client_id)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl SettingsReader<'_> {
    /// Reads the section even if it is not used.
    pub(super) fn oauth(&mut self) -> Option<OAuthSection> {
        let method = self.choice(METHOD.key, OAuthMethod::from_word);
        let endpoint = self.text(ENDPOINT.key, endpoint);
        let client_id = self.as_typed(CLIENT_ID.key);
        let client_secret = self.as_typed(CLIENT_SECRET.key);
        let scope = self.as_typed(SCOPE.key);
        let parameters = self.items(PARAMETERS.key, parameter);
        let ca_file = self.as_typed(CA_FILE.key);
        let command = self.password_command(COMMAND.key);
        let region = self.as_typed(AWS_REGION.key);
        Some(OAuthSection {
            method: method?,
            endpoint: endpoint?,
            client_id: client_id?,
            client_secret: client_secret?,
            client_secret_file: self.file_of(CLIENT_SECRET.key),
            scope: scope?,
            parameters: parameters?,
            ca_file: ca_file.map(|path| (!path.is_empty()).then(|| path.into()))?,
            command: command?,
            aws_region: region.map(|region| (!region.is_empty()).then_some(region))?,
        })
    }

    /// Refuses missing and conflicting options.
    pub(super) fn logs_in(&mut self, config: &Config) {
        let oauth = &config.kafka.oauth;
        let (missing, help) = match oauth.method {
            OAuthMethod::Off => return,
            OAuthMethod::Oidc if oauth.endpoint.is_empty() => {
                (Some(ENDPOINT.key), "name the provider's token endpoint")
            }
            OAuthMethod::Oidc if oauth.client_id.is_empty() => {
                (Some(CLIENT_ID.key), "name the client that the provider knows")
            }
            OAuthMethod::Command if oauth.command.is_none() => {
                (Some(COMMAND.key), "name the program and its arguments")
            }
            OAuthMethod::Oidc | OAuthMethod::Command | OAuthMethod::AwsMskIam => (None, ""),
        };
        if let Some(key) = missing {
            let reason = format!("is needed by kafka.oauth.method = \"{}\"", oauth.method.as_str());
            self.refuse::<()>(key, InvalidValue::new(reason).help(help.to_owned()));
        }
        let is_other = |name: &str| name.starts_with("sasl.") && name != "sasl.mechanism";
        let other = config.kafka.properties.iter().find(|property| {
            is_other(&property.name)
                || property.name == "sasl.mechanism" && property.value != "OAUTHBEARER"
        });
        if let Some(property) = other {
            let key = format!("kafka.properties.{}", property.name);
            let reason = "does not belong to the login of kafka.oauth.method";
            let help = "remove it, or set kafka.oauth.method = \"off\"".to_owned();
            self.refuse::<()>(&key, InvalidValue::new(reason).help(help));
        }
    }
}

fn endpoint(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() || text.starts_with("https://") {
        return Ok(text.to_owned());
    }
    let host = text.strip_prefix("http://").map(|rest| {
        let authority = rest.split(['/', '?']).next().unwrap_or("");
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    });
    match host {
        Some("localhost" | "127.0.0.1" | "[::1]") => Ok(text.to_owned()),
        Some(_) => Err(InvalidValue::new("would send the client secret unencrypted")
            .help("write https://, or name this machine by localhost".to_owned())),
        None => Err(InvalidValue::new("is no URL").help(
            "write https://host/path, as the provider's discovery document has it".to_owned(),
        )),
    }
}

fn parameter(text: &str) -> Result<(String, String), InvalidValue> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(InvalidValue::new("is not `name=value`")),
    }
}

#[cfg(test)]
mod tests {
    use crate::{FileChoice, Inputs, Loaded, load};

    fn loaded(set: &[&str]) -> Result<Loaded, String> {
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let variables = vec![("PGUSER".into(), "app".into())];
        let inputs = Inputs { file: FileChoice::Absent, set, variables, ..Inputs::default() };
        load(&inputs, &|_| Vec::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_oidc_login_is_read_and_its_secret_not_shown() {
        let loaded = loaded(&[
            "kafka.oauth.method=oidc",
            "kafka.oauth.endpoint=https://login.example/token",
            "kafka.oauth.client_id=relay",
            "kafka.oauth.client_secret=hunter2",
            "kafka.oauth.parameters=audience=kafka",
        ])
        .unwrap();
        let oauth = &loaded.config.kafka.oauth;
        assert_eq!((oauth.client_id.as_str(), oauth.client_secret.as_str()), ("relay", "hunter2"));
        assert_eq!(oauth.parameters, [("audience".to_owned(), "kafka".to_owned())]);
        assert!(!format!("{:?}", loaded.config).contains("hunter2"));
    }

    #[test]
    fn what_a_method_lacks_or_another_login_says_is_refused() {
        let cases: [(&[&str], &str); 7] = [
            (&["kafka.oauth.method=oidc"], "kafka.oauth.endpoint"),
            (
                &["kafka.oauth.method=oidc", "kafka.oauth.endpoint=https://a/t"],
                "kafka.oauth.client_id",
            ),
            (&["kafka.oauth.method=command"], "kafka.oauth.command"),
            (&["kafka.oauth.endpoint=http://login.example/t"], "unencrypted"),
            (&["kafka.oauth.endpoint=login.example"], "is no URL"),
            (&["kafka.oauth.parameters=audience"], "kafka.oauth.parameters"),
            (
                &["kafka.oauth.method=aws_msk_iam", "kafka.properties.sasl.username=x"],
                "kafka.properties.sasl.username",
            ),
        ];
        for (set, words) in cases {
            let error = loaded(set).unwrap_err();
            assert!(error.contains(words), "{set:?}: {error}");
        }
        let local = ["kafka.oauth.endpoint=http://127.0.0.1:8080/t"];
        assert!(loaded(&local).is_ok());
        let alike =
            ["kafka.oauth.method=aws_msk_iam", "kafka.properties.sasl.mechanism=OAUTHBEARER"];
        assert!(loaded(&alike).is_ok());
    }
}
