//! `source.login = "rds_iam"`: passwords signed with AWS credentials, for roles of RDS and Aurora.
//!
//! Invariant: each connection gets a new password, which is valid for 15 minutes. Passwords are
//! sent only over encrypted connections, because servers request them in clear text.

use std::sync::Arc;

use super::options::{OptionSpec, choice, text};
use super::reader::SettingsReader;
use super::values::SourceLogin;
use postrider_credentials::aws::{AwsEnvironment, rds_password_now, region};
use postrider_postgres::libpq::{ConnectInfo, Password, PasswordIssuer, SecretError, SslMode};
use postrider_service::units::InvalidValue;

pub(super) const LOGIN: OptionSpec = choice(
    "source.login",
    SourceLogin::WORDS,
    "\"password\"",
    "How the relay logs in to Postgres. `password`: as psql does. `rds_iam`: with a password \
     that AWS credentials sign at every connect. `rds_iam` needs a role of RDS or Aurora \
     with `rds_iam`, and an encrypted connection.",
);
pub(super) const AWS_REGION: OptionSpec = text(
    "source.aws_region",
    "\"\"",
    "For `rds_iam`: region of the database. If empty: AWS_REGION, AWS_DEFAULT_REGION, the \
     region in the host name, or the region of the AWS profile.",
);

struct RdsLogin {
    region: Option<String>,
    environment: AwsEnvironment,
}

impl PasswordIssuer for RdsLogin {
    fn issue(&self, user: &str, host: &str, port: u16) -> Result<Password, SecretError> {
        let found = self.region.clone().or_else(|| region(&self.environment, host));
        let region = found.ok_or_else(|| {
            let reason = "no AWS region is named: set source.aws_region or AWS_REGION";
            SecretError::NotIssued(reason.to_owned())
        })?;
        rds_password_now(&self.environment, &region, (host, port), user).map_err(|error| {
            let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            SecretError::NotIssued(format!("{error}{hint}"))
        })
    }

    fn describe(&self) -> String {
        "the login by AWS IAM".to_owned()
    }
}

impl SettingsReader<'_> {
    pub(super) fn logged_in(&mut self, connect: ConnectInfo) -> Option<ConnectInfo> {
        let login = self.choice(LOGIN.key, SourceLogin::from_word)?;
        let region = self.as_typed(AWS_REGION.key)?;
        if login == SourceLogin::Password {
            return Some(connect);
        }
        if matches!(connect.tls.mode, SslMode::Disable | SslMode::Prefer) {
            let reason = "sends the password in clear text, and the connection may be unencrypted";
            let help = "set sslmode=verify-full and sslrootcert in source.url (AWS's bundle of authorities: \
                        https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem)";
            return self.refuse(LOGIN.key, InvalidValue::new(reason).help(help.to_owned()));
        }
        let region = (!region.is_empty()).then_some(region);
        let environment = AwsEnvironment::of_process();
        Some(connect.issued_by(Arc::new(RdsLogin { region, environment })))
    }
}
